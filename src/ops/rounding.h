/* How the optimizer rounds. C and CUDA.
 *
 * Weights: an f32 is kept as two halves, which lose nothing: the bf16 that GEMMs read, and `low`, its lower 16 bits. The bf16 is the bits
 * plus 0x8000, shifted: the nearest one, and of two equally near the one further from 0, so that low as a signed number is what the bf16 is
 * off. (Of the nearest even, low could be +0x8000, which no int16 is.) All that makes weights of masters rounds so, that every way of storing
 * them trains the same bits.
 *
 * Weights without a master are that bf16 alone, and each step's result is rounded to it stochastically, as moments are.
 *
 * Moments: stochastic rounding to bf16: up with the probability that makes the mean exact, so that a change far below the last place of a
 * moment is not lost step after step. Philox gives 128 bits for each group of four elements of a row at (step, index / 4) of the stream RNG_ROUND: one word per element, its lower
 * half for the first moment and its upper half for the second. A weight alone takes what rounding_third makes of that word: half the arithmetic of a word of its own, which
 * would bound the optimizer. */
#ifndef INGOT_OPS_ROUNDING_H
#define INGOT_OPS_ROUNDING_H
#include "base/rng.h"
#include "ops/ops.h"

struct half_pair {
    uint16_t upper, low;
};
/* Of the f32 of these bits; NaN stays one, but loses its bits. */
RNG_INLINE struct half_pair rounding_halves(uint32_t bits)
{
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const struct half_pair h = {(uint16_t)(nan ? 0x7fc0u : (bits + 0x8000u) >> 16), (uint16_t)(nan ? 0u : bits)};
    return h;
}
/* The bits of the f32 of two halves. */
RNG_INLINE uint32_t rounding_joined(uint16_t upper, uint16_t low)
{
    return ((uint32_t)upper << 16) + (uint32_t)(int16_t)low;
}

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

/* 16 bits more of a word: with either half of it a pair that takes all values alike. Of a given lower half exactly, since an odd factor turns
 * the upper halves among each other; of a given upper half as nearly as multiples of 40503.47 fill [0, 2^16). */
RNG_INLINE uint32_t rounding_third(uint32_t word)
{
    return (word * 0x9E3779B1u) >> 16;
}

/* The bf16 at or next to the f32 of these bits, for `random` uniform in [0, 2^16). Values that bf16 holds stay; NaN stays NaN. */
RNG_INLINE uint16_t rounding_bf16(uint32_t bits, uint32_t random)
{
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return (uint16_t)((bits + random) >> 16);
}
#endif
