/* Merges one piece of text into tokens: the pair with the lowest rank is merged, the leftmost among equals, until no
 * merge is possible. */
#ifndef INGOT_DATA_TOKENIZER_BPE_MERGE_H
#define INGOT_DATA_TOKENIZER_BPE_MERGE_H
#include "data/tokenizer/tokenizer_int.h"

enum {
    BPE_MERGE_SHORT = 64
}; /* units (characters or bytes) from which the heap is faster than a linear search */

struct bpe_node {
    int32_t id;
    uint32_t prev, next; /* index of the neighbours */
    uint32_t rank;       /* rank of the merge with next; RANK_NONE without one */
};

/* Memory for long pieces; zero it before the first use. */
struct bpe_scratch {
    struct bpe_node *nodes;
    uint64_t *heap; /* rank << 32 | index of the left node */
    uint32_t *ranks;
    size_t node_cap, heap_cap, rank_cap;
};
void bpe_scratch_fini(struct bpe_scratch *s);

/* Merges a piece below 4 GiB in time n log n. `out` needs `bytes` elements. STATUS_OUT_OF_MEMORY. */
status bpe_merge(const struct tokenizer *t, struct bpe_scratch *s, const uint8_t *piece, size_t bytes,
                 int32_t *out, size_t *count) WARN_UNUSED;
/* The same with the heap for any length, always starting with bytes: the reference for the fast paths. */
status bpe_merge_heap(const struct tokenizer *t, struct bpe_scratch *s, const uint8_t *piece, size_t bytes,
                      int32_t *out, size_t *count) WARN_UNUSED;
#endif
