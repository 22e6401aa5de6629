/* Vector types and functions of the SIMD files: one register of VEC floats, loads and stores of F32 and BF16, and the
 * few operations that C has no operator for. Include it only below src/ops/cpu/simd/, because its types differ
 * between the compilations.
 *
 * Loops read `for (j = 0; j < d; j += VEC) { int n = vec_n(d - j); ... }`. n is VEC except at the end of a row.
 * There, loads fill the missing lanes with 0 and stores write only n elements. The dtype is a constant where these
 * functions are inlined. */
#ifndef INGOT_OPS_CPU_SIMD_VEC_H
#define INGOT_OPS_CPU_SIMD_VEC_H
#include "tensor/dtype.h"
#ifdef __aarch64__
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif
#include <string.h>

#ifdef __AVX512F__
enum { VEC = 16 };
#elif defined __aarch64__
enum { VEC = 4 };
#else
enum { VEC = 8 };
#endif
/* Loops with long dependency chains process VEC_SIDE vectors at once, VEC_EACH(k) a[k] = f(a[k]), because one vector
 * would wait for its own results. The compiler interleaves them (-fschedule-insns in CMakeLists.txt). */
enum { VEC_SIDE = 4 };
#define VEC_EACH(k) _Pragma("GCC unroll 4") for (int k = 0; k < VEC_SIDE; k++)
#define VEC_INLINE  static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(4 * VEC)));
typedef int32_t vi __attribute__((vector_size(4 * VEC)));
typedef uint32_t vu __attribute__((vector_size(4 * VEC)));
typedef uint16_t vh __attribute__((vector_size(2 * VEC)));

VEC_INLINE int vec_n(int64_t left)
{
    return left < VEC ? (int)left : VEC;
}

VEC_INLINE vf vec_set(float x)
{
    return x - (vf){0};
}

VEC_INLINE vi vec_each(int32_t x)
{
    return x - (vi){0};
}
VEC_INLINE int32_t vec_bits(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Returns x, and keeps the compiler from fusing a product into the sum that follows: the product is rounded first. */
VEC_INLINE vf vec_rounded(vf x)
{
#ifdef __aarch64__
    __asm__("" : "+w"(x));
#else
    __asm__("" : "+v"(x));
#endif
    return x;
}

VEC_INLINE vf vec_select(vi mask, vf yes, vf no)
{
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

/* Keeps lanes [0, n) of x and sets the others to 0. */
VEC_INLINE vf vec_keep(vf x, int n)
{
    if (n == VEC) return x;
    float t[VEC];
    memcpy(t, &x, sizeof t);
    for (int i = n; i < VEC; i++) t[i] = 0;
    memcpy(&x, t, sizeof t);
    return x;
}

VEC_INLINE vf vec_widen(vh h)
{
#ifdef __AVX512F__
    return (vf)((vu)_mm512_cvtepu16_epi32((__m256i)h) << 16);
#else
    return (vf)(__builtin_convertvector(h, vu) << 16);
#endif
}

/* Partial loads and stores of n < VEC elements are out of line, which keeps the loops' values in registers. */
static __attribute__((noinline, cold, unused)) vf vec_load_part(const void *p, int n, dtype dt)
{
    if (dt == DTYPE_BF16) {
        vh h = {0};
        memcpy(&h, p, sizeof(bf16) * (size_t)n);
        return vec_widen(h);
    }
    vf x = {0};
    memcpy(&x, p, sizeof(float) * (size_t)n);
    return x;
}
static __attribute__((noinline, cold, unused)) void vec_store_part(void *p, vu bits, size_t bytes)
{
    memcpy(p, &bits, bytes);
}

/* Loads elements [i, i + n) of p. */
VEC_INLINE vf vec_load(const void *p, int64_t i, int n, dtype dt)
{
    if (dt == DTYPE_F32) {
        const float *at = (const float *)p + i;
        if (__builtin_expect(n != VEC, 0)) return vec_load_part(at, n, DTYPE_F32);
        vf x;
        memcpy(&x, at, sizeof x);
        return x;
    }
    const bf16 *at = (const bf16 *)p + i;
    if (__builtin_expect(n != VEC, 0)) return vec_load_part(at, n, DTYPE_BF16);
    vh h;
    memcpy(&h, at, sizeof h);
    return vec_widen(h);
}

/* Rounds to nearest even, as bf16_from_f32. The hardware instruction of x86 also flushes subnormal numbers to 0. */
VEC_INLINE vh vec_bf16(vf x)
{
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
    return (vh)vcvt_bf16_f32((float32x4_t)x);
#elif defined __AVX512BF16__
    return (vh)_mm512_cvtneps_pbh((__m512)x);
#elif defined __AVX512F__
    typedef uint16_t words __attribute__((vector_size(64)));
    const words upper = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
    const __m512i u = (__m512i)x, rounded = (__m512i)((vu)x + (0x7fff + ((vu)x >> 16 & 1)));
    const __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    const __m512i bits = _mm512_mask_or_epi32(rounded, nan, u, _mm512_set1_epi32(0x400000));
    return (vh)_mm512_castsi512_si256(_mm512_permutexvar_epi16((__m512i)upper, bits));
#else
    vu u = (vu)x, rounded = u + (0x7fff + (u >> 16 & 1));
    return __builtin_convertvector((vu)vec_select(x != x, (vf)(u | 0x400000), (vf)rounded) >> 16, vh);
#endif
}

/* Stores elements [i, i + n) of p; returns the values that a later load returns. */
VEC_INLINE vf vec_store(void *p, int64_t i, int n, dtype dt, vf x)
{
    if (dt == DTYPE_F32) {
        float *at = (float *)p + i;
        if (__builtin_expect(n == VEC, 1))
            memcpy(at, &x, sizeof x);
        else
            vec_store_part(at, (vu)x, sizeof(float) * (size_t)n);
        return x;
    }
    vh h = vec_bf16(x);
    bf16 *at = (bf16 *)p + i;
    if (__builtin_expect(n == VEC, 1)) {
        memcpy(at, &h, sizeof h);
    } else {
        vu low = {0};
        memcpy(&low, &h, sizeof h);
        vec_store_part(at, low, sizeof(bf16) * (size_t)n);
    }
    return vec_widen(h);
}
#endif
