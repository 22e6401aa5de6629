/* Well-formed sequences: The Unicode Standard, table 3-7. ASCII goes 32 bytes at a time. */
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

size_t utf8_valid(const char *text, size_t bytes)
{
    const uint8_t *p = (const uint8_t *)text;
    size_t at = 0;
    while (at < bytes) {
        if (bytes - at >= 32) {
            uint32_t high = (uint32_t)_mm256_movemask_epi8(_mm256_loadu_si256((const __m256i *)(p + at)));
            if (high == 0) {
                at += 32;
                continue;
            }
            at += (size_t)__builtin_ctz(high);
        }
        do { /* other scripts come in runs: stay here as long as one lasts */
            size_t n = sequence_bytes(p + at, bytes - at);
            if (n == 0) return at;
            at += n;
        } while (at < bytes && p[at] >= 0x80);
    }
    return at;
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
