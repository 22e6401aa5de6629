/* Rounding in the optimizer. C and CUDA.
 *
 * Split master weights. An f32 weight is stored without loss in two parts: the bf16 that GEMMs read, and `low`, its
 * lower 16 bits. The bf16 is (bits + 0x8000) >> 16: the nearest one, and the one further from 0 for ties. low, as a
 * signed number, is then the error of the bf16. (With ties to even, low could be +0x8000, which does not fit in an
 * int16.) Every conversion from master weights to weights rounds this way, so all ways of storing them train the same
 * bits.
 *
 * Weights without a master are stored only in bf16. The result of each step is rounded to bf16 stochastically, like
 * moments.
 *
 * Moments are rounded to bf16 stochastically: up with the probability that makes the mean exact. Repeated small
 * changes, far below the last place of a moment, are therefore not lost. Philox gives 128 bits for each group of four
 * elements of a row, at (step, index / 4) of the stream RNG_ROUND: one word per element. The lower half of the word
 * rounds the first moment, the upper half the second. A weight without a master uses rounding_third of that word: a
 * word of its own would double the arithmetic and make the optimizer compute bound. */
#ifndef INGOT_OPS_ROUNDING_H
#define INGOT_OPS_ROUNDING_H
#include "base/rng.h"
#include "ops/ops.h"

struct half_pair {
    uint16_t upper, low;
};
/* Splits the f32 of these bits. NaN stays NaN but loses its payload. */
RNG_INLINE struct half_pair rounding_halves(uint32_t bits)
{
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const struct half_pair h = {(uint16_t)(nan ? 0x7fc0u : (bits + 0x8000u) >> 16), (uint16_t)(nan ? 0u : bits)};
    return h;
}
/* The bits of the f32 that was split. */
RNG_INLINE uint32_t rounding_joined(uint16_t upper, uint16_t low)
{
    return ((uint32_t)upper << 16) + (uint32_t)(int16_t)low;
}

/* The random words of four elements of a chunk, from its element k on; k is a multiple of 4. */
RNG_INLINE struct rng_block rounding_words(uint64_t seed, uint64_t step, const struct update_chunk *c, int64_t k)
{
    int64_t at = c->first + k;
    if (c->width > 0) {
        const uint32_t place = (uint32_t)c->col_offset + (uint32_t)k;
        at = c->first + place / (uint32_t)c->width * c->stride + place % (uint32_t)c->width;
    }
    return rng_at(seed ^ c->key, RNG_ROUND, step, (uint64_t)at / 4);
}

/* 16 more bits from a word. Together with either half of the word, the pair takes all values with equal probability:
 * exactly for a given lower half, because an odd factor permutes the upper halves; for a given upper half as nearly
 * as multiples of 40503.47 fill [0, 2^16). */
RNG_INLINE uint32_t rounding_third(uint32_t word)
{
    return (word * 0x9E3779B1u) >> 16;
}

/* Rounds the f32 of these bits to bf16, for `random` uniform in [0, 2^16). Values that bf16 represents do not change;
 * NaN stays NaN. */
RNG_INLINE uint16_t rounding_bf16(uint32_t bits, uint32_t random)
{
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return (uint16_t)((bits + random) >> 16);
}
#endif
