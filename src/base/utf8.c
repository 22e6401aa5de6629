/* Validates well-formed sequences (The Unicode Standard, table 3-7), 32 bytes at a time. */
#include "base/utf8.h"
#include "base/status.h"
#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of the valid sequence at p, which has `left` >= 1 bytes; 0 when there is none. */
static size_t sequence_bytes(const uint8_t *p, size_t left)
{
    uint8_t c = p[0];
    if (c < 0x80) return 1;
    if (c < 0xc2 || c > 0xf4) return 0;
    size_t need = c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    if (left < need) return 0;
    uint8_t low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;  /* overlong */
    uint8_t high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf; /* surrogates, above U+10FFFF */
    if (p[1] < low || p[1] > high) return 0;
    if (need > 2 && (p[2] & 0xc0) != 0x80) return 0;
    if (need > 3 && (p[3] & 0xc0) != 0x80) return 0;
    return need;
}

/* Character by character, from the beginning of one. */
static size_t valid_from(const uint8_t *p, size_t at, size_t bytes)
{
    while (at < bytes) {
        size_t n = sequence_bytes(p + at, bytes - at);
        if (n == 0) break;
        at += n;
    }
    return at;
}

/* The vector shifted by n bytes: begins with the last n bytes of the one before it. */
#define BEHIND(before, v, n) _mm256_alignr_epi8(v, _mm256_permute2x128_si256(before, v, 0x21), 16 - (n))
#define TWICE(...)           _mm256_setr_epi8(__VA_ARGS__, __VA_ARGS__)

/* Keiser and Lemire, "Validating UTF-8 in less than one instruction per byte" (2020). Each error of two
 * neighbouring bytes has a bit. Three lookups, by the halves of the first byte and the high half of the
 * second, give possible errors; a bit that all three have is an error. Nonzero bytes of the result are
 * errors. */
static __m256i block_errors(__m256i before, __m256i v)
{
    enum {
        SHORT = 1,
        LONG = 2,
        OVERLONG_3 = 4,
        LARGE = 8,
        SURROGATE = 16,
        OVERLONG_2 = 32,
        LARGE_F5 = 64,
        OVERLONG_4 = 64,
        TWO = -128,
        ANY = SHORT | LONG | TWO,
        F5 = ANY | LARGE | LARGE_F5
    };
    const __m256i low4 = _mm256_set1_epi8(15);
    const __m256i first_high =
        TWICE(LONG, LONG, LONG, LONG, LONG, LONG, LONG, LONG, TWO, TWO, TWO, TWO, SHORT | OVERLONG_2, SHORT,
              SHORT | OVERLONG_3 | SURROGATE, SHORT | LARGE | LARGE_F5 | OVERLONG_4);
    const __m256i first_low = TWICE(ANY | OVERLONG_3 | OVERLONG_2 | OVERLONG_4, ANY | OVERLONG_2, ANY, ANY,
                                    ANY | LARGE, F5, F5, F5, F5, F5, F5, F5, F5, F5 | SURROGATE, F5, F5);
    const __m256i second_high =
        TWICE(SHORT, SHORT, SHORT, SHORT, SHORT, SHORT, SHORT, SHORT,
              LONG | OVERLONG_2 | TWO | OVERLONG_3 | LARGE_F5 | OVERLONG_4,
              LONG | OVERLONG_2 | TWO | OVERLONG_3 | LARGE, LONG | OVERLONG_2 | TWO | SURROGATE | LARGE,
              LONG | OVERLONG_2 | TWO | SURROGATE | LARGE, SHORT, SHORT, SHORT, SHORT);
    __m256i back1 = BEHIND(before, v, 1), back2 = BEHIND(before, v, 2), back3 = BEHIND(before, v, 3);
    __m256i pair = _mm256_and_si256(
        _mm256_and_si256(_mm256_shuffle_epi8(first_high, _mm256_and_si256(_mm256_srli_epi16(back1, 4), low4)),
                         _mm256_shuffle_epi8(first_low, _mm256_and_si256(back1, low4))),
        _mm256_shuffle_epi8(second_high, _mm256_and_si256(_mm256_srli_epi16(v, 4), low4)));
    /* Third and fourth bytes follow a continuation byte, which sets TWO: exactly there it is correct. */
    __m256i third = _mm256_or_si256(_mm256_subs_epu8(back2, _mm256_set1_epi8((char)(0xe0 - 0x80))),
                                    _mm256_subs_epu8(back3, _mm256_set1_epi8((char)(0xf0 - 0x80))));
    return _mm256_xor_si256(_mm256_and_si256(third, _mm256_set1_epi8(TWO)), pair);
}

/* The start of the character that spans `at`, or `at`. */
static size_t character_begin(const uint8_t *p, size_t at)
{
    for (size_t back = 1; back <= 3 && back <= at; back++) {
        if (p[at - back] >= 0xc0) return at - back;
        if (p[at - back] < 0x80) break;
    }
    return at;
}

size_t utf8_valid(const char *text, size_t bytes)
{
    const uint8_t *p = (const uint8_t *)text;
    __m256i before = _mm256_setzero_si256();
    size_t at = 0;
    for (; bytes - at >= 32; at += 32) {
        __m256i v = _mm256_loadu_si256((const __m256i *)(p + at));
        /* If the last block ended inside a character, its end is not ASCII, so both must be. */
        if (!_mm256_movemask_epi8(_mm256_or_si256(v, before))) {
            before = v;
            continue;
        }
        __m256i errors = block_errors(before, v);
        if (!_mm256_testz_si256(errors, errors)) break;
        before = v;
    }
    return valid_from(p, character_begin(p, at), bytes);
}

char *utf8_clean(const char *text, size_t bytes)
{
    char *out = malloc(bytes * 3 + 1), *to = out;
    CHECK(out != NULL, "out of memory for %zu bytes of text", bytes);
    while (bytes != 0) {
        size_t good = utf8_valid(text, bytes);
        memcpy(to, text, good);
        to += good;
        if (good == bytes) break;
        memcpy(to, "\xef\xbf\xbd", 3);
        to += 3;
        text += good + 1;
        bytes -= good + 1;
    }
    *to = 0;
    return out;
}

int utf8_write(uint32_t code, char *out)
{
    uint8_t *p = (uint8_t *)out;
    if (code < 0x80) {
        p[0] = (uint8_t)code;
        return 1;
    }
    if (code < 0x800) {
        p[0] = (uint8_t)(0xc0 | code >> 6);
        p[1] = (uint8_t)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        p[0] = (uint8_t)(0xe0 | code >> 12);
        p[1] = (uint8_t)(0x80 | (code >> 6 & 0x3f));
        p[2] = (uint8_t)(0x80 | (code & 0x3f));
        return 3;
    }
    p[0] = (uint8_t)(0xf0 | code >> 18);
    p[1] = (uint8_t)(0x80 | (code >> 12 & 0x3f));
    p[2] = (uint8_t)(0x80 | (code >> 6 & 0x3f));
    p[3] = (uint8_t)(0x80 | (code & 0x3f));
    return 4;
}
