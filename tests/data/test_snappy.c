/* Snappy: each kind of tag, at each distance and length, and every way to lie about them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "data/read/snappy.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Into memory of exactly that size. */
static bool decode(const uint8_t *in, size_t bytes, uint8_t *out, size_t out_bytes)
{
    uint8_t *packed = malloc(bytes ? bytes : 1), *room = malloc(out_bytes ? out_bytes : 1);
    memcpy(packed, in, bytes);
    bool ok = snappy_decode(packed, bytes, room, out_bytes);
    memcpy(out, room, out_bytes);
    free(packed);
    free(room);
    return ok;
}

/* A literal of `distance` bytes, a copy of `length` from its start, and `rest` bytes more. */
static void copies_repeat_what_was_written(void **state)
{
    (void)state;
    for (size_t distance = 1; distance <= 70; distance++)
        for (size_t length = 1; length <= 64; length++)
            for (size_t kind = 1; kind <= 3; kind++)
                for (size_t rest = 0; rest < 120; rest += 59) {
                    uint8_t in[512], want[512], got[512];
                    size_t n = 0, total = distance + length + rest;
                    if (kind == 1 && (length < 4 || length > 11)) continue;
                    in[n++] = (uint8_t)(total & 127) | (total > 127 ? 128 : 0);
                    if (total > 127) in[n++] = (uint8_t)(total >> 7);
                    if (distance <= 60) {
                        in[n++] = (uint8_t)((distance - 1) << 2);
                    } else {
                        in[n++] = 60 << 2;
                        in[n++] = (uint8_t)(distance - 1);
                    }
                    for (size_t i = 0; i < distance; i++) want[i] = in[n++] = (uint8_t)('a' + i);
                    in[n++] =
                        kind == 1 ? (uint8_t)(1 | (length - 4) << 2) : (uint8_t)(kind | (length - 1) << 2);
                    in[n++] = (uint8_t)distance;
                    for (size_t i = 1; i < (kind == 3 ? 4u : kind); i++) in[n++] = 0;
                    for (size_t i = 0; i < length; i++) want[distance + i] = want[i];
                    if (rest > 0) {
                        in[n++] = 61 << 2;
                        in[n++] = (uint8_t)(rest - 1);
                        in[n++] = 0;
                        for (size_t i = 0; i < rest; i++) want[distance + length + i] = in[n++] = (uint8_t)i;
                    }
                    uint64_t claimed;
                    assert_true(snappy_bytes(in, n, &claimed) && claimed == total);
                    assert_true(decode(in, n, got, total));
                    assert_memory_equal(got, want, total);
                    for (size_t cut = 0; cut < n; cut++) assert_false(decode(in, cut, got, total));
                    assert_false(decode(in, n, got, total - 1));
                    assert_false(decode(in, n, got, total + 1));
                }
}

static void lies_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *in;
        size_t bytes, out;
    } cases[] = {
        {"", 0, 0},
        {"\x80", 1, 0},
        {"\xff\xff\xff\xff\xff\x01", 6, 100},
        {"\x04\x0c"
         "abc",
         5, 4}, /* a literal of 4 with 3 bytes */
        {"\x05\x00"
         "a\x01\x02",
         5, 5}, /* a copy from before the beginning */
        {"\x05\x00"
         "a\x01\x00",
         5, 5}, /* from nowhere */
        {"\x05\x00"
         "a\x05\x01",
         5, 5},                             /* longer than the output buffer */
        {"\x05\xfc\xff\xff\xff\xff", 6, 5}, /* a literal of 4 GiB */
    };
    uint8_t got[128];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_false(decode((const uint8_t *)cases[i].in, cases[i].bytes, got, cases[i].out));
    assert_true(decode((const uint8_t *)"\0", 1, got, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_repeat_what_was_written),
        cmocka_unit_test(lies_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
