/* The arithmetic of block formats (tensor/block_format.h): scales from the largest magnitude, codes, values, the
 * Hadamard transform. C and CUDA: both compute these F32 operations in this order, so they agree in all bits.
 * Magnitudes are passed as the bits of an F32 without its sign: they sort like the numbers, NaN last.
 *
 * Sources: MX: Transformer Engine and cuBLAS (E8M0 rounded up, so no code saturates). NV: Transformer Engine's
 * reference_nvfp4.py. What is not finite gives values that are NaN or Inf: a code never hides it. */
#ifndef INGOT_OPS_BLOCK_SCALE_H
#define INGOT_OPS_BLOCK_SCALE_H
#include "tensor/block_format.h"
#include "tensor/f8.h"
#include <math.h>

RNG_INLINE float block_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
RNG_INLINE uint32_t block_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
RNG_INLINE uint32_t block_magnitude(float x) { return block_bits(x) & 0x7fffffffu; }
/* 2^e, also for subnormal results. */
RNG_INLINE float block_power(int e)
{
    return block_float(e > -127 ? (uint32_t)(127 + e) << 23 : 1u << (149 + e));
}
RNG_INLINE struct f8_format block_f8(bool e5m2)
{
    const struct f8_format e4m3 = {3, -6, 0x7E}, wide = {2, -14, 0x7B};
    return e5m2 ? wide : e4m3;
}

/* floor(log2(max / amax)) within -126 .. 126, for a finite amax > 0. */
RNG_INLINE int block_exponent(float max, uint32_t amax)
{
    int exponent = (int)(amax >> 23) - 127;
    while (exponent <= -127 && !(amax & 0x800000u)) amax <<= 1, exponent--; /* subnormal */
    exponent = exponent <= -127 ? exponent + 1 : exponent;
    const int e = (int)(block_bits(max) >> 23) - 127 - exponent - ((amax & 0x7fffffu) > (block_bits(max) & 0x7fffffu));
    return e > 126 ? 126 : e < -126 ? -126 : e;
}

/* What x is multiplied with before it is rounded to a code; what the code's value is multiplied with. */
struct block_scale {
    float encode, decode;
    uint8_t code;               /* MX: E8M0, NV: E4M3 */
};

/* NV's scale of the tensor, which maps amax to E2M1's and E4M3's largest values at once: 6 * 448 / amax. `exact`: as
 * the reference has it. Else a power of two below that, so that values are exact in bf16; it costs one of E4M3's 15
 * binades. */
RNG_INLINE float block_tensor_encode(enum block_format f, uint32_t amax, bool exact)
{
    const float nan = block_float(0x7fc00000u), most = block_float(0x7f7fffffu);
    if (amax >= 0x7f800000u) return nan;
    if (amax == 0) return 1;
    if (f == BLOCKS_E4M3) return block_power(block_exponent(448, amax));
    if (f == BLOCKS_E5M2) return block_power(block_exponent(57344, amax));
    if (!exact) return block_power(block_exponent(2688, amax));
    const float s = 2688.f / block_float(amax);
    return s > most ? most : s == 0 ? 1 : s;
}
RNG_INLINE struct block_scale block_scale_mx(uint32_t amax)
{
    struct block_scale s = {0, 0, 0};
    const uint32_t bits = block_bits(block_float(amax) * (1.f / 448)), e = bits >> 23, m = bits & 0x7fffffu;
    const bool up = m > 0 && e != 0xFE && !(e == 0 && m <= 0x400000u);
    s.code = amax > 0x7f800000u ? 0xFF : amax == 0x7f800000u ? 0xFE : (uint8_t)(e + up);
    s.encode = s.code == 0xFF ? block_float(0x7fc00000u) : block_power(127 - s.code);
    s.decode = s.code == 0xFF ? block_float(0x7fc00000u) : block_power(s.code - 127);
    return s;
}
RNG_INLINE struct block_scale block_scale_nv(uint32_t amax, float tensor)
{
    struct block_scale s = {0, 0, 0x7F};
    const float nan = block_float(0x7fc00000u), most = block_float(0x7f7fffffu);
    s.encode = s.decode = nan;
    if (tensor != tensor) return s; /* the tensor has a NaN or an Inf */
    const float raw = block_float(amax) * (tensor * (1.f / 6));
    s.code = f8_encode(block_f8(false), raw > 448 ? 448 : raw);
    const struct f8_parts p = f8_split(block_f8(false), s.code);
    const float b = (float)p.significand * block_power(p.exponent - 3), inverse = 1 / (b * (1 / tensor));
    s.encode = inverse > most ? most : inverse;
    s.decode = b * (1 / tensor);
    return s;
}
/* Of one block, from its largest magnitude; of formats without blocks from the tensor's. `tensor`:
 * block_tensor_encode. */
