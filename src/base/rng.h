/* Counter-based random numbers: a pure function of (seed, stream, a, b), so any resume and any thread count draws the same.
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC'11). */
#ifndef INGOT_BASE_RNG_H
#define INGOT_BASE_RNG_H
#include <stdint.h>

enum rng_stream { RNG_INIT = 1, RNG_SHUFFLE = 2, RNG_SAMPLE = 3, RNG_ROUND = 4, RNG_TEST = 5 };

struct rng_block { uint32_t u[4]; };

/* The 128 random bits at counter (a, b) of the stream. */
struct rng_block rng_at(uint64_t seed, enum rng_stream stream, uint64_t a, uint64_t b);
double rng_uniform(uint64_t seed, enum rng_stream stream, uint64_t a, uint64_t b);       /* [0, 1), 53 bits */
double rng_normal(uint64_t seed, enum rng_stream stream, uint64_t a, uint64_t b);        /* N(0, 1), Box-Muller */
#endif
