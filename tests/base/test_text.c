/* Goal: numbers are read whole or refused, names are guessed only when near, and figures for people have three digits at most before
 * the point. Method: tables of golden cases; a slow edit distance as the judge of text_nearest. */
#include "base/text.h"
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void whole_numbers_take_suffixes_and_exponents(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {
        {"0", 0},
        {"-7", -7},
        {"+7", 7},
        {"007", 7},
        {"4k", 4000},
        {"4K", 4000},
        {"1e6", 1000000},
        {"2M", 2000000},
        {"1B", 1000000000},
        {"3G", 3000000000},
        {"2T", 2000000000000},
        {"4Ki", 4096},
        {"2Mi", 2097152},
        {"1Gi", 1073741824},
        {"1.5k", 1500},
        {"0.5Ki", 512},
        {"-2k", -2000},
        {"1.5e3", 1500},
        {"9223372036854775807", INT64_MAX},
        {"-9223372036854775808", INT64_MIN},
        {"9007199254740991", 9007199254740991},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        int64_t v = -1;
        if (!text_to_int(good[i].text, &v)) fail_msg("%s refused", good[i].text);
        assert_true(v == good[i].value);
    }
}

static void what_is_not_a_whole_number_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      " 1",
                                      "1 ",
                                      "k",
                                      "-",
                                      "+",
                                      ".",
                                      "1.5",
                                      "1e-1",
                                      "0x10",
                                      "-0x10",
                                      "1k2",
                                      "1kk",
                                      "inf",
                                      "nan",
                                      "-inf",
                                      "1e400",
                                      "9223372036854775808",
                                      "-9223372036854775809",
                                      "1e19",
                                      "10000000T",
                                      "1,000",
                                      "1_000",
                                      "--1",
                                      "4 k",
                                      "4ki"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int64_t v = 12345;
        if (text_to_int(bad[i], &v)) fail_msg("'%s' read as %lld", bad[i], (long long)v);
        assert_int_equal(v, 12345);
    }
}

