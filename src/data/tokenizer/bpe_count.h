/* Counts the pieces of a text. */
#ifndef INGOT_DATA_TOKENIZER_BPE_COUNT_H
#define INGOT_DATA_TOKENIZER_BPE_COUNT_H
#include "data/tokenizer/pretokenizer.h"
#include "data/tokenizer/tokenizer.h"

/* Longer pieces are counted in parts of at most this many bytes (split between characters): the time of training
 * depends on the length of pieces, and no piece of natural language is that long. */
enum { BPE_PIECE_MAX = 512 };

struct bpe_piece {
    const char *data; /* points into the documents, or into their normalized form */
    uint32_t bytes;
    uint64_t hash;
    int64_t count;
};
struct bpe_pieces {
    struct bpe_piece *items; /* in no particular order: the order depends on the threads, the set does not */
    size_t count;
    char **normalized; /* segments changed by a normalizer */
    size_t normalized_count;
};
/* Counts the pieces of two bytes or more; a single byte has nothing to merge. STATUS_DATA names the first document
 * with invalid UTF-8. */
status bpe_count(struct bpe_pieces *out, const struct pretokenizer *pre, const struct text *docs,
                 int64_t count) WARN_UNUSED;
void bpe_count_free(struct bpe_pieces *p);
#endif
