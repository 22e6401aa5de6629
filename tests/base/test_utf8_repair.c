/* Repaired text: the examples of the Unicode standard (table 3-8 and those around it), whose results are those of
 * Python's errors="replace" and errors="ignore"; and any bytes become valid. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "base/rng.h"
#include "base/utf8.h"
#include "base/utf8_repair.h"
#include <stdlib.h>
#include <string.h>

#define R "\xef\xbf\xbd"

static void the_standards_examples_come_out_as_in_python(void **state)
{
    (void)state;
    static const struct {
        const char *text, *replaced, *skipped;
        int places;
    } cases[] = {
        {"a\xf1\x80\x80\xe1\x80\xc2"
         "b\x80"
         "c\x80\xbf"
         "d",
         "a" R R R "b" R "c" R R "d", "abcd", 6},
        {"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82"
         "A",
         R R R R R R R R "A", "A", 8},
        {"\xed\xa0\x80\xed\xbf\xbf\xed\xaf"
         "A",
         R R R R R R R R "A", "A", 8},
        {"\xf4\x91\x92\x93\xff"
         "A\x80\xbf"
         "B",
         R R R R R "A" R R "B", "AB", 7},
        {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf"
         "A",
         R R R R "A", "A", 4},
        {"\xe4\xb8", R, "", 1},
        {"fine \xe4\xb8\xad", "fine \xe4\xb8\xad", "fine \xe4\xb8\xad", 0},
        {"", "", "", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *out;
        size_t bytes;
        int64_t places;
        assert_int_equal(
            utf8_repair(cases[i].text, strlen(cases[i].text), UTF8_REPLACE, &out, &bytes, &places),
            STATUS_OK);
        assert_string_equal(out, cases[i].replaced);
        assert_int_equal(bytes, strlen(cases[i].replaced));
        assert_int_equal(places, cases[i].places);
        free(out);
        assert_int_equal(utf8_repair(cases[i].text, strlen(cases[i].text), UTF8_SKIP, &out, &bytes, &places),
                         STATUS_OK);
        assert_string_equal(out, cases[i].skipped);
        free(out);
        status st = utf8_repair(cases[i].text, strlen(cases[i].text), UTF8_ERROR, &out, &bytes, &places);
        assert_int_equal(st, cases[i].places ? STATUS_DATA : STATUS_OK);
        free(out);
    }
    char *out;
    size_t bytes;
    int64_t places;
    assert_int_equal(utf8_repair("ab\xff", 3, UTF8_ERROR, &out, &bytes, &places), STATUS_DATA);
    assert_non_null(strstr(status_message(), "byte offset 2 (0xff)"));
}

static void any_bytes_become_valid(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 20000; round++) {
        char text[48], *out;
        size_t bytes;
        int64_t places;
        static const uint8_t often[] = {0xe4, 0xf0, 0xc3, 0x80, 0xbf, 0x90,
                                        0xed, 0xa0, 'a',  0xff, 0xc0, 0xf4};
        size_t n = rng_at(3, RNG_TEST, round, 0).u[0] % sizeof text;
        for (size_t i = 0; i < n; i++) {
            struct rng_block b = rng_at(3, RNG_TEST, round, 1 + i);
            text[i] = (char)(b.u[0] % 4 ? often[b.u[1] % sizeof often] : b.u[1] & 0xff);
        }
        for (int how = UTF8_REPLACE; how <= UTF8_SKIP; how++) {
            assert_int_equal(utf8_repair(text, n, (enum utf8_invalid)how, &out, &bytes, &places), STATUS_OK);
            assert_int_equal(utf8_valid(out, bytes), bytes);
            assert_int_equal(places == 0, utf8_valid(text, n) == n);
            free(out);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_standards_examples_come_out_as_in_python),
        cmocka_unit_test(any_bytes_become_valid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
