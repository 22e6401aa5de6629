/* AMX building blocks: the tile shape, and packing of bf16 operands into tiles. Files of amx/ are compiled for
 * x86-64-v4 with AMX and AVX512_BF16. fast.c selects them at run time on processors that have both. */
#ifndef INGOT_OPS_CPU_AMX_AMX_H
#define INGOT_OPS_CPU_AMX_AMX_H
#include "ops/cpu/simd/f8_vec.h"
#include "tensor/dtype.h"

#include <immintrin.h>

enum { AMX_K = 32, AMX_LINES = 16, AMX_TILE = AMX_LINES * AMX_K }; /* a tile: 16 lines of 32 k, in elements */
enum amx_side {
    AMX_A, /* [line][16 pairs of k] */
    AMX_B  /* [16 pairs of k][line] */
};

/* Configures eight full tiles of 16 x 64 bytes on this thread; amx_end() releases them. */
static inline void amx_begin(void)
{
    static const struct {
        uint8_t palette, start, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } full __attribute__((aligned(64))) = {.palette = 1,
                                           .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                           .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&full);
}
static inline void amx_end(void)
{
    _tile_release();
}

/* Converts 32 bf16 to two vectors of 16 f32. */
static inline void amx_widen(__m512i x, __m512 *lo, __m512 *hi)
{
    *lo = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(x)), 16));
    *hi = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(x, 1)), 16));
}

static inline void amx_transpose(__m512i r[16])
{
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    /* r[4 q + c] holds column 4 L + c of rows 4 q .. 4 q + 3 in its 128-bit lane L. */
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        __m512i lo = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x44),
                hi = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xee);
        __m512i lo2 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x44);
        __m512i hi2 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xee);
        t[c] = _mm512_shuffle_i32x4(lo, lo2, 0x88);
        t[4 + c] = _mm512_shuffle_i32x4(lo, lo2, 0xdd);
        t[8 + c] = _mm512_shuffle_i32x4(hi, hi2, 0x88);
        t[12 + c] = _mm512_shuffle_i32x4(hi, hi2, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) r[i] = t[i];
}

static inline void amx_put(bf16 *dst, const __m512i r[16])
{
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) _mm512_store_si512(dst + i * 32, r[i]);
}

static inline uint32_t amx_mask(int64_t n)
{
    return n >= 32 ? 0xffffffffu : n <= 0 ? 0u : (1u << n) - 1u;
}

/* Packs one tile of an operand that is contiguous along k: line l is at src + l ld. Lines and k beyond the given
 * counts become zeros. */
static inline void amx_pack_along(const bf16 *src, int64_t ld, int64_t lines, int64_t depth,
                                  enum amx_side side, bf16 *dst)
{
    __m512i r[16];
    if (lines >= 16 && depth >= 32) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(src + i * ld);
    } else {
        const uint32_t mask = amx_mask(depth);
        for (int i = 0; i < 16; i++)
            r[i] = i < lines ? _mm512_maskz_loadu_epi16(mask, src + i * ld) : _mm512_setzero_si512();
    }
    if (side == AMX_B) amx_transpose(r);
    amx_put(dst, r);
}

#ifdef __AVX512F__
/* 32 FP8 codes to bf16; those that the mask leaves out are 0. */
static inline __m512i amx_decode(uint32_t mask, const uint8_t *src, const struct f8_decoder *d)
{
    typedef uint16_t half __attribute__((vector_size(32)));
    uint8_t codes[32];
    half h[2];
    __m512i r;
    _mm256_storeu_si256((__m256i *)codes, _mm256_maskz_loadu_epi8(mask, src));
    h[0] = __builtin_convertvector(f8_bits_16(codes, d) >> 16, half);
    h[1] = __builtin_convertvector(f8_bits_16(codes + 16, d) >> 16, half);
    memcpy(&r, h, sizeof r);
    return r;
}

/* The same from FP8 codes. */
static inline void amx_pack_codes(const uint8_t *src, int64_t ld, int64_t lines, int64_t depth, enum amx_side side,
                                  bf16 *dst, const struct f8_decoder *d)
{
    __m512i r[16];
    const uint32_t mask = amx_mask(depth);
    for (int i = 0; i < 16; i++) r[i] = i < lines ? amx_decode(mask, src + i * ld, d) : _mm512_setzero_si512();
    if (side == AMX_B) amx_transpose(r);
    amx_put(dst, r);
}
#endif

/* Packs one tile of an operand that is contiguous along lines: index p of k is at src + p ld. */
static inline void amx_pack_across(const bf16 *src, int64_t ld, int64_t lines, int64_t depth,
                                   enum amx_side side, bf16 *dst)
{
    __m512i r[16];
    const __mmask16 mask = (__mmask16)amx_mask(lines < 16 ? lines : 16);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        __m256i even = _mm256_setzero_si256(), odd = even;
        if (2 * i < depth) even = _mm256_maskz_loadu_epi16(mask, src + 2 * i * ld);
        if (2 * i + 1 < depth) odd = _mm256_maskz_loadu_epi16(mask, src + (2 * i + 1) * ld);
        r[i] =
            _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
    }
    if (side == AMX_A) amx_transpose(r);
    amx_put(dst, r);
}
#endif
