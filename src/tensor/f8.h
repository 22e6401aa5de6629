/* E4M3 and E5M2: the two 8-bit floats of FP8 training.
 *
 *            sign, exponent, mantissa   largest        smallest normal, subnormal   Inf    NaN
 *   E4M3     1, 4, 3                    448   (0x7E)   2^-6,  2^-9                  none   0x7F
 *   E5M2     1, 5, 2                    57344 (0x7B)   2^-14, 2^-16                 0x7C   0x7D to 0x7F
 *
 * Encoding rounds to nearest, ties to even, and saturates: what is too large, and Inf, becomes the largest value. NaN
 * becomes 0x7F. These are the bits of the GPU's cvt.rn.satfinite (tests/ops/gpu_fp8_codes.c compares all 2^32 floats).
 * Every value is exact in bf16, so a product of two is exact in f32. Source: "FP8 Formats for Deep Learning", arXiv
 * 2209.05433, tables 1 and 2. */
#ifndef INGOT_TENSOR_F8_H
#define INGOT_TENSOR_F8_H
#include "base/rng.h"
#include <stdbool.h>
#include <string.h>

struct f8_format {
    int mantissa;               /* bits */
    int emin;                   /* exponent of the smallest normal */
    uint8_t max;                /* code of the largest value */
};
static const struct f8_format f8_e4m3 = {3, -6, 0x7E}, f8_e5m2 = {2, -14, 0x7B};

RNG_INLINE uint8_t f8_encode(struct f8_format f, float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    const uint32_t sign = u >> 24 & 0x80, size = u & 0x7fffffffu;
    if (size > 0x7f800000u) return 0x7F;
    int exponent = (int)(size >> 23) - 127, drop = 23 - f.mantissa; /* bits of the significand that the code lacks */
    if (exponent < f.emin) drop += f.emin - exponent, exponent = f.emin;
    if (drop > 24) return (uint8_t)sign; /* below half of the smallest value; f32's subnormals are far below */
    const uint32_t s = (size & 0x7fffffu) | 0x800000u;
    const uint32_t rounded = (s + (1u << (drop - 1)) - 1 + (s >> drop & 1)) >> drop;
    const uint32_t code = ((uint32_t)(exponent - f.emin) << f.mantissa) + rounded; /* a carry moves into the exponent */
    return (uint8_t)(sign | (code < f.max ? code : f.max));
}

/* A code's parts. A subnormal code has exponent emin. */
struct f8_parts {
    int significand;            /* in units of 2^(exponent - mantissa), with the sign */
    int exponent;
};
RNG_INLINE struct f8_parts f8_split(struct f8_format f, uint8_t code)
{
    const int biased = (code & 0x7F) >> f.mantissa, low = code & ((1 << f.mantissa) - 1);
    const int s = biased ? low | 1 << f.mantissa : low;
    struct f8_parts p = {code & 0x80 ? -s : s, f.emin + (biased ? biased - 1 : 0)};
    return p;
}
/* All codes above the largest value: NaN, and E5M2's Inf. */
RNG_INLINE bool f8_is_finite(struct f8_format f, uint8_t code) { return (code & 0x7F) <= f.max; }

float f8_decode(struct f8_format f, uint8_t code);
#endif
