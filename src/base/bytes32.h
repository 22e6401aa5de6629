/* 32 bytes at a time, for scanning text: AVX2 or NEON. A comparison gives 0xff or 0 for each byte. */
#ifndef INGOT_BASE_BYTES32_H
#define INGOT_BASE_BYTES32_H
#include <stdbool.h>
#include <stdint.h>

#define BYTES32 static inline __attribute__((always_inline))

#ifdef __aarch64__
#include <arm_neon.h>
typedef struct {
    uint8x16_t low, high;
} bytes32;

BYTES32 bytes32 bytes32_load(const void *p)
{
    return (bytes32){vld1q_u8(p), vld1q_u8((const uint8_t *)p + 16)};
}
BYTES32 void bytes32_store(void *p, bytes32 v)
{
    vst1q_u8(p, v.low);
    vst1q_u8((uint8_t *)p + 16, v.high);
}
BYTES32 bytes32 bytes32_set(int c)
{
    return (bytes32){vdupq_n_u8((uint8_t)c), vdupq_n_u8((uint8_t)c)};
}
BYTES32 bytes32 bytes32_or(bytes32 a, bytes32 b)
{
    return (bytes32){vorrq_u8(a.low, b.low), vorrq_u8(a.high, b.high)};
}
BYTES32 bytes32 bytes32_and(bytes32 a, bytes32 b)
{
    return (bytes32){vandq_u8(a.low, b.low), vandq_u8(a.high, b.high)};
}
BYTES32 bytes32 bytes32_xor(bytes32 a, bytes32 b)
{
    return (bytes32){veorq_u8(a.low, b.low), veorq_u8(a.high, b.high)};
}
BYTES32 bytes32 bytes32_equal(bytes32 a, bytes32 b)
{
    return (bytes32){vceqq_u8(a.low, b.low), vceqq_u8(a.high, b.high)};
}
/* a > b, both signed: bytes from 0x80 on are negative. */
BYTES32 bytes32 bytes32_above(bytes32 a, bytes32 b)
{
    return (bytes32){vcgtq_s8((int8x16_t)a.low, (int8x16_t)b.low),
                     vcgtq_s8((int8x16_t)a.high, (int8x16_t)b.high)};
}
/* a <= b, both unsigned. */
BYTES32 bytes32 bytes32_at_most(bytes32 a, bytes32 b)
{
    return (bytes32){vcleq_u8(a.low, b.low), vcleq_u8(a.high, b.high)};
}
/* a - b, both unsigned, or 0 where that is less. */
BYTES32 bytes32 bytes32_excess(bytes32 a, bytes32 b)
{
    return (bytes32){vqsubq_u8(a.low, b.low), vqsubq_u8(a.high, b.high)};
}
/* Bit i: the highest bit of byte i. */
BYTES32 uint32_t bytes32_mask(bytes32 v)
{
    static const uint8_t place[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x16_t bit = vld1q_u8(place), low = vandq_u8(vcltzq_s8((int8x16_t)v.low), bit),
                     high = vandq_u8(vcltzq_s8((int8x16_t)v.high), bit);
    uint8x16_t sum = vpaddq_u8(low, high); /* the sum of eight neighbours is a byte of the mask */
    sum = vpaddq_u8(sum, sum);
    return vgetq_lane_u32((uint32x4_t)vpaddq_u8(sum, sum), 0);
}
BYTES32 bool bytes32_is_zero(bytes32 v)
{
    return vmaxvq_u32((uint32x4_t)vorrq_u8(v.low, v.high)) == 0;
}
/* table[v & 15] for each byte. */
BYTES32 bytes32 bytes32_pick_low(const uint8_t table[16], bytes32 v)
{
    const uint8x16_t t = vld1q_u8(table), half = vdupq_n_u8(15);
    return (bytes32){vqtbl1q_u8(t, vandq_u8(v.low, half)), vqtbl1q_u8(t, vandq_u8(v.high, half))};
}
/* table[v >> 4]. */
BYTES32 bytes32 bytes32_pick_high(const uint8_t table[16], bytes32 v)
{
    const uint8x16_t t = vld1q_u8(table);
    return (bytes32){vqtbl1q_u8(t, vshrq_n_u8(v.low, 4)), vqtbl1q_u8(t, vshrq_n_u8(v.high, 4))};
}
/* v without its last n bytes, behind the last n bytes of `before`. n: a constant. */
#define bytes32_behind(before, v, n)                                                                         \
    ((bytes32){vextq_u8((before).high, (v).low, 16 - (n)), vextq_u8((v).low, (v).high, 16 - (n))})
/* Bytes [8 i, 8 i + 8) as a number. i: a constant. */
#define bytes32_word(v, i) vgetq_lane_u64((uint64x2_t)((i) < 2 ? (v).low : (v).high), (i) % 2)
/* As eight numbers of 32 bits: the smaller of each two; the smallest of one. */
BYTES32 bytes32 bytes32_min_u32(bytes32 a, bytes32 b)
{
    return (bytes32){(uint8x16_t)vminq_u32((uint32x4_t)a.low, (uint32x4_t)b.low),
                     (uint8x16_t)vminq_u32((uint32x4_t)a.high, (uint32x4_t)b.high)};
}
BYTES32 uint32_t bytes32_least_u32(bytes32 v)
{
    return vminvq_u32(vminq_u32((uint32x4_t)v.low, (uint32x4_t)v.high));
}

#else
#include <immintrin.h>
typedef __m256i bytes32;

BYTES32 bytes32 bytes32_load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
BYTES32 void bytes32_store(void *p, bytes32 v)
{
    _mm256_storeu_si256((__m256i *)p, v);
}
BYTES32 bytes32 bytes32_set(int c)
{
    return _mm256_set1_epi8((char)c);
}
BYTES32 bytes32 bytes32_or(bytes32 a, bytes32 b)
{
    return _mm256_or_si256(a, b);
}
BYTES32 bytes32 bytes32_and(bytes32 a, bytes32 b)
{
    return _mm256_and_si256(a, b);
}
BYTES32 bytes32 bytes32_xor(bytes32 a, bytes32 b)
{
    return _mm256_xor_si256(a, b);
}
BYTES32 bytes32 bytes32_equal(bytes32 a, bytes32 b)
{
    return _mm256_cmpeq_epi8(a, b);
}
/* a > b, both signed: bytes from 0x80 on are negative. */
BYTES32 bytes32 bytes32_above(bytes32 a, bytes32 b)
{
    return _mm256_cmpgt_epi8(a, b);
}
/* a <= b, both unsigned. */
BYTES32 bytes32 bytes32_at_most(bytes32 a, bytes32 b)
{
    return _mm256_cmpeq_epi8(_mm256_max_epu8(a, b), b);
}
/* a - b, both unsigned, or 0 where that is less. */
BYTES32 bytes32 bytes32_excess(bytes32 a, bytes32 b)
{
    return _mm256_subs_epu8(a, b);
}
/* Bit i: the highest bit of byte i. */
BYTES32 uint32_t bytes32_mask(bytes32 v)
{
    return (uint32_t)_mm256_movemask_epi8(v);
}
BYTES32 bool bytes32_is_zero(bytes32 v)
{
    return _mm256_testz_si256(v, v);
}
/* table[v & 15] for each byte. */
BYTES32 bytes32 bytes32_pick_low(const uint8_t table[16], bytes32 v)
{
    const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
    return _mm256_shuffle_epi8(t, _mm256_and_si256(v, _mm256_set1_epi8(15)));
}
/* table[v >> 4]. */
BYTES32 bytes32 bytes32_pick_high(const uint8_t table[16], bytes32 v)
{
    const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
    return _mm256_shuffle_epi8(t, _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15)));
}
/* v without its last n bytes, behind the last n bytes of `before`. n: a constant. */
#define bytes32_behind(before, v, n)                                                                         \
    _mm256_alignr_epi8(v, _mm256_permute2x128_si256(before, v, 0x21), 16 - (n))
/* Bytes [8 i, 8 i + 8) as a number. i: a constant. */
#define bytes32_word(v, i) ((uint64_t)_mm256_extract_epi64(v, i))
/* As eight numbers of 32 bits: the smaller of each two; the smallest of one. */
BYTES32 bytes32 bytes32_min_u32(bytes32 a, bytes32 b)
{
    return _mm256_min_epu32(a, b);
}
BYTES32 uint32_t bytes32_least_u32(bytes32 v)
{
    __m128i m = _mm_min_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_min_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_min_epu32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}
#endif
#endif
