/* unit_grad: zeroes the gradient buffer of a unit before its backward, where that is needed.
 *
 * GEMMs store their gradients. Other gradients accumulate (params.h: not `gemm_overwrites_grad`) and need zeros first.
 * A buffer that holds nothing but gradients is already zero, because the optimizer zeroes it. This file clears buffers
 * that are shared: ZeRO's slots (zero.h), and gradients that overlay activations (plan/grad_overlay.h). */
#ifndef INGOT_PARALLEL_UNIT_GRAD_H
#define INGOT_PARALLEL_UNIT_GRAD_H
#include "dev/dev.h"
#include "ops/ops.h"
#include "tensor/params.h"

/* Zeroes rows [first, last) of a unit, except those that GEMMs store. It also zeroes the padding, which ranks
 * all-reduce with the rest. */
status unit_grad_clear(const struct params *p, int first, int last, dev_stream s) WARN_UNUSED;
/* Call before the backward of these rows: does the same if params.overlaid. */
status unit_grad_begin(const struct params *p, int first, int last, dev_stream s) WARN_UNUSED;
/* Call before the backward of a whole unit: calls params_unshard, then unit_grad_begin. */
status unit_grad_unshard(const struct params *p, int64_t unit, dev_stream s) WARN_UNUSED;
#endif
