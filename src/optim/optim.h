/* One optimizer step over the parameter table: global norm, clip, AdamW or Lion by role, gradients zeroed on the way. */
#ifndef INGOT_OPTIM_OPTIM_H
#define INGOT_OPTIM_OPTIM_H
#include "nn/run.h"

/* Moments that an optimizer keeps per parameter: 2 (AdamW) or 1 (Lion). */
int optim_moments(enum optim kind);

struct optim_result { double grad_norm, grad_norm_clipped; };
/* step counts from 0. Clip factor min(1, clip / (norm + 1e-6)), as torch's clip_grad_norm_. Matrices decay; embeddings, positions and
 * head when optim.decay_embeddings says so; norms and biases never. STATUS_NUMERIC names the first parameter with a gradient that is not
 * finite; nothing was changed then. */
status optim_step(const struct run *r, const struct run_spec *spec, int64_t step, double lr, struct optim_result *out) WARN_UNUSED;
#endif
