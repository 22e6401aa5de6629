/* Goal: tokens share an id exactly when Engram's published normalizer makes the same of them. Method: its classes of some 1700 texts, by
 * Hugging Face tokenizers (tools/make_token_map_fixture.py), and by hand what a text cannot be. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "data/tokenizer/token_map.h"

enum { TEXTS_MAX = 4096, BYTES_MAX = 32 };

static void classes_are_those_of_the_published_normalizer(void **state)
{
    (void)state;
    static char bytes[TEXTS_MAX][BYTES_MAX];
    static struct text texts[TEXTS_MAX];
    static int32_t want[TEXTS_MAX], map[TEXTS_MAX];
    char *file = NULL;
    size_t size = 0;
    int32_t count = 0, distinct, classes = 0;
    assert_int_equal(io_read_file(TEST_SOURCE_DIR "/tests/fixtures/token_map.txt", 1 << 20, &file, &size),
                     STATUS_OK);
    for (char *at = file; *at; at++, count++) {
        size_t n = 0;
        assert_true(count < TEXTS_MAX);
        for (; *at != ' '; at += 2) {
            const char digits[] = {at[0], at[1], 0};
            assert_true(n < BYTES_MAX);
            bytes[count][n++] = (char)strtol(digits, NULL, 16);
        }
        texts[count] = (struct text){bytes[count], n};
        want[count] = (int32_t)strtol(at, &at, 10);
        if (want[count] >= classes) classes = want[count] + 1;
    }
    assert_true(count > 1000 && classes < count);
    assert_int_equal(token_map_build(texts, count, count, map, &distinct), STATUS_OK);
    int different = 0;
    for (int32_t i = 0; i < count; i++)
        if (map[i] != want[i] && different++ < 10)
            print_error("text %d '%.*s': %d, not %d\n", i, (int)texts[i].bytes, texts[i].data, map[i],
                        want[i]);
    assert_int_equal(different, 0);
    assert_int_equal(distinct, classes);
    free(file);
}

static void what_is_no_text_stands_for_itself(void **state)
{
    (void)state;
    const struct text tokens[] = {{"a", 1},    {"\xc3", 1}, {"\xc3", 1}, {"", 0},         {"A", 1},
                                  {"\xa4", 1}, {"", 0},     {" A\n", 3}, {"\xcc\x81", 2}, {"\xcc\x82", 2}};
    const int32_t want[] = {0, 1, 1, 2, 0, 3, 4, 0, 5, 6, 7, 8};
    int32_t map[12], distinct;
    assert_int_equal(token_map_build(tokens, 10, 12, map, &distinct), STATUS_OK);
    for (int i = 0; i < 12; i++) assert_int_equal(map[i], want[i]);
    assert_int_equal(distinct, 9);
    assert_int_equal(token_map_build(NULL, 0, 0, map, &distinct), STATUS_OK);
    assert_int_equal(distinct, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_are_those_of_the_published_normalizer),
        cmocka_unit_test(what_is_no_text_stands_for_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
