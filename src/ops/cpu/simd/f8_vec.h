/* FP8 codes to f32, 8 or 16 at a time, times a power of two: exact. Plain vector C, so that every instruction set and
 * the AMX files compile the same code. The upper half of a result is the bf16, also exact. */
#ifndef INGOT_OPS_CPU_SIMD_F8_VEC_H
#define INGOT_OPS_CPU_SIMD_F8_VEC_H
#include "base/status.h"
#include "ops/ops.h"
#include "tensor/f8.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A code, without its sign, shifted to the place of an f32's exponent and significand. Subnormal codes get an implied
 * one like the others, with twice the exponent of the least normal code below them; `offset` takes it away again. */
struct f8_decoder {
    int shift;
    uint32_t normal;            /* what is added: exponents count from another zero */
    int32_t least_normal, special; /* codes from `special` on are NaN or Inf */
    uint32_t offset;            /* bits of an f32 */
};
enum { F8_EXPONENT_MAX = 100 }; /* of the power of two: results are normal numbers */

static inline struct f8_decoder f8_decoder(dtype dt, int exponent)
{
    const struct f8_format f = dt == DTYPE_F8_E4M3 ? f8_e4m3 : f8_e5m2;
    CHECK((dt == DTYPE_F8_E4M3 || dt == DTYPE_F8_E5M2) && abs(exponent) <= F8_EXPONENT_MAX, "%s times 2^%d",
          dtype_name(dt), exponent);
    return (struct f8_decoder){.shift = 23 - f.mantissa,
                               .normal = (uint32_t)(127 + f.emin - 1 + exponent) << 23,
                               .least_normal = 1 << f.mantissa,
                               .special = f.max + 1,
                               .offset = (uint32_t)(127 + f.emin + exponent) << 23};
}

/* f8_bits_N(at, d): the f32 bits of N codes. */
#define F8_LANES(N)                                                                                                    \
    typedef uint8_t f8_codes_##N __attribute__((vector_size(N)));                                                      \
    typedef uint32_t f8_u32_##N __attribute__((vector_size(4 * N)));                                                   \
    typedef int32_t f8_i32_##N __attribute__((vector_size(4 * N)));                                                    \
    typedef float f8_f32_##N __attribute__((vector_size(4 * N)));                                                      \
    static inline __attribute__((always_inline)) f8_u32_##N f8_bits_##N(const uint8_t *at, const struct f8_decoder *d) \
    {                                                                                                                  \
        f8_codes_##N codes;                                                                                            \
        memcpy(&codes, at, sizeof codes);                                                                              \
        const f8_u32_##N x = __builtin_convertvector(codes, f8_u32_##N), size = x & 0x7fu, moved = size << d->shift,   \
                         low = (f8_u32_##N)((f8_i32_##N)size < d->least_normal),                                       \
                         special = (f8_u32_##N)((f8_i32_##N)size >= d->special);                                       \
        const f8_f32_##N v = (f8_f32_##N)(moved + d->normal + (low & 1u << 23)) - (f8_f32_##N)(low & d->offset);       \
        const f8_u32_##N bits = (f8_u32_##N)v;                                                                         \
        return (~special & bits) | (special & (moved | 0x7f800000u)) | (x & 0x80u) << 24;                              \
    }
F8_LANES(8)
#ifdef __AVX512F__
F8_LANES(16)
#endif

/* The product of both scales is split between the operands: each then stays among the normal numbers of f32 and bf16.
 * Powers of two commute with every rounding, so the sums are those of the plain codes, scaled. Beyond 2^200, and below
 * 2^-200, every result is Inf or 0 in any case. */
struct f8_exponents {
    int a, b;
};
static inline int f8_exponent(const float *scale)
{
    int e;
    CHECK(frexpf(*scale, &e) == 0.5f, "a scale of %g is no power of two", (double)*scale);
    return e - 1;
}
static inline struct f8_exponents f8_exponents(const struct gemm_args *g)
{
    if (!gemm_fp8(g)) return (struct f8_exponents){0, 0};
    int e = f8_exponent(g->a.scale) + f8_exponent(g->b.scale);
    if (e > 2 * F8_EXPONENT_MAX) e = 2 * F8_EXPONENT_MAX;
    if (e < -2 * F8_EXPONENT_MAX) e = -2 * F8_EXPONENT_MAX;
    return (struct f8_exponents){e / 2, e - e / 2};
}
/* What every set asks of an FP8 GEMM. */
static inline void f8_check(const struct gemm_args *g)
{
    CHECK(g->a.scales == SCALES_TENSOR, "codes with scales of blocks: decode them first");
    CHECK(!g->a.trans && g->b.trans, "FP8 operands that are not contiguous along k");
    CHECK(g->k % 16 == 0 && g->n % 16 == 0, "FP8 GEMM of n %lld, k %lld", (long long)g->n, (long long)g->k);
    CHECK(g->cdt == DTYPE_BF16 || g->cdt == DTYPE_F32, "FP8 GEMM into %s", dtype_name(g->cdt));
}
#endif
