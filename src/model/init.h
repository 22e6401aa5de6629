/* Initialisation: a pure function of (seed, parameter name, element), so every parallel layout draws the same
 * weights. Matrices and tables are N(0, init_std); matrices that write to the residual stream N(0, init_std /
 * sqrt(2 L)) (GPT-2); norms and biases are constants. */
#ifndef INGOT_MODEL_INIT_H
#define INGOT_MODEL_INIT_H
#include "model/decoder.h"
/* Queues the initialisation of master weights and their copies in the run's memory. With ZeRO, call
 * zero_all_gather_weights afterwards. */
status init_weights(struct decoder *d, const struct exec *r, uint64_t seed) WARN_UNUSED;
#endif
