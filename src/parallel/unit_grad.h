/* unit_grad: zeroes the gradient buffer of a unit before its backward, where that is needed.
 *
 * GEMMs store their gradients. Other gradients accumulate (params.h: not `stored`) and need zeros first. A buffer of
 * gradients alone is already zero: the optimizer leaves it so. Buffers that are shared are cleared here: ZeRO's slots
 * (zero.h), and gradients that overlay activations (plan/grad_overlay.h). */
#ifndef INGOT_PARALLEL_UNIT_GRAD_H
#define INGOT_PARALLEL_UNIT_GRAD_H
#include "dev/dev.h"
#include "ops/ops.h"
#include "tensor/params.h"

/* Zeroes rows [first, last) of a unit except those that GEMMs store; also the padding, which ranks all-reduce with the
 * rest. */
status unit_grad_clear(const struct params *p, int first, int last, dev_stream s) WARN_UNUSED;
/* Before the backward of these rows: the same, if params.overlaid. */
status unit_grad_begin(const struct params *p, int first, int last, dev_stream s) WARN_UNUSED;
/* Before the backward of a whole unit: params_enter, then unit_grad_begin. */
status unit_grad_enter(const struct params *p, int64_t unit, dev_stream s) WARN_UNUSED;
#endif
