/* Generation: the last rows before a mixer's convolution, which the next one looks back on. */
#ifndef INGOT_NN_CONV_CACHE_H
#define INGOT_NN_CONV_CACHE_H
#include "nn/mix.h"

/* before [width-1, channels] <- the rows in front of row at->at + at->rows. `in`: this batch's, at->rows of them, `stride` elements apart.
 * There are zeros before the sequence. */
status conv_cache_keep(struct tensor before, const void *in, int64_t stride, const struct cache_at *at, const struct exec *r) WARN_UNUSED;
#endif