RNG_INLINE struct block_scale block_scale_of(enum block_format f, uint32_t amax, float tensor)
{
    struct block_scale s = {0, 0, 0};
    if (f == BLOCKS_MX) return block_scale_mx(amax);
    if (f == BLOCKS_NV) return block_scale_nv(amax, tensor);
    s.encode = f == BLOCKS_B128 ? block_tensor_encode(BLOCKS_E4M3, amax, false) : tensor;
    s.decode = 1 / s.encode;
    return s;
}

/* Nearest, ties to the even code; `a` is the magnitude. 0 .5 1 1.5 2 3 4 6; what is larger becomes 6. */
RNG_INLINE uint8_t block_e2m1_nearest(float a)
{
    return (uint8_t)((a > .25f) + (a >= .75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5));
}
/* Up with the probability that makes the mean exact, for `random` uniform in [0, 2^16). */
RNG_INLINE uint8_t block_e2m1_random(float a, uint32_t random)
{
    if (!(a < 6)) return 7;
    const float step = a < 2 ? .5f : a < 4 ? 1.f : 2.f; /* 0 .. 2 has 4 steps, 2 .. 4 has 2, 4 .. 6 has 1 */
    const int low = a < 2 ? 0 : a < 4 ? 2 : 4;
    return (uint8_t)(low + (int)(a / step + (float)random * 0x1p-16f));
}
enum { BLOCK_NEAREST = -1 };
/* random: 16 bits, or BLOCK_NEAREST; NV alone rounds at random. */
RNG_INLINE uint8_t block_encode(enum block_format f, float x, float encode, int random)
{
    const float scaled = x * encode;
    if (f != BLOCKS_NV) return f8_encode(block_f8(f == BLOCKS_E5M2), scaled);
    const float a = block_float(block_magnitude(scaled));
    const uint8_t code = random == BLOCK_NEAREST ? block_e2m1_nearest(a) : block_e2m1_random(a, (uint32_t)random);
    return (uint8_t)(code | (block_bits(scaled) >> 28 & 8));
}
/* code * decode */
RNG_INLINE float block_value(enum block_format f, uint8_t code, float decode)
{
    float v;
    if (f == BLOCKS_NV) {
        const int c = code & 7;
        v = c < 2 ? (float)c / 2 : (1 + (float)(c & 1) / 2) * (float)(1 << ((c >> 1) - 1));
        v = code & 8 ? -v : v;
    } else {
        const struct f8_format f8 = block_f8(f == BLOCKS_E5M2);
        if (!f8_is_finite(f8, code)) return block_float(0x7fc00000u);
        const struct f8_parts p = f8_split(f8, code);
        v = (float)p.significand * block_power(p.exponent - f8.mantissa);
        v = code == 0x80 ? -0.f : v;
    }
    return v * decode;
}

/* 16 elements of a line times the 16 x 16 Hadamard matrix / 4, after a change of signs (NVFP4's). It is orthogonal: two
 * operands that are both rotated along k have the product of the originals. */
RNG_INLINE void block_rotate(float x[16])
{
    const uint32_t minus = 0xD7E8u; /* bit i: element i changes its sign */
    for (int i = 0; i < 16; i++) x[i] = minus >> i & 1 ? -x[i] : x[i];
    for (int h = 1; h < 16; h *= 2)
        for (int i = 0; i < 16; i++)
            if ((i & h) == 0) {
                const float a = x[i], b = x[i + h];
                x[i] = a + b;
                x[i + h] = a - b;
            }
    for (int i = 0; i < 16; i++) x[i] *= .25f;
}
#endif
