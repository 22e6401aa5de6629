/* The GEMM kernel (gemm_kernel.h) of f32 panels, into which BF16 is widened. */
#ifndef INGOT_OPS_CPU_SIMD_GEMM_F32_H
#define INGOT_OPS_CPU_SIMD_GEMM_F32_H
#include "base/sanitize.h"
#include "base/status.h"
#include "ops/cpu/simd/f8_vec.h"
#include "ops/cpu/simd/transpose.h"
#include <assert.h>
#include <stdbool.h>

/* Accumulators fill the registers except NV for B and one or two for A. */
#ifdef __AVX512F__
enum { VL = 16, MR = 8, NV = 3, KC_MAX = 192 };
#elif defined __aarch64__
enum { VL = 4, MR = 6, NV = 4, KC_MAX = 384 }; /* the panels and blocks of AVX2 */
#else
enum { VL = 8, MR = 6, NV = 2, KC_MAX = 384 };
#endif
enum {
    NR = NV * VL,
    K_UNIT = 1,
    CACHE_LINE = 16,    /* floats */
    AHEAD = CACHE_LINE, /* elements of what comes next that micro prefetches with each k */
    REACH = 8           /* floats that packing may write behind its last panel */
};
static_assert(NR % CACHE_LINE == 0, "lines are asked for one by one");
typedef float elem;
static inline elem elem_of(float x)
{
    return x;
}
typedef float vf __attribute__((vector_size(VL * 4)));
typedef float vfu __attribute__((vector_size(VL * 4), aligned(4)));

/* The row below, by an address that hides its stride from the compiler: it would keep a register for each row
 * otherwise, and there are not enough. */
UNSANITIZED static inline void row_below(float **c, int64_t ldc)
{
    *c += ldc;
    __asm__("" : "+r"(*c));
}

/* c[MR, NR] (+)= a[kc][MR]^T b[kc][NR]; meanwhile prefetches kc cache lines from `ahead` on. */
UNSANITIZED __attribute__((noinline)) static void
micro_run(int64_t kc, const float *a, const float *b, float *c, int64_t ldc, bool add, const float *ahead)
{
    vf acc[MR][NV] = {0};
    float *row = c;
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++, row_below(&row, ldc)) {
#pragma GCC unroll 4
        for (int j = 0; j < NR; j += CACHE_LINE) __builtin_prefetch(row + j, 1);
    }
    for (int64_t p = 0; p < kc; p++, a += MR, b += NR, ahead += CACHE_LINE) {
        __builtin_prefetch(ahead, 0, 2);
        vf x[NV];
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) x[v] = *(const vf *)(b + v * VL);
#pragma GCC unroll 16
        for (int i = 0; i < MR; i++) {
#ifdef __aarch64__
            if (i == MR / 2) __asm__ volatile("" ::: "memory"); /* loaded before, these would cost registers of sums */
#endif
            vf ai = a[i] - (vf){0};
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++) acc[i][v] += ai * x[v];
        }
    }
    row = c;
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++, row_below(&row, ldc)) {
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) {
            vfu *at = (vfu *)(row + v * VL);
            *at = add ? *at + acc[i][v] : acc[i][v];
        }
    }
}

static inline void micro(int64_t kc, const float *a, const float *b, float *c, int64_t ldc, bool add,
                         const float *ahead)
{
    if (SANITIZED) {
        sanitize_access(a, kc * MR * (int64_t)sizeof *a);
        sanitize_access(b, kc * NR * (int64_t)sizeof *b);
        for (int i = 0; i < MR; i++) sanitize_access(c + i * ldc, NR * sizeof *c);
        (void)*(const volatile vf *)b; /* aligned */
    }
    micro_run(kc, a, b, c, ldc, add, ahead);
}

#define ALWAYS_INLINE static inline __attribute__((always_inline))

ALWAYS_INLINE void ask_for(const void *src, int64_t at, dtype dt)
{
    __builtin_prefetch((const char *)src + at * (dt == DTYPE_F32 ? 4 : 2));
}

/* One panel of `width` lines of an operand into dst[depth][width]; lines from `lines` on are zeros. `along`:
 * the operand's memory runs along k ([line, k], stride ld), else along lines ([k, line]). `next`: lines of
 * the next panel to prefetch. If eight does not divide the width, up to REACH floats after the panel are
 * written, too. */
