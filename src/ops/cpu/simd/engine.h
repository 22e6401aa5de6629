/* Small matmuls inside attention: c[m, n] (+)= A B in f32, with operands of type `elem`. Two engines share one
 * interface: f32 FMA on any SIMD ISA, and bf16 tiles when compiled with AMX. Every size is a multiple of ENGINE_UNIT;
 * callers pad with zeros.
 *
 * B is packed in panels of ENGINE_UNIT columns; panel p of a [k, n] operand is at p * k * ENGINE_UNIT. A is read in
 * place.
 *   engine_b_along    B contiguous along k  [n, k]        engine_b_across    B contiguous along n  [k, n]
 *   engine_along      A is [m, k]                         engine_across      A is [k, m]
 * `depth` is the k that B was packed with. A matmul over [from, from + k) passes B + from * ENGINE_NR. */
#ifndef INGOT_OPS_CPU_SIMD_ENGINE_H
#define INGOT_OPS_CPU_SIMD_ENGINE_H
#include "ops/cpu/simd/vec.h"
#include <stdbool.h>

enum { ENGINE_UNIT = 32 };

#ifdef __AMX_BF16__
#include "ops/cpu/amx/amx.h"
typedef bf16 elem;
enum { ENGINE_NR = ENGINE_UNIT };

VEC_INLINE void engine_b_along(const elem *src, int64_t ld, int64_t n, int64_t k, elem *dst)
{
    for (int64_t j = 0; j < n; j += 32) {
        for (int64_t p = 0; p < k; p += AMX_K) {
            for (int64_t h = 0; h < 32; h += AMX_LINES, dst += AMX_TILE)
                amx_pack_along(src + (j + h) * ld + p, ld, AMX_LINES, AMX_K, AMX_B, dst);
        }
    }
}
VEC_INLINE void engine_b_across(const elem *src, int64_t ld, int64_t n, int64_t k, elem *dst)
{
    for (int64_t j = 0; j < n; j += 32) {
        for (int64_t p = 0; p < k; p += AMX_K) {
            for (int64_t h = 0; h < 32; h += AMX_LINES, dst += AMX_TILE)
                amx_pack_across(src + p * ld + j + h, ld, AMX_LINES, AMX_K, AMX_B, dst);
        }
    }
}

/* Computes 32 rows of c. a0, a1: the first tiles of the upper and lower 16 rows; `row`: row stride in bytes; `next`:
 * elements from tile to tile. */
VEC_INLINE void engine_rows(const elem *a0, const elem *a1, int64_t row, int64_t next, const elem *b,
                            float *c, int64_t ldc, int64_t n, int64_t k, int64_t depth, bool add)
{
    const int64_t c_row = ldc * (int64_t)sizeof *c;
    for (int64_t j = 0; j < n; j += 32, b += (depth - k) * ENGINE_NR) {
        float *c0 = c + j, *c1 = c0 + 16 * ldc;
        if (add) {
            _tile_loadd(0, c0, c_row);
            _tile_loadd(1, c0 + 16, c_row);
            _tile_loadd(2, c1, c_row);
            _tile_loadd(3, c1 + 16, c_row);
        } else {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
        }
        for (int64_t p = 0; p < k / AMX_K; p++, b += 2 * AMX_TILE) {
            _tile_loadd(4, a0 + p * next, row);
            _tile_loadd(6, b, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, b + AMX_TILE, 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, a1 + p * next, row);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, c0, c_row);
        _tile_stored(1, c0 + 16, c_row);
        _tile_stored(2, c1, c_row);
        _tile_stored(3, c1 + 16, c_row);
    }
}
VEC_INLINE void engine_along(const elem *a, int64_t lda, const elem *b, float *c, int64_t ldc, int64_t m,
                             int64_t n, int64_t k, int64_t depth, bool add)
{
    for (int64_t i = 0; i < m; i += 32)
        engine_rows(a + i * lda, a + (i + 16) * lda, lda * 2, AMX_K, b, c + i * ldc, ldc, n, k, depth, add);
}
VEC_INLINE void engine_across(const elem *a, int64_t lda, const elem *b, float *c, int64_t ldc, int64_t m,
                              int64_t n, int64_t k, int64_t depth, bool add)
{
    enum { K_MAX = 64 }; /* rows of a query block */
    _Alignas(64) elem packed[K_MAX * 32];
    for (int64_t i = 0; i < m; i += 32) {
        for (int64_t p = 0; p < k; p += AMX_K) {
            for (int64_t h = 0; h < 32; h += AMX_LINES)
                amx_pack_across(a + p * lda + i + h, lda, AMX_LINES, AMX_K, AMX_A,
                                packed + (p / AMX_K * 2 + h / 16) * AMX_TILE);
        }
        engine_rows(packed, packed + AMX_TILE, 64, 2 * AMX_TILE, b, c + i * ldc, ldc, n, k, depth, add);
    }
}
VEC_INLINE void engine_begin(void)
{
    amx_begin();
}
VEC_INLINE void engine_end(void)
{
    amx_end();
}

