/* Initialisation: a pure function of (seed, parameter name, element): any layout draws the same weights.
 * Matrices and tables are N(0, init_std); matrices that write to the residual stream N(0, init_std / sqrt(2 L)) (GPT-2); norms and
 * biases are constants. */
#ifndef INGOT_MODEL_INIT_H
#define INGOT_MODEL_INIT_H
#include "model/decoder.h"
/* Master weights and what is read of them, in the run's memory; under ZeRO zero_all_gather_weights is due behind that. Queued. */
status init_weights(struct decoder *d, const struct exec *r, uint64_t seed) WARN_UNUSED;
#endif
