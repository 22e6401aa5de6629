/* One optimizer step over the parameter table: global norm, clip, AdamW or Lion by role, in one op over the flat arrays. What changes
 * from step to step lies in run.scalars, so that a captured step is every step. */
#ifndef INGOT_OPTIM_OPTIM_H
#define INGOT_OPTIM_OPTIM_H
#include "parallel/exec.h"
#include "optim/offload.h"
#include "optim/grad_norm.h"

/* Moments that an optimizer keeps per parameter: 2 (AdamW) or 1 (Lion). Their type, by optim.state. */
int optim_moments(enum optim kind);
dtype optim_moment_dt(enum optim_state state);

/* Takes the tables of pieces and of routers (params.chunks, params.balance): counting or real. */
void optim_lay(struct params *p, struct arena *a);
/* Fills it, once: matrices decay; embeddings, positions and head when optim.decay_embeddings says so; norms and biases never. What is
 * not `stored` leaves the step with gradients of zero, unless activations take their place (params.overlaid). Tables move row by row, at optim.table_rate. `o`: cut into pieces, too, where the state
 * is in host memory; NULL: it is not. */
status optim_chunks(struct params *p, const struct run_spec *spec, struct offload *o, dev_stream s) WARN_UNUSED;

/* With ZeRO pieces are counted by the arrays of parts: arrays that are whole are moved to where they count so, for the pieces of a unit. */
void optim_shift(const struct params *p, struct update_args *a, int unit);

/* What the host knows of step `step` (counts from 0): the corrections and the step's number. */
void optim_scalars(const struct run_spec *spec, int64_t step, struct step_scalars *s);
/* Queues the step: reads lr and the corrections from run.scalars, writes the gradient norm and the clip factor min(1, clip / (norm +
 * 1e-6)), as torch's clip_grad_norm_; the norm is that of the whole model, whatever ranks share it. When a gradient is not finite, neither is the norm, and nothing is changed.
 * Then each router's bias moves by balance_rate towards even loads (model.moe_balance_rate; ops_moe.h: balance). `o` as in optim_chunks. */
status optim_step(const struct exec *r, const struct run_spec *spec, const struct grad_norm *squares, struct offload *o, double balance_rate)
    WARN_UNUSED;
/* After such a step: STATUS_NUMERIC that names the first parameter, of all ranks, with a gradient that is not finite. Waits for the device;
 * collective over `world` (NULL: one rank). */
status optim_blame(const struct exec *r, struct comm *world) WARN_UNUSED;
#endif
