/* Vector functions (vec.h): minimum, maximum, square root, sums over lanes, e^x, the logistic function. */
#ifndef INGOT_OPS_CPU_SIMD_VECMATH_H
#define INGOT_OPS_CPU_SIMD_VECMATH_H
#include "ops/cpu/simd/vec.h"
#include <stdbool.h>

/* vec_clamp keeps NaN in x. vec_max returns y if either is NaN. vec_swap exchanges neighbouring lanes. */
#ifdef __AVX512F__
VEC_INLINE vf vec_sqrt(vf x)
{
    return (vf)_mm512_sqrt_ps((__m512)x);
}
VEC_INLINE vf vec_max(vf x, vf y)
{
    return (vf)_mm512_max_ps((__m512)x, (__m512)y);
}
VEC_INLINE vf vec_clamp(vf x, float low, float high)
{
    return (vf)_mm512_min_ps((__m512)vec_set(high), _mm512_max_ps((__m512)vec_set(low), (__m512)x));
}
/* x 2^n with n rounded down; a subnormal result is rounded once. */
VEC_INLINE vf vec_scale(vf x, vf n)
{
    return (vf)_mm512_scalef_ps((__m512)x, (__m512)n);
}
VEC_INLINE bool vec_any_above(vf x, float y)
{
    return _mm512_cmp_ps_mask((__m512)x, (__m512)vec_set(y), _CMP_GT_OQ) != 0;
}
VEC_INLINE vf vec_swap(vf x)
{
    return (vf)_mm512_permute_ps((__m512)x, 0xb1);
}
VEC_INLINE __m256 vec_half(vf x, int upper)
{
    return upper ? _mm512_extractf32x8_ps((__m512)x, 1) : _mm512_castps512_ps256((__m512)x);
}
#elif defined __aarch64__
VEC_INLINE vf vec_sqrt(vf x)
{
    return (vf)vsqrtq_f32((float32x4_t)x);
}
VEC_INLINE vf vec_max(vf x, vf y)
{
    return vec_select(x > y, x, y);
}
VEC_INLINE vf vec_clamp(vf x, float low, float high)
{
    const vf above = vec_select(vec_set(low) > x, vec_set(low), x);
    return vec_select(vec_set(high) < above, vec_set(high), above);
}
VEC_INLINE vf vec_swap(vf x)
{
    return (vf)vrev64q_f32((float32x4_t)x);
}
VEC_INLINE bool vec_any_above(vf x, float y)
{
    return vmaxvq_u32((uint32x4_t)(x > vec_set(y))) != 0;
}
/* Multiplies in two steps, as with AVX2. */
VEC_INLINE vf vec_scale(vf x, vf n)
{
    vi k = (vi)vcvtnq_s32_f32((float32x4_t)n), half = k >> 1;
    return x * (vf)((vu)(half + 127) << 23) * (vf)((vu)(k - half + 127) << 23);
}
#else
VEC_INLINE vf vec_sqrt(vf x)
{
    return (vf)_mm256_sqrt_ps((__m256)x);
}
VEC_INLINE vf vec_max(vf x, vf y)
{
    return (vf)_mm256_max_ps((__m256)x, (__m256)y);
}
VEC_INLINE vf vec_clamp(vf x, float low, float high)
{
    return (vf)_mm256_min_ps((__m256)vec_set(high), _mm256_max_ps((__m256)vec_set(low), (__m256)x));
}
VEC_INLINE vf vec_swap(vf x)
{
    return (vf)_mm256_permute_ps((__m256)x, 0xb1);
}
VEC_INLINE bool vec_any_above(vf x, float y)
{
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)x, (__m256)vec_set(y), _CMP_GT_OQ)) != 0;
}
/* Multiplies in two steps, because each power of two must be a normal number for |n| <= 252. */
VEC_INLINE vf vec_scale(vf x, vf n)
{
    vi k = (vi)_mm256_cvtps_epi32((__m256)n), half = k >> 1;
    return x * (vf)((vu)(half + 127) << 23) * (vf)((vu)(k - half + 127) << 23);
}
#endif

