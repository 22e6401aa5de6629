/* Stochastic rounding of optimizer moments to bf16: up with the probability that makes the mean exact, so that a change far below the
 * last place of a moment is not lost step after step. C and CUDA.
 *
 * Philox gives 128 bits for each group of four elements at (step, index / 4) of the stream RNG_ROUND: one word per element, its lower
 * half for the first moment and its upper half for the second. */
#ifndef INGOT_OPS_ROUNDING_H
#define INGOT_OPS_ROUNDING_H
#include "base/rng.h"

/* The words of elements [4 group, 4 group + 4). */
RNG_INLINE struct rng_block rounding_words(uint64_t seed, uint64_t step, uint64_t group)
{
    return rng_at(seed, RNG_ROUND, step, group);
}

/* The bf16 at or next to the f32 of these bits, for `random` uniform in [0, 2^16). Values that bf16 holds stay; NaN stays NaN. */
RNG_INLINE uint16_t rounding_bf16(uint32_t bits, uint32_t random)
{
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return (uint16_t)((bits + random) >> 16);
}
#endif
