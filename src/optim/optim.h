/* optim: one optimizer step over the parameter table: global norm, clip, then AdamW or Lion, by role, as one op over
 * flat arrays; then Muon's matrices (muon.h). What changes from step to step is in exec.scalars, so a captured CUDA
 * graph serves every step. */
#ifndef INGOT_OPTIM_OPTIM_H
#define INGOT_OPTIM_OPTIM_H
#include "parallel/exec.h"
#include "optim/offload.h"
#include "optim/grad_norm.h"

/* Number of moments per parameter: 2 (AdamW) or 1 (Lion). Their dtype, by optim.state. */
int optim_moments(enum optim kind);
dtype optim_moment_dt(enum optim_state state);

/* Allocates the tables of chunks and of routers (params.chunks, params.balance), from counting or real arenas. */
void optim_layout(struct params *p, struct arena *a);
/* Fills these tables, once. Matrices have weight decay; embeddings, positions and head if optim.decay_embeddings; norms
 * and biases do not; optim.decay_scale and optim.lr_scale change that by group (rates.h). The step zeroes gradients
 * that are not `gemm_overwrites_grad`, unless they overlay activations (params.overlaid). N-gram tables are updated row
 * by row, at optim.table_rate. `o` is given if the state is in host memory: the chunks are then cut into its pieces.
 * STATUS_CONFIG when a factor names no weight. */
status optim_chunks(struct params *p, const struct run_spec *spec, struct offload *o, dev_stream s) WARN_UNUSED;

/* Under ZeRO, chunks are indexed in the sharded arrays. This offsets the pointers of unsharded arrays, so that the
 * chunks of one unit fit them. */
void optim_shift(const struct params *p, struct update_args *a, int unit);

/* The scalars of step `step` (from 0) that the host computes: bias corrections and the step's number. */
void optim_scalars(const struct run_spec *spec, int64_t step, struct step_scalars *s);
/* Queues the step. It reads lr and the corrections from exec.scalars and writes the gradient norm and the clip factor
 * min(1, clip / (norm + 1e-6)), as torch's clip_grad_norm_. The norm is that of the whole model over all ranks. If a
 * gradient is not finite, the norm is not finite, and nothing is updated. Last, each router's bias moves by
 * balance_rate towards even loads (model.moe_balance_rate; ops_moe.h: balance). `o` as in optim_chunks. */
status optim_step(const struct exec *r, const struct run_spec *spec, const struct grad_norm *norm, struct offload *o,
                  double balance_rate) WARN_UNUSED;
/* The same step in two calls, so that the host can inspect exec.scalars->grad_squares in between. Call optim_zero_grad
 * instead of optim_update to discard the gradients; call it before an optim_update that finds grad_squares not finite,
 * too. It changes nothing but the gradients. */
struct optim_rest { double balance_rate; bool has_norm; /* optim_norm ran */ };
status optim_norm(const struct exec *r, const struct run_spec *spec, const struct grad_norm *norm) WARN_UNUSED;
status optim_update(const struct exec *r, const struct run_spec *spec, const struct grad_norm *norm, struct offload *o,
                    const struct optim_rest *rest) WARN_UNUSED;
status optim_zero_grad(const struct exec *r) WARN_UNUSED;
/* Call after a step that found the norm not finite. Returns STATUS_NUMERIC, whose message names the first parameter,
 * over all ranks, whose gradient is not finite. Waits for the device; collective over `world` (NULL: one rank). */
status optim_find_nonfinite_grad(const struct exec *r, struct comm *world) WARN_UNUSED;
#endif