/* Sum and maximum over the lanes, by halving: a fixed order. */
#ifdef __aarch64__
VEC_INLINE float vec_sum(vf x) { return (x[0] + x[2]) + (x[1] + x[3]); }
VEC_INLINE float vec_top(vf x) { return vmaxnmvq_f32((float32x4_t)x); }
#else
VEC_INLINE float vec_sum(vf x)
{
#ifdef __AVX512F__
    __m256 y = _mm256_add_ps(vec_half(x, 0), vec_half(x, 1));
#else
    __m256 y = (__m256)x;
#endif
    __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_add_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}
VEC_INLINE float vec_top(vf x)
{
#ifdef __AVX512F__
    __m256 y = _mm256_max_ps(vec_half(x, 0), vec_half(x, 1));
#else
    __m256 y = (__m256)x;
#endif
    __m128 z = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_max_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
}
#endif

/* e^x for x in [-105, 89]: x = n ln 2 + r with |r| <= ln(2)/2; e^x = 2^n e^r; e^r = 1 + r + r^2 q(r). q has degree 4
 * (Chebyshev fit computed in 40 digits, relative error of e^r below 1.2e-8). ln 2 is split in two: n times its head
 * is exact. +inf above 88.73, subnormal below -87.34, 0 below -103.98, NaN for NaN. */
VEC_INLINE vf vec_exp_within(vf x)
{
    const float round_at =
        12582912.f; /* 1.5 x 2^23: adding it leaves the nearest integer in the low mantissa */
    vf n = (x * 1.44269504f + round_at) - round_at;
    vf r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vf q = vec_set(1.3926926614e-3f);
    q = q * r + 8.36377387441e-3f;
    q = q * r + 4.16665501103e-2f;
    q = q * r + 1.66665733819e-1f;
    q = q * r + 0.5f;
    q = q * r + 1.f;
    return vec_scale(q * r + 1.f, n);
}
VEC_INLINE vf vec_exp(vf x)
{
    return vec_exp_within(vec_clamp(x, -105.f, 89.f));
}

/* 2^x for x in [-126, 127]: x = n + f; 2^x = 2^n 2^f; 2^f = 1 + f q(f). q has degree 5 (Chebyshev fit computed in 40
 * digits, relative error of 2^f below 6e-9). NaN for NaN. */
VEC_INLINE vf vec_exp2_within(vf x)
{
#ifdef __AVX512F__
    /* n is x rounded down, as the hardware instruction for 2^n does: f is in [0, 1) */
    const vf f = (vf)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF);
    vf q = vec_set(2.08179150435e-4f);
    q = q * f + 1.26921660691e-3f;
    q = q * f + 9.65219505601e-3f;
    q = q * f + 5.54960235640e-2f;
    q = q * f + 2.40227204181e-1f;
    q = q * f + 6.93147170865e-1f;
    return vec_scale(q * f + 1.f, x);
#else
    /* n is x rounded to nearest: the low bits of x + 1.5 x 2^23 hold it, and a shift makes it an exponent */
    const float round_at = 12582912.f;
    const vf t = x + round_at, f = x - (t - round_at);
    vf q = vec_set(1.54531629451e-4f);
    q = q * f + 1.33908633647e-3f;
    q = q * f + 9.61808255728e-3f;
    q = q * f + 5.55035711422e-2f;
    q = q * f + 2.40226507606e-1f;
    q = q * f + 6.93147188026e-1f;
    return (q * f + 1.f) * (vf)(((vu)t << 23) + 0x3f800000u);
#endif
}

/* 1/x for x in [2^-126, 2^126], accurate to one or two units in the last place: a 14-bit estimate and a Newton step. */
VEC_INLINE vf vec_reciprocal(vf x)
{
#ifdef __AVX512F__
    vf y = (vf)_mm512_rcp14_ps((__m512)x);
    return y + y * (1.f - x * y);
#else
    return 1.f / x;
#endif
}

/* 1/(1 + e^-x) and its complement 1 - sigmoid(x), each without cancellation. Callers clamp x to |x| <= SIGMOID_END,
 * where both are still normal numbers. */
static const float SIGMOID_END = 87.f;
struct vec_sigmoid {
    vf yes, no;
};
VEC_INLINE struct vec_sigmoid vec_sigmoid(vf x)
{
    vf e = vec_exp_within(-x), yes = vec_reciprocal(1.f + e);
    return (struct vec_sigmoid){yes, e * yes};
}
#endif
