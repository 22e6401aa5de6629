/* Goal: the checksums are the published ones, by instruction and by table, whole and in pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

static void crc32c_gives_the_published_values(void **state)
{
    (void)state;
    uint8_t bytes[32];
    assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283u);
    assert_int_equal(crc32c(0, "", 0), 0);
    memset(bytes, 0, sizeof bytes); /* RFC 3720, B.4 */
    assert_int_equal(crc32c(0, bytes, 32), 0x8a9136aau);
    memset(bytes, 0xff, sizeof bytes);
    assert_int_equal(crc32c(0, bytes, 32), 0x62a8ab43u);
    for (int i = 0; i < 32; i++) bytes[i] = (uint8_t)i;
    assert_int_equal(crc32c(0, bytes, 32), 0x46dd794eu);
}

static void crc32c_by_instruction_equals_the_portable_one_at_every_length_and_alignment(void **state)
{
    (void)state;
    enum { SIZE = 200000 };
    uint8_t *data = malloc(SIZE);
    uint32_t x = 1;
    for (int i = 0; i < SIZE; i++) data[i] = (uint8_t)((x = x * 1664525u + 1013904223u) >> 24);
    for (size_t n = 0; n < 300; n++)
        assert_int_equal(crc32c(7, data + n % 9, n), crc32c_portable(7, data + n % 9, n));
    const size_t sizes[] = {49151, 49152, 49153, 98303, 98304, 98311, 147456, 199990};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        assert_int_equal(crc32c(0, data + 3, sizes[i]), crc32c_portable(0, data + 3, sizes[i]));
    uint32_t pieces = crc32c(crc32c(0, data, 70001), data + 70001, SIZE - 70001);
    assert_int_equal(pieces, crc32c(0, data, SIZE));
    free(data);
}

static void sha(const char *text, size_t repeat, size_t piece, char out[65])
{
    struct sha256 s;
    sha256_init(&s);
    size_t length = strlen(text);
    for (size_t r = 0; r < repeat; r++)
        for (size_t at = 0; at < length; at += piece)
            sha256_add(&s, text + at, length - at < piece ? length - at : piece);
    sha256_hex(&s, out);
}

static void sha256_gives_the_published_values_in_pieces_of_any_size(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t repeat;
        const char *want;
    } cases[] = {
        {"", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"aaaaaaaaaa", 100000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
    };
    char got[65];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t piece = 1; piece < 70; piece += 7) {
            sha(cases[i].text, cases[i].repeat, piece, got);
            assert_string_equal(got, cases[i].want);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc32c_gives_the_published_values),
        cmocka_unit_test(crc32c_by_instruction_equals_the_portable_one_at_every_length_and_alignment),
        cmocka_unit_test(sha256_gives_the_published_values_in_pieces_of_any_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
