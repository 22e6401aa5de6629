/* Packs complete documents into rows of T inputs.
 *
 * A document of n tokens has n - 1 (input, target) pairs; its last token is only a target. Pairs are packed: a
 * document with more than T pairs gives full rows of T and a rest, any other document is one piece. Each pair of the
 * corpus therefore occurs exactly once per epoch, no piece crosses a document, and everything else in a row is
 * padding.
 *
 * Best fit (Ding et al., "Fewer Truncations Improve Language Modeling", 2024): documents are processed in blocks of
 * PACK_DOCUMENTS neighbours. The pieces of a block, longest first, each go into the row with the least sufficient
 * free space, or into a new row. Blocks are independent and depend on lengths and T alone; the packing is therefore
 * the same for any seed, epoch and number of threads. Shuffling rows gives the order. PACK_ALONE gives every piece
 * its own row, for comparison.
 *
 * Rows are counted and pieces placed once, at start, in parallel; docs/PERF.md has the rate (tens of millions of
 * documents per second and core). Memory: 2 bytes per document, 2 per row, 8 more per document longer than T. */
#ifndef INGOT_DATA_LOAD_PACK_H
#define INGOT_DATA_LOAD_PACK_H
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PACK_DOCUMENTS = 65536, PACK_ROW_MAX = 1 << 20 };
enum pack_policy { PACK_BEST_FIT, PACK_ALONE };

struct pack;
/* starts[0..count], ascending, are the document starts and the end of the last one. The array must outlive the pack.
 * STATUS_CONFIG when row_tokens exceeds PACK_ROW_MAX, STATUS_DATA when no document has two tokens. */
status pack_open(struct pack **p, const int64_t *starts, int64_t count, int64_t row_tokens,
                 enum pack_policy policy) WARN_UNUSED;
void pack_close(struct pack *p);
int64_t pack_rows(const struct pack *p);
int64_t pack_pairs(const struct pack *p); /* pairs of all rows; the rest of rows * T is padding */
size_t pack_bytes(const struct pack *p);

struct pack_piece {
    int64_t document;
    int64_t at;    /* position of its first input in the stream */
    int64_t count; /* inputs; the target of input at + i is token at + i + 1 */
};
/* Iterates over the pieces of a row, in order: up to T of them. */
struct pack_cursor {
    const struct pack *pack;
    const void *block;
    int64_t next, end; /* range of the block's pieces */
    int64_t whole;     /* number of a full row; -1: a row of pieces */
};
void pack_row(const struct pack *p, int64_t row, struct pack_cursor *c);
bool pack_next(struct pack_cursor *c, struct pack_piece *piece); /* false: no more */
#endif