static void reals_are_read_exactly_or_refused(void **state)
{
    (void)state;
    double v;
    assert_true(text_to_real("3e-4", &v) && v == 3e-4);
    assert_true(text_to_real("-.5", &v) && v == -0.5);
    assert_true(text_to_real("1.", &v) && v == 1);
    assert_true(text_to_real("0.1", &v) && v == 0.1);
    static const char *const bad[] = {"",      " 1",    "1 ", "nan", "inf", "-inf", "infinity",
                                      "1e999", "0x1p3", "1f", "1,5", "e5",  "-",    "1k"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (text_to_real(bad[i], &v)) fail_msg("'%s' read as %g", bad[i], v);
}

static void booleans_are_true_and_false_alone(void **state)
{
    (void)state;
    bool v = false;
    assert_true(text_to_bool("true", &v) && v);
    assert_true(text_to_bool("false", &v) && !v);
    static const char *const bad[] = {"", "True", "yes", "1", "0", "on", "true ", "falsey"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_false(text_to_bool(bad[i], &v));
}

static void typing_mistakes_find_their_word_and_strangers_find_none(void **state)
{
    (void)state;
    static const char *const words[] = {"train", "optim", "warmup_steps", "lr", "data"};
    assert_string_equal(text_nearest("trian", words, 5), "train");
    assert_string_equal(text_nearest("tran", words, 5), "train");
    assert_string_equal(text_nearest("traiin", words, 5), "train");
    assert_string_equal(text_nearest("data", words, 5), "data");
    assert_string_equal(text_nearest("warmpu_step", words, 5), "warmup_steps");
    assert_string_equal(text_nearest("rl", words, 5), "lr");
    assert_null(text_nearest("zebra", words, 5));
    assert_null(text_nearest("", words, 5));
    assert_null(text_nearest("train", words, 0));
    char longest[200];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    assert_null(text_nearest(longest, words, 5));
}

/* Optimal string alignment by its recursive definition, for words of a few letters. */
static int slow_distance(const char *a, size_t la, const char *b, size_t lb)
{
    if (la == 0 || lb == 0) return (int)(la + lb);
    int best = slow_distance(a, la - 1, b, lb - 1) + (a[la - 1] != b[lb - 1]);
    int d = slow_distance(a, la - 1, b, lb) + 1;
    if (d < best) best = d;
    d = slow_distance(a, la, b, lb - 1) + 1;
    if (d < best) best = d;
    if (la > 1 && lb > 1 && a[la - 1] == b[lb - 2] && a[la - 2] == b[lb - 1]) {
        d = slow_distance(a, la - 2, b, lb - 2) + 1;
        if (d < best) best = d;
    }
    return best;
}

static void random_word(char *word, uint64_t a, uint64_t b)
{
    struct rng_block r = rng_at(7, RNG_TEST, a, b);
    size_t length = 1 + r.u[0] % 5;
    for (size_t i = 0; i < length; i++) word[i] = (char)('a' + (r.u[1] >> (2 * i)) % 3);
    word[length] = 0;
}

static void the_nearest_word_is_nearest_by_edit_distance(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 300; i++) {
        char words[6][8];
        const char *candidates[5];
        for (uint64_t k = 0; k < 6; k++) random_word(words[k], i, k);
        int best = 1000;
        for (int k = 0; k < 5; k++) {
            candidates[k] = words[k];
            int d = slow_distance(words[5], strlen(words[5]), words[k], strlen(words[k]));
            if (d < best) best = d;
        }
        const char *near = text_nearest(words[5], candidates, 5);
        bool close = best <= (int)(strlen(words[5]) + 2) / 3;
        assert_int_equal(near != NULL, close);
        if (near) assert_int_equal(slow_distance(words[5], strlen(words[5]), near, strlen(near)), best);
    }
}

static void figures_for_people_are_short(void **state)
{
    (void)state;
    char buf[32];
    assert_string_equal(text_bytes(buf, 0), "0 B");
    assert_string_equal(text_bytes(buf, 512), "512 B");
    assert_string_equal(text_bytes(buf, 1536), "1.50 KiB");
    assert_string_equal(text_bytes(buf, 1.5 * 1073741824.0), "1.50 GiB");
    assert_string_equal(text_bytes(buf, -2048), "-2.00 KiB");
    assert_string_equal(text_count(buf, 999), "999");
    assert_string_equal(text_count(buf, 1234), "1.23k");
    assert_string_equal(text_count(buf, 12.3e6), "12.3M");
    assert_string_equal(text_count(buf, 1.5e9), "1.50B");
    assert_string_equal(text_duration(buf, 12), "12s");
    assert_string_equal(text_duration(buf, 190), "3m10s");
    assert_string_equal(text_duration(buf, 3720), "1h02m");
    assert_string_equal(text_duration(buf, 90000), "1d01h");
    assert_string_equal(text_duration(buf, -5), "0s");
    assert_string_equal(text_duration(buf, 59.6), "1m00s");
}

static void times_are_said_as_people_say_them(void **state)
{
    (void)state;
    static const struct {
        double seconds;
        const char *text;
    } rows[] = {{0, "0 us"},
                {3.5e-4, "350 us"},
                {9.996e-4, "1.00 ms"},
                {0.0112, "11.2 ms"},
                {0.2985, "298 ms"},
                {0.99951, "1.00 s"},
                {3.2, "3.20 s"},
                {45.67, "45.7 s"},
                {60, "1 min"},
                {725, "12 min 5 s"},
                {3600, "1 h"},
                {4 * 3600 + 180, "4 h 3 min"},
                {3599.9, "1 h"},
                {4 * 86400 + 3 * 3600, "4 d 3 h"},
                {150 * 86400.0, "150 d"},
                {3471389569.2e-3, "40 d 4 h"},
                {8 * 365.25 * 86400, "8 years"}};
    char buf[32];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_string_equal(text_time(buf, rows[i].seconds), rows[i].text);
}

static void long_texts_are_wrapped(void **state)
{
    (void)state;
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    text_wrap(f, 3, 5, 12, "one two three");
    text_wrap(f, 9, 5, 12, "four");
    fclose(f);
    assert_string_equal(text, "  one two\n     three\n\n     four\n");
    free(text);
}

static void a_shell_reads_a_quoted_word_as_it_was(void **state)
{
    (void)state;
    static const char *const words[][2] = {
        {"runs/a-1", "runs/a-1"}, {"", "''"},       {"a b", "'a b'"},
        {"x_*.bin", "'x_*.bin'"}, {"'", "''\\'''"}, {"don't", "'don'\\''t'"},
        {"$HOME", "'$HOME'"},     {"~", "'~'"},     {"--a=b,c", "--a=b,c"}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        char *quoted = text_shell_word(words[i][0]);
        assert_string_equal(quoted, words[i][1]);
        free(quoted);
    }
}

static void the_parent_of_a_path_is_what_holds_it(void **state)
{
    (void)state;
    static const char *const paths[][2] = {
        {"runs/a", "runs"}, {"runs/a/", "runs"}, {"a", "."},      {"a/", "."},
        {"/a", "/"},        {"/", "/"},          {"x//y//", "x"}, {"", "."}};
    char buf[64];
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        assert_string_equal(text_parent(buf, sizeof buf, paths[i][0]), paths[i][1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_are_said_as_people_say_them),
        cmocka_unit_test(long_texts_are_wrapped),
        cmocka_unit_test(whole_numbers_take_suffixes_and_exponents),
        cmocka_unit_test(what_is_not_a_whole_number_is_refused),
        cmocka_unit_test(reals_are_read_exactly_or_refused),
        cmocka_unit_test(booleans_are_true_and_false_alone),
        cmocka_unit_test(typing_mistakes_find_their_word_and_strangers_find_none),
        cmocka_unit_test(the_nearest_word_is_nearest_by_edit_distance),
        cmocka_unit_test(figures_for_people_are_short),
        cmocka_unit_test(a_shell_reads_a_quoted_word_as_it_was),
        cmocka_unit_test(the_parent_of_a_path_is_what_holds_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
