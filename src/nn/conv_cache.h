/* Generation: the input rows that a mixer's convolution needs from before the next token. */
#ifndef INGOT_NN_CONV_CACHE_H
#define INGOT_NN_CONV_CACHE_H
#include "nn/mix.h"

/* before [width-1, channels] <- the rows in front of row at->at + at->rows, with zeros before the sequence. `in`:
 * this batch's at->rows rows, row stride `stride` in elements. */
status conv_cache_keep(struct tensor before, const void *in, int64_t stride, const struct cache_at *at,
                       const struct exec *r) WARN_UNUSED;
#endif
