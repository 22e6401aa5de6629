/* fp8: which linears of a model read FP8 codes, and their scales from step to step (params.fp8, tensor/fp8_linears.h).
 *
 *   before the first step    fp8_claim, fp8_layout; fp8_begin computes scales of norm outputs and codes of weights
 *   in a step                the ops that write codes record the amax of their tensors (ops/ops_fp8.h)
 *   after the update         fp8_end takes amax over all ranks and computes the next step's scales; derived_refresh
 *                            computes the codes of weights
 *
 * Scales depend only on the amax of whole steps and on the weights. So bits do not depend on micro-batches, ranks or
 * recompute. History is state: checkpoints hold it (train/state.c). Scales follow from it (fp8_begin). */
#ifndef INGOT_PARALLEL_FP8_H
#define INGOT_PARALLEL_FP8_H
#include "parallel/exec.h"
#include "parallel/mesh.h"

/* Numbers the linears whose GEMMs may read codes: all weights of nn/linear except rows of gates and routers, and except
 * those that `fp8.exclude` names (shell patterns, separated by commas). With params.recipe RECIPE_FP8 each begins with
 * FP8_USE_BF16. With RECIPE_CURRENT they are marked (param.current), except the last params.current.keep share of
 * blocks. The caller has already filled the other fields of params.current. Idempotent. STATUS_CONFIG names a weight
 * whose width FP8 GEMMs do not support, or a pattern that matches nothing. */
status fp8_claim(struct params *p, const char *exclude) WARN_UNUSED;
/* Allocates the arrays on the device. `ranks`: number of ranks of the run. */
void fp8_layout(struct params *p, int ranks, struct arena *a);
/* RECIPE_CURRENT: allocates the operands of one GEMM, of at most `rows` rows. */
void current_layout(struct params *p, int64_t rows, struct arena *a);
/* Computes the scales from history, norm weights and weights, and the codes of weights. Call it before the first step
 * of a run, and whenever weights are replaced from outside. */
status fp8_begin(const struct exec *r, const struct mesh *mesh, int margin) WARN_UNUSED;
/* Call after the optimizer step: computes the scales of the next step. */
status fp8_end(const struct exec *r, const struct mesh *mesh, int margin) WARN_UNUSED;
/* Discards the amax that an evaluation measured. */
status fp8_forget(const struct exec *r) WARN_UNUSED;
/* fp8_reads: whether a linear's forward and dgrad GEMMs read codes when there are so many rows. fp8_reads_wgrad:
 * whether its wgrad GEMM does. */
bool fp8_reads(const struct params *p, int linear, int64_t rows);
bool fp8_reads_wgrad(const struct params *p, int linear, int64_t rows);
#endif
