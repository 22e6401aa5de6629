/* Transposes 8 x 8 blocks in registers, for packing matmul operands. */
#ifndef INGOT_OPS_CPU_SIMD_TRANSPOSE_H
#define INGOT_OPS_CPU_SIMD_TRANSPOSE_H
#include "tensor/dtype.h"
#include <immintrin.h>

static inline __m256 load8(const void *p, int64_t i, dtype dt)
{
    if (dt == DTYPE_F32) return _mm256_loadu_ps((const float *)p + i);
    __m128i h = _mm_loadu_si128((const __m128i *)((const bf16 *)p + i));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
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
