/* Generation: the input rows that a convolution needs from before the next token, of each sequence:
 * before [sequences x rows, channels]. `in`: the new rows, `stride` elements apart. */
#ifndef INGOT_NN_CONV_CACHE_H
#define INGOT_NN_CONV_CACHE_H
#include "nn/mix.h"

/* The last of a sequence's first at->rows rows; zeros stand for rows before its start. */
status conv_cache_fill(struct tensor before, const void *in, int64_t stride, const struct cache_at *at,
                       const struct exec *r) WARN_UNUSED;
/* One new row of every sequence: the first kept row leaves. */
status conv_cache_shift(struct tensor before, const void *in, int64_t stride, const struct cache_at *at,
                        const struct exec *r) WARN_UNUSED;
#endif
