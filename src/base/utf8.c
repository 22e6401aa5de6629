/* Validates well-formed sequences (The Unicode Standard, table 3-7), 32 bytes at a time. */
#include "base/utf8.h"
#include "base/bytes32.h"
#include "base/status.h"
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

/* By characters, from a place where one begins. */
static size_t valid_from(const uint8_t *p, size_t at, size_t bytes)
{
    while (at < bytes) {
        size_t n = sequence_bytes(p + at, bytes - at);
        if (n == 0) break;
        at += n;
    }
    return at;
}

/* Keiser and Lemire, "Validating UTF-8 in less than one instruction per byte" (2020). Each error of two
 * neighbouring bytes has a bit. Three lookups, by the halves of the first byte and the high half of the
 * second, give possible errors; a bit that all three have is an error. Nonzero bytes of the result are
 * errors. */
static bytes32 block_errors(bytes32 before, bytes32 v)
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
        TWO = 128,
        ANY = SHORT | LONG | TWO,
        F5 = ANY | LARGE | LARGE_F5
    };
    static const uint8_t first_high[16] = {LONG,
                                           LONG,
                                           LONG,
                                           LONG,
                                           LONG,
                                           LONG,
                                           LONG,
                                           LONG,
                                           TWO,
                                           TWO,
                                           TWO,
                                           TWO,
                                           SHORT | OVERLONG_2,
                                           SHORT,
                                           SHORT | OVERLONG_3 | SURROGATE,
                                           SHORT | LARGE | LARGE_F5 | OVERLONG_4},
                         first_low[16] = {ANY | OVERLONG_3 | OVERLONG_2 | OVERLONG_4,
                                          ANY | OVERLONG_2,
                                          ANY,
                                          ANY,
                                          ANY | LARGE,
                                          F5,
                                          F5,
                                          F5,
                                          F5,
                                          F5,
                                          F5,
                                          F5,
                                          F5,
                                          F5 | SURROGATE,
                                          F5,
                                          F5},
                         second_high[16] = {SHORT,
                                            SHORT,
                                            SHORT,
                                            SHORT,
                                            SHORT,
                                            SHORT,
                                            SHORT,
                                            SHORT,
                                            LONG | OVERLONG_2 | TWO | OVERLONG_3 | LARGE_F5 | OVERLONG_4,
                                            LONG | OVERLONG_2 | TWO | OVERLONG_3 | LARGE,
                                            LONG | OVERLONG_2 | TWO | SURROGATE | LARGE,
                                            LONG | OVERLONG_2 | TWO | SURROGATE | LARGE,
                                            SHORT,
                                            SHORT,
                                            SHORT,
                                            SHORT};
    const bytes32 back1 = bytes32_behind(before, v, 1), back2 = bytes32_behind(before, v, 2),
                  back3 = bytes32_behind(before, v, 3);
    const bytes32 pair =
        bytes32_and(bytes32_and(bytes32_pick_high(first_high, back1), bytes32_pick_low(first_low, back1)),
                    bytes32_pick_high(second_high, v));
    /* Third and fourth bytes follow a continuation byte, which sets TWO: exactly there it is correct. */
    const bytes32 third = bytes32_or(bytes32_excess(back2, bytes32_set(0xe0 - 0x80)),
                                     bytes32_excess(back3, bytes32_set(0xf0 - 0x80)));
    return bytes32_xor(bytes32_and(third, bytes32_set(TWO)), pair);
}

/* Where the character begins that reaches over `at`, or `at`. */
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
    bytes32 before = bytes32_set(0);
    size_t at = 0;
    for (; bytes - at >= 32; at += 32) {
        const bytes32 v = bytes32_load(p + at);
        /* If the last block ended inside a character, its end is not ASCII, so both must be. */
        if (!bytes32_mask(bytes32_or(v, before))) {
            before = v;
            continue;
        }
        if (!bytes32_is_zero(block_errors(before, v))) break;
        before = v;
    }
    return valid_from(p, character_begin(p, at), bytes);
}

char *utf8_clean(const char *text, size_t bytes)
{
    char *out = malloc(bytes * 3 + 1), *to = out;
    MEMORY_CHECK(out != NULL, "no memory for %zu bytes of text", bytes);
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
