/* Goal: the checksums are the published ones, by instruction and by table, whole and in pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/hash.h"

#include <stdio.h>
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

static void hmac_gives_the_values_of_rfc_4231(void **state)
{
    (void)state;
    uint8_t counted[25], aa[131], dd[50], cd[50];
    for (int i = 0; i < 25; i++) counted[i] = (uint8_t)(i + 1);
    memset(aa, 0xaa, sizeof aa);
    memset(dd, 0xdd, sizeof dd);
    memset(cd, 0xcd, sizeof cd);
    uint8_t b[20];
    memset(b, 0x0b, sizeof b);
    const char *const long_data =
        "This is a test using a larger than block-size key and a larger than block-size data. "
        "The key needs to be hashed before being used by the HMAC algorithm.";
    const struct {
        const void *key;
        size_t key_bytes;
        const void *data;
        size_t bytes;
        const char *want;
    } cases[] = {
        {b, 20, "Hi There", 8, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
        {"Jefe", 4, "what do ya want for nothing?", 28,
         "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
        {aa, 20, dd, 50, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
        {counted, 25, cd, 50, "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
        {aa, 131, "Test Using Larger Than Block-Size Key - Hash Key First", 54,
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
        {aa, 131, long_data, strlen(long_data),
         "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hmac h;
        uint8_t got[32];
        char hex[65];
        hmac_init(&h, cases[i].key, cases[i].key_bytes);
        sha256_add(&h.inner, cases[i].data, cases[i].bytes);
        hmac_end(&h, got);
        for (int k = 0; k < 32; k++) snprintf(hex + 2 * k, 3, "%02x", got[k]);
        assert_string_equal(hex, cases[i].want);
        uint8_t other[32];
        memcpy(other, got, 32);
        assert_true(hash_equal(got, other));
        other[i] ^= 1;
        assert_false(hash_equal(got, other));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc32c_gives_the_published_values),
        cmocka_unit_test(crc32c_by_instruction_equals_the_portable_one_at_every_length_and_alignment),
        cmocka_unit_test(hmac_gives_the_values_of_rfc_4231),
        cmocka_unit_test(sha256_gives_the_published_values_in_pieces_of_any_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
