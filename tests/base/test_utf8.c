/* utf8_valid names the first invalid byte, as a decoder that goes by code points does, wherever the text lies
 * in the vectors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/utf8.h"

#include <stdbool.h>
#include <string.h>

/* A sequence is valid if encoding its code point again gives the same bytes. */
static size_t valid_by_codes(const uint8_t *p, size_t bytes)
{
    size_t at = 0;
    while (at < bytes) {
        uint8_t lead = p[at];
        size_t n = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
        if (n == 0 || bytes - at < n) return at;
        uint32_t code = n == 1 ? lead : lead & (0x7fu >> n);
        for (size_t i = 1; i < n; i++) {
            if (p[at + i] >> 6 != 2) return at;
            code = code << 6 | (p[at + i] & 0x3f);
        }
        char again[4];
        if ((code >= 0xd800 && code <= 0xdfff) || code > 0x10ffff || utf8_write(code, again) != (int)n)
            return at;
        at += n;
    }
    return at;
}

static void expect_same(const uint8_t *p, size_t bytes)
{
    size_t want = valid_by_codes(p, bytes), got = utf8_valid((const char *)p, bytes);
    if (want != got) fail_msg("%zu instead of %zu of %zu", got, want, bytes);
}

/* Every pair of bytes, in front of every kind of continuation, at every place around a vector's end. */
static void all_pairs_at_all_places(void **state)
{
    (void)state;
    static const char *const rests[] = {"", "\x80", "\xbf\x80", "\x80\x80", "a", "\xc3\xa9"};
    for (int first = 0; first < 256; first++)
        for (int second = 0; second < 256; second++)
            for (size_t r = 0; r < sizeof rests / sizeof rests[0]; r++)
                for (size_t at = 27; at < 36; at++) {
                    uint8_t text[80];
                    memset(text, 'x', sizeof text);
                    text[at] = (uint8_t)first;
                    text[at + 1] = (uint8_t)second;
                    memcpy(text + at + 2, rests[r], strlen(rests[r]));
                    expect_same(text, (second & 1) ? sizeof text : at + 2 + strlen(rests[r]));
                }
}

static void random_texts_with_a_wrong_byte(void **state)
{
    (void)state;
    uint64_t seed = 1;
    static const uint32_t codes[] = {'a',    0x7f,   0x80,    0x7ff,    0x800,  0xd7ff,
                                     0xe000, 0xffff, 0x10000, 0x10ffff, 0x4e2d, 0x1f600};
    for (int round = 0; round < 100000; round++) {
        uint8_t text[300];
        size_t bytes = 0;
        while (bytes < 200 && (seed >> 33) % 61 != 0) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            bytes += (size_t)utf8_write(codes[(seed >> 33) % (sizeof codes / sizeof codes[0])],
                                        (char *)text + bytes);
        }
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        assert_int_equal(utf8_valid((const char *)text, bytes), bytes);
        if (bytes > 0 && round % 4 != 0) text[(seed >> 33) % bytes] = (uint8_t)(seed >> 20);
        expect_same(text, round % 4 == 1 && bytes > 0 ? bytes - 1 : bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_pairs_at_all_places),
        cmocka_unit_test(random_texts_with_a_wrong_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
