/* layer_ctx: what all layers of a micro-batch share: RoPE tables, and the batch with its documents. Caches for
 * generation. */
#ifndef INGOT_NN_LAYER_CTX_H
#define INGOT_NN_LAYER_CTX_H
#include "data/load/loader.h"
#include "nn/rope.h"

struct layer_ctx {
    const struct rope *rope;
    const struct batch *batch;
};

/* Generation: the caches of `sequences` sequences of at most `capacity` tokens each. */
struct cache_layout {
    int64_t sequences, capacity;
    dtype dt;
    struct arena *memory;
};
/* Where new rows belong.
 *   X_cache_fill   the batch is one document: the first `rows` tokens of sequence `sequence`
 *   X_step         row b of the batch is the next token of sequence b, a document of its own; lengths[b] counts it
 * A step reads what changes from token to token (ids, positions, lengths) from the op set's memory alone, so that it
 * can be captured once and replayed. */
struct cache_at {
    int64_t sequence, rows;      /* X_cache_fill */
    int64_t sequences, capacity; /* as in cache_layout */
    const struct batch *batch;
    const int32_t *lengths;      /* X_step: [sequences] */
};
/* Sequence `index` of a tensor [sequences x rows, width]. */
static inline struct tensor cache_of(struct tensor all, int64_t sequences, int64_t index)
{
    struct tensor one = all;
    one.shape[0] = all.shape[0] / sequences;
    one.data = (char *)all.data + (size_t)(index * tensor_count(one)) * dtype_bytes(all.dt);
    return one;
}
#endif
