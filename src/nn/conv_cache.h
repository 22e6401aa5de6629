/* Generation: caches the input rows before the next token that a convolution needs, for each sequence:
 * before [sequences x rows, channels]. `in`: the new rows, `stride` elements apart. */
#ifndef INGOT_NN_CONV_CACHE_H
#define INGOT_NN_CONV_CACHE_H
#include "nn/layer_ctx.h"

/* Stores the last of a sequence's first at->rows rows; zeros stand for rows before its start. */
status conv_cache_fill(struct tensor before, const void *in, int64_t stride, const struct cache_at *at,
                       const struct exec *r) WARN_UNUSED;
/* Appends one new row of every sequence, and drops the oldest cached row. */
status conv_cache_shift(struct tensor before, const void *in, int64_t stride, const struct cache_at *at,
                        const struct exec *r) WARN_UNUSED;
#endif
