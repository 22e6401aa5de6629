/* The splitters against PCRE2, and the Unicode table against PCRE2's (split_reference.h says where they differ). */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "split_reference.h"
#include "random_text.h"
#include <stdlib.h>

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
    pcre2_code *unassigned = reference_compile("\\p{Cn}");
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
        [UNICODE_SPACE] = "\\s",      [UNICODE_NUMBER] = "\\p{N}", [UNICODE_UPPER] = "\\p{Lu}",
        [UNICODE_LOWER] = "\\p{Ll}",  [UNICODE_TITLE] = "\\p{Lt}", [UNICODE_MODIFIER] = "\\p{Lm}",
        [UNICODE_LETTER] = "\\p{Lo}", [UNICODE_MARK] = "\\p{M}",   [UNICODE_PUNCT] = "\\p{P}",
        [UNICODE_SYMBOL] = "\\p{S}",
    };
    for (int class = UNICODE_SPACE; class <= UNICODE_SYMBOL; class ++) {
        pcre2_code *code = reference_compile(pattern[class]);
        int wrong = 0;
        for (uint32_t c = 0; c < 0x110000; c++)
            if (both_know(c))
                wrong += matches(code, c) != (unicode_class_of(c) == (enum unicode_class) class);
        pcre2_code_free(code);
        assert_int_equal(wrong, 0);
    }
}

static void white_space_has_25_code_points(void **state)
{
    (void)state;
    int spaces = 0;
    for (uint32_t c = 0; c < 0x110000; c++) spaces += unicode_class_of(c) == UNICODE_SPACE;
    assert_int_equal(spaces, 25);
    assert_int_equal(unicode_class_of(0x180e), UNICODE_OTHER);
    assert_int_equal(unicode_class_of(0x10d4e), UNICODE_MODIFIER); /* Garay, new in 16.0 */
    assert_int_equal(unicode_class_of(0x10ffff), UNICODE_OTHER);
}

static size_t room_ends[1 << 23];

/* `step`: ends are asked for in so many at once. */
static void assert_split_equals_pcre2(enum split_id row, const struct reference *r, const char *text,
                                      size_t bytes, int step)
{
    size_t count = reference_scan(r, 0, text, bytes, 0, room_ends), next = 0, at = 0;
    while (at < bytes) {
        size_t ends[64];
        int n = split_table[row].scan((const uint8_t *)text, at, bytes, ends, step);
        assert_in_range(n, 1, step);
        for (int i = 0; i < n; i++, next++) {
            if (next >= count || ends[i] != room_ends[next])
                print_message("row %d at %zu: %zu for %zu: %.*s\n", (int)row, at, ends[i] - at,
                              room_ends[next] - at, (int)(bytes - at < 40 ? bytes - at : 40), text + at);
            assert_in_range(next, 0, count - 1);
            assert_int_equal(ends[i], room_ends[next]);
            at = ends[i];
        }
    }
    assert_int_equal(next, count);
    assert_int_equal(split_table[row].scan((const uint8_t *)text, bytes, bytes, room_ends, 1), 0);
}

/* Every spelling, too: they must mean the same. */
static void pieces_of_random_text_are_those_of_the_pattern(void **state)
{
    (void)state;
    enum { BYTES = 2000, TEXTS = 300 };
    static char text[BYTES + 4];
    for (int row = 0; row < SPLIT_COUNT; row++)
        for (int k = 0; k < SPLIT_PATTERNS_MAX && split_table[row].patterns[k] != NULL; k++) {
            if (k > 0 && split_table[row].parts > 1) break;
            struct reference r = reference_open((enum split_id)row, k);
            for (uint64_t seed = 0; seed < TEXTS;
                 seed++) { /* short ones too: the end of a text is where patterns differ */
                size_t bytes = random_text(seed, seed % 2 ? BYTES : seed % 40, both_know, text);
                assert_split_equals_pcre2((enum split_id)row, &r, text, bytes, 7);
            }
            for (uint64_t seed = 0; seed < TEXTS; seed++) {
                size_t bytes = 0;
                for (uint64_t i = 0; bytes < (seed % 2 ? BYTES : 60); i++)
                    bytes += (size_t)utf8_write(
                        reference_alphabet[random_below(seed, i, seed % 3 ? REFERENCE_LETTERS : 20)],
                        text + bytes);
                assert_split_equals_pcre2((enum split_id)row, &r, text, bytes, 1 + (int)(seed % 64));
            }
            reference_close(&r);
        }
}

/* All strings of up to `longest` characters of the first `letters` of the alphabet. */
static void check_short(enum split_id row, const struct reference *r, uint32_t letters, int longest)
{
    for (int length = 1; length <= longest; length++) {
        uint64_t all = 1;
        for (int i = 0; i < length; i++) all *= letters;
        for (uint64_t number = 0; number < all; number++) {
            char text[64];
            size_t bytes = 0;
            uint64_t rest = number;
            for (int i = 0; i < length; i++, rest /= letters)
                bytes += (size_t)utf8_write(reference_alphabet[rest % letters], text + bytes);
            assert_split_equals_pcre2(row, r, text, bytes, 64);
        }
    }
}

