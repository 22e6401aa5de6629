/* The GEMM kernel (gemm_kernel.h) of bf16 panels, [k / 4][line][4 k], for ARM. BFMMLA adds the products of two lines of
 * A and two of B over four k to a 2 x 2 block of c: pairs of k are summed, then added, in an order and with roundings
 * that the architecture defines. Subnormal numbers count as zero. */
#ifndef INGOT_OPS_CPU_SIMD_GEMM_BFMMLA_H
#define INGOT_OPS_CPU_SIMD_GEMM_BFMMLA_H
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
#include "base/status.h"
#include "ops/cpu/simd/f8_vec.h"
#include "tensor/dtype.h"
#include <arm_neon.h>
#include <stdbool.h>
#include <string.h>

enum {
    MR = 8,
    NR = 12,
    K_UNIT = 4,
    KC_MAX = 768,
    CACHE_LINE = 32,             /* elements */
    AHEAD = CACHE_LINE / K_UNIT, /* elements of what comes next that micro prefetches with each k */
    REACH = 0
};
typedef bf16 elem;
static inline elem elem_of(float x)
{
    return bf16_from_f32(x);
}

/* Row 0 or 1 of two blocks that lie side by side. */
static inline float32x4_t block_row(float32x4_t left, float32x4_t right, int row)
{
    return row == 0 ? vcombine_f32(vget_low_f32(left), vget_low_f32(right))
                    : vcombine_f32(vget_high_f32(left), vget_high_f32(right));
}

/* c[MR, NR] (+)= A B over kc, a multiple of K_UNIT; meanwhile prefetches kc AHEAD elements from `ahead` on. */
__attribute__((noinline)) static void micro(int64_t kc, const elem *a, const elem *b, float *c, int64_t ldc,
                                            bool add, const elem *ahead)
{
    float32x4_t acc[MR / 2][NR / 2];
#pragma GCC unroll 4
    for (int i = 0; i < MR / 2; i++) {
        __builtin_prefetch(c + 2 * i * ldc, 1);
        __builtin_prefetch(c + (2 * i + 1) * ldc, 1);
#pragma GCC unroll 6
        for (int j = 0; j < NR / 2; j++) acc[i][j] = vdupq_n_f32(0);
    }
    for (int64_t p = 0; p < kc; p += K_UNIT, a += MR * K_UNIT, b += NR * K_UNIT, ahead += CACHE_LINE) {
        __builtin_prefetch(ahead, 0, 2);
        bfloat16x8_t x[MR / 2];
#pragma GCC unroll 4
        for (int i = 0; i < MR / 2; i++) x[i] = (bfloat16x8_t)vld1q_u16(a + 8 * i);
#pragma GCC unroll 6
        for (int j = 0; j < NR / 2; j++) {
            if (j == NR / 4)
                __asm__ volatile("" ::: "memory"); /* loaded before, these would cost registers of sums */
            const bfloat16x8_t y = (bfloat16x8_t)vld1q_u16(b + 8 * j);
#pragma GCC unroll 4
            for (int i = 0; i < MR / 2; i++) acc[i][j] = vbfmmlaq_f32(acc[i][j], x[i], y);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++, c += ldc) {
#pragma GCC unroll 3
        for (int j = 0; j < NR; j += 4) {
            const float32x4_t sum = block_row(acc[i / 2][j / 2], acc[i / 2][j / 2 + 1], i % 2);
            vst1q_f32(c + j, add ? vaddq_f32(vld1q_f32(c + j), sum) : sum);
        }
    }
}

/* Four k of a panel's lines: dst[line][4]. What lies behind `lines` or behind `deep` k is zero. */
static inline void pack_part(const bf16 *src, int64_t ld, bool along, int64_t lines, int64_t deep, int width,
                             bf16 *dst)
{
    memset(dst, 0, (size_t)(width * K_UNIT) * sizeof *dst);
    for (int64_t i = 0; i < lines; i++)
        for (int64_t p = 0; p < deep; p++) dst[i * K_UNIT + p] = src[along ? i * ld + p : p * ld + i];
}

static inline __attribute__((always_inline)) void
pack_panel(const bf16 *src, int64_t ld, bool along, int64_t lines, int64_t depth, int width, bf16 *dst)
{
    int64_t p = 0;
    if (lines == width && along) {
        p = depth / K_UNIT * K_UNIT;
        for (int i = 0; i < width; i++)
            for (int64_t q = 0; q < p; q += K_UNIT)
                memcpy(dst + q * width + i * K_UNIT, src + i * ld + q, K_UNIT * sizeof *dst);
    } else if (lines == width) {
        for (; p + K_UNIT <= depth; p += K_UNIT) {
            for (int i = 0; i < width; i += 4) { /* stored with the four k of a line side by side */
                const bf16 *at = src + p * ld + i;
                vst4_u16(dst + p * width + i * K_UNIT,
                         ((uint16x4x4_t){{vld1_u16(at), vld1_u16(at + ld), vld1_u16(at + 2 * ld),
                                          vld1_u16(at + 3 * ld)}}));
            }
        }
    }
    for (; p < depth; p += K_UNIT)
        pack_part(src + (along ? p : p * ld), ld, along, lines, depth - p < K_UNIT ? depth - p : K_UNIT,
                  width, dst + p * width);
}

/* Lines of FP8 codes, contiguous along k, into panels; `depth` is a multiple of eight. */
static void pack_codes(const uint8_t *src, int64_t ld, int64_t lines, int64_t depth, int width, elem *dst,
                       const struct f8_decoder *d)
{
    const int64_t whole = (lines + width - 1) / width * width;
    for (int64_t i = 0; i < whole; i++) {
        elem *to = dst + i / width * width * depth + i % width * K_UNIT;
        for (int64_t p = 0; p < depth; p += 8) {
            typedef uint16_t half __attribute__((vector_size(16)));
            half h = {0};
            if (i < lines) h = __builtin_convertvector(f8_bits_8(src + i * ld + p, d) >> 16, half);
            memcpy(to + p * width, &h, sizeof h / 2);
            memcpy(to + (p + K_UNIT) * width, (const char *)&h + sizeof h / 2, sizeof h / 2);
        }
    }
}

/* Lines [0, lines) of k [0, depth) into consecutive panels. `exponent`: FP8 codes times 2^exponent. */
static void pack(const void *src, int64_t at, int64_t ld, bool along, int64_t lines, int64_t depth, int width,
                 elem *dst, dtype dt, int exponent)
{
    if (dt == DTYPE_F8_E4M3 || dt == DTYPE_F8_E5M2) {
        const struct f8_decoder d = f8_decoder(dt, exponent);
        CHECK(along && depth % 8 == 0, "codes that are not contiguous along k, or %lld of them", (long long)depth);
        pack_codes((const uint8_t *)src + at, ld, lines, depth, width, dst, &d);
        return;
    }
    CHECK((width == MR || width == NR) && dt == DTYPE_BF16, "a panel of %d lines in %s", width,
          dtype_name(dt));
    const int64_t deep = (depth + K_UNIT - 1) / K_UNIT * K_UNIT;
    for (int64_t i = 0; i < lines; i += width) {
        const bf16 *from = (const bf16 *)src + at + (along ? i * ld : i);
        const int64_t left = lines - i < width ? lines - i : width;
        if (width == MR)
            pack_panel(from, ld, along, left, depth, MR, dst + i * deep);
        else
            pack_panel(from, ld, along, left, depth, NR, dst + i * deep);
    }
}
#endif
#endif
