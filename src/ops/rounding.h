/* Stochastic rounding of optimizer moments to bf16: up with the probability that makes the mean exact, so that a change far below the
 * last place of a moment is not lost step after step. C and CUDA.
 *
 * Philox gives 128 bits for each group of four elements of a row at (step, index / 4) of the stream RNG_ROUND: one word per element, its lower
 * half for the first moment and its upper half for the second. */
#ifndef INGOT_OPS_ROUNDING_H
#define INGOT_OPS_ROUNDING_H
#include "base/rng.h"
#include "ops/ops.h"

/* The words of four elements of a chunk, from its element k on, a multiple of 4. */
RNG_INLINE struct rng_block rounding_words(uint64_t seed, uint64_t step, const struct update_chunk *c, int64_t k)
{
    int64_t at = c->first + k;
    if (c->width > 0) {
        const uint32_t place = (uint32_t)c->into + (uint32_t)k;
        at = c->first + place / (uint32_t)c->width * c->stride + place % (uint32_t)c->width;
    }
    return rng_at(seed ^ c->key, RNG_ROUND, step, (uint64_t)at / 4);
}

/* The bf16 at or next to the f32 of these bits, for `random` uniform in [0, 2^16). Values that bf16 holds stay; NaN stays NaN. */
RNG_INLINE uint16_t rounding_bf16(uint32_t bits, uint32_t random)
{
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return (uint16_t)((bits + random) >> 16);
}
#endif