static void pieces_of_all_short_strings_are_those_of_the_pattern(void **state)
{
    (void)state;
    for (int row = 0; row < SPLIT_COUNT; row++) {
        struct reference r = reference_open((enum split_id)row, 0);
        check_short((enum split_id)row, &r, REFERENCE_LETTERS, 2);
        check_short((enum split_id)row, &r, 36, 3);
        check_short((enum split_id)row, &r, 16, 4);
        check_short((enum split_id)row, &r, 10, 5);
        reference_close(&r);
    }
}

/* All strings of five ASCII characters, concatenated: long enough for the windows of the scanners, with each
 * string at many positions of a window. */
static void pieces_of_long_ascii_are_those_of_the_pattern(void **state)
{
    (void)state;
    static const char letters[] = " \n\taBs'7./l\x01", *const between[] = {"",   "a",  " ",
                                                                           "\n", "77", "-\u00e9"};
    enum { LETTERS = sizeof letters - 1, WORDS = LETTERS * LETTERS * LETTERS * LETTERS * LETTERS };
    char *text = malloc(WORDS * 8 + 64);
    for (size_t k = 0; k < sizeof between / sizeof *between; k++) {
        size_t bytes = 0;
        for (uint32_t i = 0; i < WORDS; i += k == 0 ? 1 : 11) {
            for (uint32_t n = 0, rest = i + (uint32_t)k; n < 5; n++, rest /= LETTERS)
                text[bytes++] = letters[rest % LETTERS];
            for (const char *p = between[k]; *p != 0;) text[bytes++] = *p++;
        }
        for (int row = 0; row < SPLIT_COUNT; row++) {
            struct reference r = reference_open((enum split_id)row, 0);
            assert_split_equals_pcre2((enum split_id)row, &r, text, bytes, k % 2 ? 64 : 5);
            reference_close(&r);
        }
    }
    static const char more[] = "  \n'''sStTmdDrevlLaZ079.(/_\r\t\x7f";
    for (int row = 0; row < SPLIT_COUNT; row++) {
        struct reference r = reference_open((enum split_id)row, 0);
        for (uint64_t seed = 0; seed < 200; seed++) {
            uint32_t n = 2 + random_below(seed, 0, sizeof more - 3);
            for (uint64_t i = 0; i < 2000; i++)
                text[i] = more[(random_below(seed, i + 1, n) + seed) % (sizeof more - 1)];
            assert_split_equals_pcre2((enum split_id)row, &r, text, 2000 - seed, 64);
        }
        reference_close(&r);
    }
    free(text);
}

/* Each alone between line ends, between letters, after a space, before a capital, doubled, after punctuation. */
static void every_character_is_split_as_by_the_pattern(void **state)
{
    (void)state;
    static const char *const frames[] = {"\nx\n%\n", "a%a", " %", "B%BB ", "%% ", "!%", "7%"};
    char *text = malloc(0x110000 * 5);
    for (size_t f = 0; f < sizeof frames / sizeof *frames; f++) {
        size_t bytes = 0;
        for (uint32_t c = 0; c < 0x110000; c += c < 0x30000 ? 1 : 97) {
            if (!both_know(c)) continue;
            if (bytes + 40 > 0x110000 * 5) break;
            for (const char *p = frames[f]; *p != 0; p++)
                if (*p == '%')
                    bytes += (size_t)utf8_write(c, text + bytes);
                else
                    text[bytes++] = *p;
        }
        for (int row = 0; row < SPLIT_COUNT; row++) {
            struct reference r = reference_open((enum split_id)row, 0);
            assert_split_equals_pcre2((enum split_id)row, &r, text, bytes, 64);
            reference_close(&r);
        }
    }
    free(text);
}