ALWAYS_INLINE void pack_panel(const void *src, int64_t at, int64_t ld, bool along, int64_t lines,
                              int64_t next, int64_t depth, int width, float *dst, dtype dt)
{
    int64_t p = 0;
    if (along && lines == width) {
        for (; p + 8 <= depth; p += 8) {
            for (int64_t i = 0; p % CACHE_LINE == 0 && i < next; i++)
                ask_for(src, at + (width + i) * ld + p, dt);
            /* Writes past the end of a line are overwritten by the next line. */
            for (int i = (width - 1) / 8 * 8; i >= 0; i -= 8)
                transpose8(src, at + i * ld + p, ld, width - i < 8 ? width - i : 8, dst + p * width + i,
                           width, dt);
        }
    } else if (lines == width) {
        for (; p < depth; p++) {
            int i = 0;
            for (; i + 8 <= width; i += 8) store8(dst + p * width + i, load8(src, at + p * ld + i, dt));
            for (; i < width; i++) dst[p * width + i] = load1(src, at + p * ld + i, dt);
        }
    }
    for (; p < depth; p++) {
        for (int64_t i = 0; i < width; i++)
            dst[p * width + i] = i < lines ? load1(src, along ? at + i * ld + p : at + p * ld + i, dt) : 0.0f;
    }
}

/* Packs lines [0, lines) into consecutive panels. Memory that runs along lines is read a few k at a time
 * through all panels: one panel alone would use half a cache line from each of `depth` pages. Rows are short
 * and far apart, so the hardware prefetcher does not follow: the next panel's lines or the next rows of k are
 * prefetched. */
ALWAYS_INLINE void pack_as(const void *src, int64_t at, int64_t ld, bool along, int64_t lines, int64_t depth,
                           int width, float *dst, dtype dt)
{
    const int64_t step = along ? depth : 8;
    for (int64_t p = 0; p < depth; p += step) {
        const int64_t deep = depth - p < step ? depth - p : step;
        for (int64_t i = 0; i < lines; i += width) {
            for (int64_t q = p + step; q < p + 2 * step && q < depth; q++) {
                for (int64_t j = 0; j < width; j += CACHE_LINE) ask_for(src, at + q * ld + i + j, dt);
            }
            const int64_t left = lines - i, next = left - width < width ? left - width : width;
            pack_panel(src, at + (along ? i * ld + p : p * ld + i), ld, along, left < width ? left : width,
                       next, deep, width, dst + i * depth + p * width, dt);
        }
    }
}

/* Lines of FP8 codes, contiguous along k, into panels; `depth` is a multiple of eight. Blocks of eight lines by eight k
 * are decoded, then transposed. As above, up to REACH floats behind the last panel are written. */
ALWAYS_INLINE void pack_codes(const uint8_t *src, int64_t ld, int64_t lines, int64_t depth, int width, float *dst,
                              const struct f8_decoder *d)
{
    for (int64_t i = 0; i < lines; i += width)
        for (int64_t p = 0; p < depth; p += 8)
            for (int j = (width - 1) / 8 * 8; j >= 0; j -= 8) {
                float block[8][8] = {{0}};
                for (int64_t l = i + j; l < lines && l < i + j + 8 && l < i + width; l++) {
                    const f8_u32_8 bits = f8_bits_8(src + l * ld + p, d);
                    memcpy(block[l - i - j], &bits, sizeof bits);
                }
                transpose8(block, 0, 8, 8, dst + i * depth + p * width + j, width, DTYPE_F32);
            }
}

/* `exponent`: FP8 codes times 2^exponent. */
static void pack(const void *src, int64_t at, int64_t ld, bool along, int64_t lines, int64_t depth, int width,
                 float *dst, dtype dt, int exponent)
{
    CHECK(width == MR || width == NR, "a panel of %d lines", width);
    if (dt == DTYPE_F8_E4M3 || dt == DTYPE_F8_E5M2) {
        const struct f8_decoder d = f8_decoder(dt, exponent);
        CHECK(along && depth % 8 == 0, "codes that are not contiguous along k, or %lld of them", (long long)depth);
        pack_codes((const uint8_t *)src + at, ld, lines, depth, width, dst, &d);
        return;
    }
    if (width == MR && dt == DTYPE_F32)
        pack_as(src, at, ld, along, lines, depth, MR, dst, DTYPE_F32);
    else if (width == MR)
        pack_as(src, at, ld, along, lines, depth, MR, dst, DTYPE_BF16);
    else if (dt == DTYPE_F32)
        pack_as(src, at, ld, along, lines, depth, NR, dst, DTYPE_F32);
    else
        pack_as(src, at, ld, along, lines, depth, NR, dst, DTYPE_BF16);
}
#endif
