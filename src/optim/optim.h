/* One optimizer step over the parameter table: global norm, clip, AdamW or Lion by role, gradients zeroed on the way. */
#ifndef INGOT_OPTIM_OPTIM_H
#define INGOT_OPTIM_OPTIM_H
#include "nn/run.h"

/* Moments that an optimizer keeps per parameter: 2 (AdamW) or 1 (Lion). */
int optim_moments(enum optim kind);

/* What the host knows of step `step` (counts from 0): the corrections and the step's number. */
void optim_scalars(const struct run_spec *spec, int64_t step, struct step_scalars *s);
/* Queues the step: reads lr and the corrections from run.scalars, writes the gradient norm and the clip factor min(1, clip / (norm +
 * 1e-6)), as torch's clip_grad_norm_. Matrices decay; embeddings, positions and head when optim.decay_embeddings says so; norms and
 * biases never. When a gradient is not finite, neither is the norm, and nothing is changed. */
status optim_step(const struct run *r, const struct run_spec *spec) WARN_UNUSED;
/* After such a step: STATUS_NUMERIC that names the first parameter with a gradient that is not finite. */
status optim_blame(const struct run *r) WARN_UNUSED;
#endif