static void assert_pieces(enum split_id row, const char *text, const char *const *want)
{
    size_t ends[32], at = 0, bytes = strlen(text);
    int count = split_table[row].scan((const uint8_t *)text, 0, bytes, ends, 32);
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
    assert_pieces(SPLIT_GPT2, "Don't we'LL  go", PIECES("Don", "'t", " we", "'", "LL", " ", " go"));
    assert_pieces(SPLIT_LLAMA3, "Don't we'LL  go", PIECES("Don", "'t", " we", "'LL", " ", " go"));
    assert_pieces(SPLIT_O200K, "Don't we'LL  go", PIECES("Don't", " we'LL", " ", " go"));
    assert_pieces(SPLIT_TEKKEN, "Don't we'LL", PIECES("Don", "'t", " we", "'LL"));
    assert_pieces(SPLIT_GPT2, "12345 x\n\n y\n", PIECES("12345", " x", "\n\n", " y", "\n"));
    assert_pieces(SPLIT_LLAMA3, "12345 x\n\n y\n", PIECES("123", "45", " x", "\n\n", " y", "\n"));
    assert_pieces(SPLIT_NANOCHAT, "12345 x", PIECES("12", "34", "5", " x"));
    assert_pieces(SPLIT_QWEN2, "123 x", PIECES("1", "2", "3", " x"));
    assert_pieces(SPLIT_LLAMA3, "a \t\r\n  b;\n\n#x", PIECES("a", " \t\r\n", " ", " b", ";\n\n", "#x"));
    assert_pieces(SPLIT_GPT2, "a \t\r\n  b;\n\n#x", PIECES("a", " \t\r\n ", " b", ";", "\n", "\n", "#", "x"));
    assert_pieces(SPLIT_LLAMA3, "a\n  ", PIECES("a", "\n", "  "));
    assert_pieces(SPLIT_CL100K, "a\n  ", PIECES("a", "\n  "));
    assert_pieces(SPLIT_O200K, "x;\n/fooBarBAZ", PIECES("x", ";\n/", "foo", "Bar", "BAZ"));
    assert_pieces(SPLIT_O200K, "\u4e2dAB \u4e2dAb", PIECES("\u4e2d", "AB", " \u4e2dAb"));
    assert_pieces(SPLIT_LLAMA3, "'\u017ft  ", PIECES("'\u017f", "t", "  "));
    assert_pieces(SPLIT_GPT2, "'\u017ft  ", PIECES("'", "\u017ft", "  "));
    assert_pieces(SPLIT_LLAMA3, "\U0001f600a 7", PIECES("\U0001f600a", " ", "7"));
    assert_pieces(SPLIT_QWEN35, "a\u0301b", PIECES("a\u0301b"));
    assert_pieces(SPLIT_QWEN2, "a\u0301b", PIECES("a", "\u0301b"));
    assert_pieces(SPLIT_DEEPSEEK3, "ab\u4e2d\u3042c  1234 .x\x01\x02 y",
                  PIECES("ab", "\u4e2d\u3042", "c", "  ", "123", "4", " .", "x", "\x01\x02", " y"));
#undef PIECES
}

static void a_cut_leaves_all_pieces_as_they_were(void **state)
{
    (void)state;
    enum { BYTES = 300 };
    static char text[BYTES + 4];
    int cuts = 0;
    for (uint64_t seed = 0; seed < 6000; seed++) {
        size_t bytes = 0;
        if (seed % 2 == 0)
            bytes = random_text(seed, BYTES, NULL, text);
        else
            for (uint64_t i = 0; bytes < BYTES; i++)
                bytes += (size_t)utf8_write(reference_alphabet[random_below(seed, i, 20)], text + bytes);
        size_t cut = split_cut(text, bytes, 1 + random_below(seed, 1000, BYTES - 2));
        if (cut == bytes) continue;
        cuts++;
        for (int row = 0; row < SPLIT_COUNT; row++) {
            size_t whole[BYTES + 4], parts[BYTES + 4];
            const uint8_t *p = (const uint8_t *)text;
            int n = split_table[row].scan(p, 0, bytes, whole, BYTES + 4);
            int first = split_table[row].scan(p, 0, cut, parts, BYTES + 4);
            int second = split_table[row].scan(p, cut, bytes, parts + first, BYTES + 4 - first);
            assert_int_equal(n, first + second);
            assert_memory_equal(whole, parts, (size_t)n * sizeof *whole);
        }
    }
    assert_true(cuts > 4000);
}

/* A quadratic scanner would need hours. */
static void a_megabyte_without_a_place_to_split_takes_linear_time(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20 };
    static const char *const units[] = {"a",      "A",          " ",      "\n",      "\t",      "7",
                                        "'",      "=",          "\u4e2d", "\u3000",  "\u0301",  "\x01",
                                        "\u0430", "aA",         " \n",    "A\u4e2d", "a\u0301", "\x01\u0301",
                                        "' ",     "\U0001f600", "\n ",    "/\n",     "\u30fb "};
    char *text = malloc(BYTES + 8);
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        size_t bytes = 0, n = strlen(units[u]);
        for (; bytes < BYTES; bytes += n) memcpy(text + bytes, units[u], n);
        for (int row = 0; row < SPLIT_COUNT; row++) {
            size_t at = 0, ends[256];
            for (int count; (count = split_table[row].scan((const uint8_t *)text, at, bytes, ends, 256)) > 0;)
                at = ends[count - 1];
            assert_int_equal(at, bytes);
        }
    }
    free(text);
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
        cmocka_unit_test(known_texts_split_as_worked_out_by_hand),
        cmocka_unit_test(pieces_of_random_text_are_those_of_the_pattern),
        cmocka_unit_test(pieces_of_all_short_strings_are_those_of_the_pattern),
        cmocka_unit_test(pieces_of_long_ascii_are_those_of_the_pattern),
        cmocka_unit_test(every_character_is_split_as_by_the_pattern),
        cmocka_unit_test(a_cut_leaves_all_pieces_as_they_were),
        cmocka_unit_test(a_megabyte_without_a_place_to_split_takes_linear_time),
        cmocka_unit_test(invalid_utf8_is_found_where_it_begins),
    };
    return cmocka_run_group_tests(tests, find_assigned, free_assigned);
}
