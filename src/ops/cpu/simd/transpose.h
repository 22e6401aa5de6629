/* Eight floats at a time, whatever a register holds, and 8 x 8 blocks transposed in registers: for packing matmul
 * operands and for dot products along memory. */
#ifndef INGOT_OPS_CPU_SIMD_TRANSPOSE_H
#define INGOT_OPS_CPU_SIMD_TRANSPOSE_H
#include "tensor/dtype.h"

static inline float load1(const void *p, int64_t i, dtype dt)
{
    return dt == DTYPE_F32 ? ((const float *)p)[i] : bf16_to_f32(((const bf16 *)p)[i]);
}

#ifdef __aarch64__
#include <arm_neon.h>
typedef struct {
    float32x4_t low, high;
} f32x8;

static inline f32x8 load8(const void *p, int64_t i, dtype dt)
{
    if (dt == DTYPE_F32) return (f32x8){vld1q_f32((const float *)p + i), vld1q_f32((const float *)p + i + 4)};
    const uint16x8_t h = vld1q_u16((const bf16 *)p + i);
    return (f32x8){vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vget_low_u16(h)), 16)),
                   vreinterpretq_f32_u32(vshlq_n_u32(vmovl_high_u16(h), 16))};
}
static inline void store8(float *p, f32x8 x)
{
    vst1q_f32(p, x.low);
    vst1q_f32(p + 4, x.high);
}
/* x y + sum, rounded once. */
static inline f32x8 fused8(f32x8 x, f32x8 y, f32x8 sum)
{
    return (f32x8){vfmaq_f32(sum.low, x.low, y.low), vfmaq_f32(sum.high, x.high, y.high)};
}
static inline f32x8 add8(f32x8 x, f32x8 y)
{
    return (f32x8){vaddq_f32(x.low, y.low), vaddq_f32(x.high, y.high)};
}
static inline float sum8(f32x8 s)
{
    const float32x4_t t = vaddq_f32(s.low, s.high);
    return (t[0] + t[1]) + (t[2] + t[3]);
}

/* to[j][i] = r[i][j] */
static inline __attribute__((always_inline)) void transpose4(const float32x4_t r[4], float32x4_t to[4])
{
    const float64x2_t a = (float64x2_t)vtrn1q_f32(r[0], r[1]), b = (float64x2_t)vtrn2q_f32(r[0], r[1]),
                      c = (float64x2_t)vtrn1q_f32(r[2], r[3]), d = (float64x2_t)vtrn2q_f32(r[2], r[3]);
    to[0] = (float32x4_t)vtrn1q_f64(a, c);
    to[1] = (float32x4_t)vtrn1q_f64(b, d);
    to[2] = (float32x4_t)vtrn2q_f64(a, c);
    to[3] = (float32x4_t)vtrn2q_f64(b, d);
}
/* Transposes `lines` <= 8 rows of eight: dst[j * ld + i] = src[i * stride + j]. Always writes eight rows, in order. */
static inline __attribute__((always_inline)) void transpose8(const void *src, int64_t at, int64_t stride, int lines,
                                                             float *dst, int64_t ld, dtype dt)
{
    float32x4_t low[8], high[8], to_low[8], to_high[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const f32x8 x = load8(src, at + (i < lines ? i : 0) * stride, dt);
        low[i] = x.low, high[i] = x.high;
    }
    transpose4(low, to_low);
    transpose4(low + 4, to_high);
    transpose4(high, to_low + 4);
    transpose4(high + 4, to_high + 4);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) store8(dst + j * ld, (f32x8){to_low[j], to_high[j]});
}

#else
#include <immintrin.h>
typedef __m256 f32x8;

static inline f32x8 load8(const void *p, int64_t i, dtype dt)
{
    if (dt == DTYPE_F32) return _mm256_loadu_ps((const float *)p + i);
    __m128i h = _mm_loadu_si128((const __m128i *)((const bf16 *)p + i));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

static inline void store8(float *p, f32x8 x)
{
    _mm256_storeu_ps(p, x);
}
/* x y + sum, rounded once. */
static inline f32x8 fused8(f32x8 x, f32x8 y, f32x8 sum)
{
    return _mm256_fmadd_ps(x, y, sum);
}
static inline f32x8 add8(f32x8 x, f32x8 y)
{
    return x + y;
}
static inline float sum8(f32x8 s)
{
    return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

/* Transposes `lines` <= 8 rows of eight: dst[j * ld + i] = src[i * stride + j]. Always writes eight rows. */
static inline __attribute__((always_inline)) void transpose8(const void *src, int64_t at, int64_t stride, int lines,
                                                             float *dst, int64_t ld, dtype dt)
{
    __m256 r[8], t[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) r[i] = load8(src, at + (i < lines ? i : 0) * stride, dt);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) _mm256_storeu_ps(dst + i * ld, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        _mm256_storeu_ps(dst + (i + 4) * ld, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
}
#endif
#endif
