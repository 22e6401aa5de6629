/* Merging one piece of text into tokens. */
#ifndef INGOT_DATA_BPE_MERGE_H
#define INGOT_DATA_BPE_MERGE_H
#include "data/tokenizer_int.h"

enum { BPE_MERGE_SHORT = 64 }; /* bytes: from here on the heap is faster than searching */

struct bpe_node {
    int32_t id;
    uint32_t prev, next; /* index of the neighbours */
    uint32_t rank;       /* of the merge with next, RANK_NONE without */
};

/* Memory for long pieces; zero it at first. */
struct bpe_scratch {
    struct bpe_node *nodes;
    uint64_t *heap; /* rank << 32 | index of the left node */
    size_t node_cap, heap_cap;
};
void bpe_scratch_fini(struct bpe_scratch *s);

/* The pair with the lowest rank is merged, the leftmost first among equals, until none is left. Writes at
 * most `bytes` ids to out and returns their count. `bytes` is from 1 to BPE_MERGE_SHORT. */
size_t bpe_merge_short(const struct tokenizer *t, const uint8_t *piece, size_t bytes, int32_t *out);
/* The same for any piece below 4 GiB, in time n log n. STATUS_FIT. */
status bpe_merge_long(const struct tokenizer *t, struct bpe_scratch *s, const uint8_t *piece, size_t bytes,
                      int32_t *out, size_t *count) WARN_UNUSED;
#endif
