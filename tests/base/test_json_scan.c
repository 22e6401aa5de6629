/* JSON read in place: accepts and refuses what jansson does, over texts with random damage, and reads the same
 * strings. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "base/json_scan.h"
#include "base/rng.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static status read_any(const char *text, size_t bytes, struct json_text *value)
{
    struct json_scan j;
    TRY(json_scan_begin(&j, text, bytes));
    TRY(json_scan_skip(&j, value));
    return json_scan_end(&j);
}

static const char *const seeds[] = {
    "{\"a\": [1, -2.5e+3, true, false, null, \"x\\n\\u00e9\\ud83d\\ude00\\\\\\\"\"], \"b\\u0041\": {}, "
    "\"c\": [[], [[]]]}",
    "[0, 10, -0, 1.5, 2E-7, \"\", \"a long string without any escape, more than sixteen bytes\", "
    "\"\xc3\xa9\xe4\xbb\x8a\"]",
    " \"only a string\" ",
    "[\"\\/\\b\\f\\r\\t\", {\"k\" : {\"k\" : [ ] } } ]\n",
};
static uint64_t bits_at(uint64_t a, uint64_t b)
{
    struct rng_block r = rng_at(7, RNG_TEST, a, b);
    return (uint64_t)r.u[0] << 32 | r.u[1];
}

static const char bits[] = "{}[]\",:\\ue0123456789-+.truefalsn \n\t\x01\x7f\xc3\xa9";

static void damaged_texts_are_judged_as_jansson_does(void **state)
{
    (void)state;
    int good = 0;
    for (uint64_t round = 0; round < 60000; round++) {
        char text[256];
        const char *seed = seeds[round % 4];
        size_t bytes = strlen(seed);
        memcpy(text, seed, bytes + 1);
        for (uint64_t k = 0, n = bits_at(round, 0) % 3; k < n; k++) {
            uint64_t r = bits_at(round, k + 1);
            size_t at = r % bytes;
            if (r >> 60 & 1)
                text[at] = bits[(r >> 32) % (sizeof bits - 1)];
            else
                memmove(text + at, text + at + 1, bytes-- - at);
        }
        struct json_text value;
        json_error_t error;
        json_t *tree = json_loadb(text, bytes, JSON_DECODE_ANY, &error);
        status st = read_any(text, bytes, &value);
        if ((st == STATUS_OK) != (tree != NULL))
            print_message("%.*s: status %d, jansson: %s\n", (int)bytes, text, st, tree ? "good" : error.text);
        assert_int_equal(st == STATUS_OK, tree != NULL);
        good += tree != NULL;
        json_decref(tree);
    }
    assert_in_range(good, 1000, 59000);
}

static void strings_and_numbers_are_read(void **state)
{
    (void)state;
    static const char text[] = "{\"k\\u00e9y\": \"a\\\\\\ud83d\\ude00\", \"n\": [-17, 999999999999999999]}";
    struct json_scan j;
    struct json_text key, value;
    char out[64];
    bool more;
    int64_t n;
    assert_int_equal(json_scan_begin(&j, text, sizeof text - 1), STATUS_OK);
    assert_int_equal(json_scan_open(&j, '{'), STATUS_OK);
    assert_int_equal(json_scan_next(&j, '}', &more), STATUS_OK);
    assert_true(more);
    assert_int_equal(json_scan_key(&j, &key), STATUS_OK);
    assert_int_equal(json_scan_unescape(key, out), 4);
    assert_memory_equal(out, "k\xc3\xa9y", 4);
    assert_int_equal(json_scan_string(&j, &value), STATUS_OK);
    assert_int_equal(json_scan_unescape(value, out), 6);
    assert_memory_equal(out, "a\\\xf0\x9f\x98\x80", 6);
    assert_int_equal(json_scan_next(&j, '}', &more), STATUS_OK);
    assert_int_equal(json_scan_key(&j, &key), STATUS_OK);
    assert_int_equal(json_scan_open(&j, '['), STATUS_OK);
    assert_int_equal(json_scan_next(&j, ']', &more), STATUS_OK);
    assert_int_equal(json_scan_integer(&j, &n), STATUS_OK);
    assert_int_equal(n, -17);
    assert_int_equal(json_scan_next(&j, ']', &more), STATUS_OK);
    assert_int_equal(json_scan_integer(&j, &n), STATUS_OK);
    assert_true(n == 999999999999999999);
    assert_int_equal(json_scan_next(&j, ']', &more), STATUS_OK);
    assert_false(more);
    assert_int_equal(json_scan_next(&j, '}', &more), STATUS_OK);
    assert_false(more);
    assert_int_equal(json_scan_end(&j), STATUS_OK);
}

static void errors_name_line_and_column(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"[1,\n 2 3]", "line 2, column 4: a comma or ] is expected"},
        {"[1,]", "line 1, column 4: a comma without a value"},
        {"{\"a\" 1}", "line 1, column 6: a colon is expected"},
        {"[\"\\ud800\"]", "line 1, column 3: this is no escape"},
        {"[\"abc", "line 1, column 2: a string without an end"},
        {"[1] x", "line 1, column 5: something follows"},
        {"[\"\xff\"]", "line 1, column 3: invalid UTF-8"},
        {"[01]", "line 1, column 2: this is no JSON value"},
    };
    struct json_text value;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(read_any(cases[i].text, strlen(cases[i].text), &value), STATUS_DATA);
        if (strstr(status_message(), cases[i].message) == NULL) print_message("%s\n", status_message());
        assert_non_null(strstr(status_message(), cases[i].message));
    }
    char deep[200];
    memset(deep, '[', sizeof deep);
    assert_int_equal(read_any(deep, sizeof deep, &value), STATUS_DATA);
    assert_non_null(strstr(status_message(), "too deep"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_texts_are_judged_as_jansson_does),
        cmocka_unit_test(strings_and_numbers_are_read),
        cmocka_unit_test(errors_name_line_and_column),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