#else
#include "ops/cpu/simd/transpose.h"
typedef float elem;
#if defined __AVX512F__ || defined __aarch64__
enum { ENGINE_MR = 8 };
#else
enum { ENGINE_MR = 4 };
#endif
enum { ENGINE_NR = 2 * VEC };

VEC_INLINE void engine_b_along(const elem *src, int64_t ld, int64_t n, int64_t k, elem *dst)
{
    for (int64_t j = 0; j < n; j += ENGINE_NR, dst += k * ENGINE_NR) {
        for (int64_t p = 0; p < k; p += 8) {
            for (int64_t i = 0; i < ENGINE_NR; i += 8)
                transpose8(src, (j + i) * ld + p, ld, 8, dst + p * ENGINE_NR + i, ENGINE_NR, DTYPE_F32);
        }
    }
}
VEC_INLINE void engine_b_across(const elem *src, int64_t ld, int64_t n, int64_t k, elem *dst)
{
    for (int64_t j = 0; j < n; j += ENGINE_NR) {
        for (int64_t p = 0; p < k; p++, dst += ENGINE_NR)
            memcpy(dst, src + p * ld + j, ENGINE_NR * sizeof *dst);
    }
}

/* Element (i, p) of A is a[i ra + p ca]. */
VEC_INLINE void engine_micro(const elem *a, int64_t ra, int64_t ca, const elem *b, float *c, int64_t ldc,
                             int64_t k, bool add)
{
    vf acc[ENGINE_MR][2] = {0};
    for (int64_t p = 0; p < k; p++, a += ca, b += ENGINE_NR) {
        vf b0 = vec_load(b, 0, VEC, DTYPE_F32), b1 = vec_load(b, VEC, VEC, DTYPE_F32);
#pragma GCC unroll 8
        for (int i = 0; i < ENGINE_MR; i++) {
            vf x = vec_set(a[i * ra]);
            acc[i][0] += x * b0;
            acc[i][1] += x * b1;
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < ENGINE_MR; i++) {
        float *at = c + i * ldc;
        if (add) {
            acc[i][0] += vec_load(at, 0, VEC, DTYPE_F32);
            acc[i][1] += vec_load(at, VEC, VEC, DTYPE_F32);
        }
        vec_store(at, 0, VEC, DTYPE_F32, acc[i][0]);
        vec_store(at, VEC, VEC, DTYPE_F32, acc[i][1]);
    }
}
VEC_INLINE void engine_along(const elem *a, int64_t lda, const elem *b, float *c, int64_t ldc, int64_t m,
                             int64_t n, int64_t k, int64_t depth, bool add)
{
    for (int64_t j = 0; j < n; j += ENGINE_NR) {
        for (int64_t i = 0; i < m; i += ENGINE_MR)
            engine_micro(a + i * lda, lda, 1, b + j * depth, c + i * ldc + j, ldc, k, add);
    }
}
VEC_INLINE void engine_across(const elem *a, int64_t lda, const elem *b, float *c, int64_t ldc, int64_t m,
                              int64_t n, int64_t k, int64_t depth, bool add)
{
    for (int64_t j = 0; j < n; j += ENGINE_NR) {
        for (int64_t i = 0; i < m; i += ENGINE_MR)
            engine_micro(a + i, 1, lda, b + j * depth, c + i * ldc + j, ldc, k, add);
    }
}
VEC_INLINE void engine_begin(void) {}
VEC_INLINE void engine_end(void) {}
#endif
#endif
