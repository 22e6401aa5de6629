/* NFC against the definition (nfc_reference.h) and against known answers. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "data/text/nfc.h"
#include "nfc_reference.h"
#include "random_text.h"
#include <stdio.h>
#include <stdlib.h>

static char *room;
static size_t room_cap;

static void assert_nfc(const char *text, size_t bytes, const char *want, size_t want_bytes)
{
    const char *out;
    size_t out_bytes;
    assert_int_equal(nfc_normalize(text, bytes, &room, &room_cap, &out, &out_bytes), STATUS_OK);
    assert_int_equal(out_bytes, want_bytes);
    assert_memory_equal(out, want, want_bytes);
}

/* The form equals that of the reference, and normalizing it again changes nothing. */
static void check(const char *text, size_t bytes)
{
    static char want[3 * NFC_REFERENCE_MAX];
    size_t n = nfc_reference(text, bytes, want);
    assert_nfc(text, bytes, want, n);
    assert_nfc(want, n, want, n);
}

static void known_texts_have_their_known_form(void **state)
{
    (void)state;
    static const struct {
        const char *text, *form;
    } known[] = {
        {"", ""},
        {"plain", "plain"},
        {"e\u0301", "\u00e9"},
        {"\u00e9", "\u00e9"},
        {"e\u0323\u0302", "\u1ec7"},
        {"e\u0302\u0323", "\u1ec7"},             /* order */
        {"\u212b\u2126\u212a", "\u00c5\u03a9K"}, /* singletons */
        {"\u0344", "\u0308\u0301"},              /* never composed */
        {"\u0958", "\u0915\u093c"},              /* excluded from composition */
        {"\u1100\u1161\u11a8", "\uac01"},        /* Hangul */
        {"\uac00\u11a8", "\uac01"},
        {"\uac01\u11a8", "\uac01\u11a8"},
        {"\u1100\u1161\u0301\u11a8", "\uac00\u0301\u11a8"}, /* blocked */
        {"a\u0301\u0301", "\u00e1\u0301"},
        {"a\u0315\u0300", "\u00e0\u0315"},
        {"\u0301a", "\u0301a"},
        {"=\u0338", "\u2260"},
        {"\u0b47\u0b3e", "\u0b4b"},
        {"\U0001d15e", "\U0001d157\U0001d165"},
        {"\u2000|\u1fef|\u037e", "\u2002|`|;"},
        {"\u05d0\u05b7\u05bc", "\u05d0\u05b7\u05bc"},
        {"\U00011938", "\U00011938"}, /* of Unicode 13: left alone, both ways */
        {"\U00011935\U00011930", "\U00011935\U00011930"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        assert_nfc(known[i].text, strlen(known[i].text), known[i].form, strlen(known[i].form));
        check(known[i].text, strlen(known[i].text));
    }
}

/* Lines "text;form" of code points from Hugging Face tokenizers (tools/make_nfc_fixture.py). */
static void forms_are_those_of_tokenizers(void **state)
{
    (void)state;
    FILE *f = fopen(TEST_SOURCE_DIR "/tests/fixtures/nfc.txt", "r");
    char line[4096], text[2][4096];
    int lines = 0;
    assert_non_null(f);
    for (; fgets(line, sizeof line, f) != NULL; lines++) {
        size_t bytes[2] = {0};
        int side = 0;
        for (char *p = line, *end; *p != '\n'; p = end) {
            bytes[side] += (size_t)utf8_write((uint32_t)strtoul(p, &end, 16), text[side] + bytes[side]);
            assert_ptr_not_equal(p, end);
            if (*end == ';') {
                side = 1;
                end++;
            }
        }
        assert_nfc(text[0], bytes[0], text[1], bytes[1]);
    }
    fclose(f);
    assert_true(lines > 500);
}

static void every_character_alone_and_between_others(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x110000; c += c < 0x30000 ? 1 : 251) {
        if (c >= 0xd800 && c < 0xe000) continue;
        if (c >= 0x3400 && c < 0xf900 && c % 17 != 0) continue;
        char text[64];
        size_t n = (size_t)utf8_write(c, text);
        check(text, n);
        n = 1;
        text[0] = 'a';
        n += (size_t)utf8_write(c, text + n);
        n += (size_t)utf8_write(0x323, text + n);
        n += (size_t)utf8_write(0x301, text + n);
        n += (size_t)utf8_write(c, text + n);
        check(text, n);
    }
}

