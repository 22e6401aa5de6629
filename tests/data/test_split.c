/* The splitters against PCRE2, and the Unicode table against PCRE2's.
 *
 * PCRE2 10.42 knows Unicode 14, the table Unicode 16, and its \s has U+180E: code points that PCRE2 takes for
 * unassigned, and that one, are left out of the comparison. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/split.h"
#include "data/unicode.h"
#include "random_text.h"
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

static pcre2_code *compile(const char *pattern)
{
    int error;
    size_t where;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                     &error, &where, NULL);
    assert_non_null(code);
    return code;
}

static bool matches(const pcre2_code *code, uint32_t c)
{
    char text[4];
    int bytes = utf8_write(c, text);
    pcre2_match_data *m = pcre2_match_data_create(1, NULL);
    int rc = pcre2_match(code, (PCRE2_SPTR)text, (size_t)bytes, 0, PCRE2_ANCHORED, m, NULL);
    pcre2_match_data_free(m);
    return rc >= 0;
}

static bool *assigned_in_14; /* [0x110000] */

static int find_assigned(void **state)
{
    (void)state;
    pcre2_code *unassigned = compile("\\p{Cn}");
    assigned_in_14 = calloc(0x110000, sizeof *assigned_in_14);
    for (uint32_t c = 0; c < 0x110000; c++)
        assigned_in_14[c] = c != 0x180e && !(c >= 0xd800 && c < 0xe000) && !matches(unassigned, c);
    pcre2_code_free(unassigned);
    return assigned_in_14 == NULL;
}

static int free_assigned(void **state)
{
    (void)state;
    free(assigned_in_14);
    return 0;
}

static bool both_know(uint32_t code)
{
    return assigned_in_14[code];
}

static void classes_are_those_of_pcre2_where_both_know_the_character(void **state)
{
    (void)state;
    static const char *const pattern[] = {
        [UNICODE_SPACE] = "\\s", [UNICODE_LETTER] = "\\p{L}", [UNICODE_NUMBER] = "\\p{N}"};
    for (int class = UNICODE_SPACE; class <= UNICODE_NUMBER; class ++) {
        pcre2_code *code = compile(pattern[class]);
        int wrong = 0;
        for (uint32_t c = 0; c < 0x110000; c++)
            if (both_know(c))
                wrong += matches(code, c) != (unicode_class_of(c) == (enum unicode_class) class);
        assert_int_equal(wrong, 0);
        pcre2_code_free(code);
    }
}

static void white_space_has_25_code_points(void **state)
{
    (void)state;
    int spaces = 0;
    for (uint32_t c = 0; c < 0x110000; c++) spaces += unicode_class_of(c) == UNICODE_SPACE;
    assert_int_equal(spaces, 25);
    assert_int_equal(unicode_class_of(0x180e), UNICODE_OTHER);
    assert_int_equal(unicode_class_of(0x10d4e), UNICODE_LETTER); /* Garay, new in 16.0 */
}

