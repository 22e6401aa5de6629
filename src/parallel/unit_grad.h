/* unit_grad: what a unit's place for gradients holds when its backward begins. GEMMs store; what is formed by adding alone (params.h:
 * not `stored`) needs zeros. An array of gradients that nothing else lies in has them: the optimizer leaves them behind. Slots (zero.h), and
 * an array that lies where activations were (plan/grad_overlay.h), are cleared. */
#ifndef INGOT_PARALLEL_UNIT_GRAD_H
#define INGOT_PARALLEL_UNIT_GRAD_H
#include "dev/dev.h"
#include "ops/ops.h"
#include "tensor/params.h"

/* Zeros in rows [first, last) of a unit, but where GEMMs store; padding is cleared, too, as ranks sum it with the rest. */
status unit_grad_clear(const struct params *p, int first, int last, dev_stream s) WARN_UNUSED;
/* Before the backward of these rows: zeros with params.overlaid. */
status unit_grad_begin(const struct params *p, int first, int last, dev_stream s) WARN_UNUSED;
/* The backward of a whole unit begins: params_enter, and that. */
status unit_grad_enter(const struct params *p, int64_t unit, dev_stream s) WARN_UNUSED;
#endif