/* All that moves or composes, mixed with what does not. */
static uint32_t moving(uint64_t seed, uint64_t i)
{
    uint32_t pick = random_below(seed, i, 100), at = random_below(seed ^ 0x5555, i, 1u << 30);
    const uint32_t *pair = unicode_nfc_pairs[at % (uint32_t)unicode_nfc_pair_count];
    static const uint32_t hangul[] = {0x1100, 0x1112, 0x1113, 0x1161, 0x1175, 0x1176, 0x11a7,
                                      0x11a8, 0x11c2, 0x11c3, 0xac00, 0xac01, 0xd7a3};
    if (pick < 25) return pair[0];
    if (pick < 55) return pair[1];
    if (pick < 65) return pair[2];
    if (pick < 75) return hangul[at % (sizeof hangul / sizeof *hangul)];
    if (pick < 90) return 0x300 + at % 0x70;
    return pick < 95 ? 'a' : random_code(seed, i);
}

static void random_texts_have_the_form_of_the_definition(void **state)
{
    (void)state;
    enum { BYTES = 400 };
    char text[BYTES + 8];
    for (uint64_t seed = 0; seed < 20000; seed++) {
        size_t bytes = 0, limit = seed % 10 ? 1 + seed % 30 : BYTES;
        for (uint64_t i = 0; bytes < limit; i++) bytes += (size_t)utf8_write(moving(seed, i), text + bytes);
        check(text, bytes);
    }
    for (uint64_t seed = 0; seed < 2000; seed++) check(text, random_text(seed, BYTES, NULL, text));
}

static void text_in_normal_form_is_not_copied(void **state)
{
    (void)state;
    static const char *const same[] = {
        "plain text that is longer than one vector of thirty-two bytes, and then some",
        "\u4eca\u5929\u306f\u304c\u3042\u308b",
        "\u043c\u0438\u0440 \u043a\u0440\u0430\u0439",
        "caf\u00e9 na\u00efve",
        "\ud55c\uad6d\uc5b4",
        "a\u0316\u0315"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        const char *out;
        size_t bytes = strlen(same[i]), out_bytes;
        assert_int_equal(nfc_normalize(same[i], bytes, &room, &room_cap, &out, &out_bytes), STATUS_OK);
        assert_ptr_equal(out, same[i]);
        assert_int_equal(out_bytes, bytes);
    }
}

/* A sort that compares all marks with all others would need hours. */
static void a_megabyte_of_marks_takes_linear_time(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20 };
    static const char *const units[] = {"\u0301", "\u0301\u0323",      "e\u0301", "\u1100\u1161\u11a8",
                                        "\u0344", "\u0323\u0301\u0334"};
    char *text = malloc(BYTES + 16);
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        size_t bytes = 0, n = strlen(units[u]), out_bytes, again_bytes;
        const char *out, *again;
        for (; bytes < BYTES; bytes += n) memcpy(text + bytes, units[u], n);
        assert_int_equal(nfc_normalize(text, bytes, &room, &room_cap, &out, &out_bytes), STATUS_OK);
        char *copy = malloc(out_bytes);
        memcpy(copy, out, out_bytes);
        assert_int_equal(nfc_normalize(copy, out_bytes, &room, &room_cap, &again, &again_bytes), STATUS_OK);
        assert_int_equal(again_bytes, out_bytes);
        assert_memory_equal(again, copy, out_bytes);
        free(copy);
    }
    free(text);
}

static int free_room(void **state)
{
    (void)state;
    free(room);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_texts_have_their_known_form),
        cmocka_unit_test(forms_are_those_of_tokenizers),
        cmocka_unit_test(every_character_alone_and_between_others),
        cmocka_unit_test(random_texts_have_the_form_of_the_definition),
        cmocka_unit_test(text_in_normal_form_is_not_copied),
        cmocka_unit_test(a_megabyte_of_marks_takes_linear_time),
    };
    return cmocka_run_group_tests(tests, NULL, free_room);
}