static void assert_split_equals_pcre2(int split, const char *text, size_t bytes, const pcre2_code *code,
                                      pcre2_match_data *m)
{
    size_t ends[7], at = 0, count = 0, next = 0;
    while (at < bytes) {
        if (next == count) {
            count = (size_t)split_table[split].scan((const uint8_t *)text, at, bytes, ends, 7);
            assert_in_range(count, 1, 7);
            next = 0;
        }
        int rc = pcre2_match(code, (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK, m, NULL);
        assert_int_equal(rc, 1);
        assert_int_equal(pcre2_get_ovector_pointer(m)[0], at);
        size_t want = pcre2_get_ovector_pointer(m)[1];
        if (ends[next] != want)
            print_message("%s at %zu: %.*s\n", split_table[split].name, at, (int)(want - at + 8), text + at);
        assert_int_equal(ends[next], want);
        at = ends[next++];
    }
    assert_int_equal(next, count);
}

static void pieces_of_random_text_are_those_of_the_pattern(void **state)
{
    (void)state;
    enum { BYTES = 2000, TEXTS = 400 };
    static char text[BYTES + 4];
    for (int s = 0; s < SPLIT_COUNT; s++) {
        pcre2_code *code = compile(split_table[s].pattern);
        assert_int_equal(pcre2_jit_compile(code, PCRE2_JIT_COMPLETE), 0);
        pcre2_match_data *m = pcre2_match_data_create(1, NULL);
        for (uint64_t seed = 0; seed < TEXTS;
             seed++) /* short ones too: the end of a text is where patterns differ */
            assert_split_equals_pcre2(
                s, text, random_text(seed, seed % 2 ? BYTES : seed % 40, both_know, text), code, m);
        pcre2_match_data_free(m);
        pcre2_code_free(code);
    }
}

enum { GPT2, LLAMA3 };

static void assert_pieces(int split, const char *text, const char *const *want)
{
    size_t ends[32], at = 0, bytes = strlen(text);
    int count = split_table[split].scan((const uint8_t *)text, 0, bytes, ends, 32);
    for (int i = 0; i < count; at = ends[i++]) {
        assert_non_null(want[i]);
        assert_int_equal(ends[i] - at, strlen(want[i]));
        assert_memory_equal(text + at, want[i], ends[i] - at);
    }
    assert_null(want[count]);
    assert_int_equal(at, bytes);
}

static void known_texts_split_as_worked_out_by_hand(void **state)
{
    (void)state;
#define PIECES(...) (const char *const[]){__VA_ARGS__, NULL}
    assert_pieces(GPT2, "Don't we'LL  go", PIECES("Don", "'t", " we", "'", "LL", " ", " go"));
    assert_pieces(LLAMA3, "Don't we'LL  go", PIECES("Don", "'t", " we", "'LL", " ", " go"));
    assert_pieces(GPT2, "12345 x\n\n y\n", PIECES("12345", " x", "\n\n", " y", "\n"));
    assert_pieces(LLAMA3, "12345 x\n\n y\n", PIECES("123", "45", " x", "\n\n", " y", "\n"));
    assert_pieces(LLAMA3, "a \t\r\n  b;\n\n#x", PIECES("a", " \t\r\n", " ", " b", ";\n\n", "#x"));
    assert_pieces(GPT2, "a \t\r\n  b;\n\n#x", PIECES("a", " \t\r\n ", " b", ";", "\n", "\n", "#", "x"));
    assert_pieces(LLAMA3, "'\xc5\xbft  ", PIECES("'\xc5\xbf", "t", "  "));
    assert_pieces(GPT2, "'\xc5\xbft  ", PIECES("'", "\xc5\xbft", "  "));
    assert_pieces(LLAMA3,
                  "\xf0\x9f\x98\x80"
                  "a 7",
                  PIECES("\xf0\x9f\x98\x80"
                         "a",
                         " ", "7"));
#undef PIECES
}

static void a_cut_leaves_all_pieces_as_they_were(void **state)
{
    (void)state;
    enum { BYTES = 300 };
    static char text[BYTES + 4];
    int cuts = 0;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        size_t bytes = random_text(seed, BYTES, NULL, text), cut = split_cut(text, bytes, BYTES / 2);
        if (cut == bytes) continue;
        cuts++;
        for (int s = 0; s < SPLIT_COUNT; s++) {
            size_t whole[BYTES + 4], parts[BYTES + 4];
            const uint8_t *p = (const uint8_t *)text;
            int n = split_table[s].scan(p, 0, bytes, whole, BYTES + 4);
            int first = split_table[s].scan(p, 0, cut, parts, BYTES + 4);
            int second = split_table[s].scan(p, cut, bytes, parts + first, BYTES + 4 - first);
            assert_int_equal(n, first + second);
            assert_memory_equal(whole, parts, (size_t)n * sizeof *whole);
        }
    }
    assert_true(cuts > 2000);
}

static void invalid_utf8_is_found_where_it_begins(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t count;
    } bad[] = {{"\x80", 1},
               {"\xc1\xbf", 2},
               {"\xe0\x9f\xbf", 3},
               {"\xed\xa0\x80", 3},
               {"\xf0\x8f\xbf\xbf", 4},
               {"\xf4\x90\x80\x80", 4},
               {"\xf5\x80\x80\x80", 4},
               {"\xe2\x82", 2},
               {"\xe2\x82(", 3},
               {"\xff", 1}};
    static char text[200];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (size_t at = 0; at < 100; at++) {
            memset(text, 'a', sizeof text);
            memcpy(text + at, bad[i].bytes, bad[i].count);
            assert_int_equal(utf8_valid(text, at + bad[i].count), at);
            assert_int_equal(utf8_valid(text, sizeof text), at);
        }
    size_t bytes = random_text(7, 190, NULL, text);
    assert_int_equal(utf8_valid(text, bytes), bytes);
    assert_int_equal(utf8_valid("", 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_are_those_of_pcre2_where_both_know_the_character),
        cmocka_unit_test(white_space_has_25_code_points),
        cmocka_unit_test(pieces_of_random_text_are_those_of_the_pattern),
        cmocka_unit_test(known_texts_split_as_worked_out_by_hand),
        cmocka_unit_test(a_cut_leaves_all_pieces_as_they_were),
        cmocka_unit_test(invalid_utf8_is_found_where_it_begins),
    };
    return cmocka_run_group_tests(tests, find_assigned, free_assigned);
}
