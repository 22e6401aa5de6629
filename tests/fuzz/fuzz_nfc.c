/* Any valid UTF-8, or any bytes as characters that move and compose: the normal form is that of the definition
 * (nfc_reference.h), and its own normal form. */
#include "data/text/nfc.h"
#include "data/nfc_reference.h"
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BYTES_MAX = 2000 };

static char *room;
static size_t room_cap;

static void check(const char *text, size_t bytes)
{
    static char want[12 * BYTES_MAX];
    const char *out;
    size_t out_bytes, n = nfc_reference(text, bytes, want);
    CHECK(nfc_normalize(text, bytes, &room, &room_cap, &out, &out_bytes) == STATUS_OK, "memory");
    CHECK(out_bytes == n && memcmp(out, want, n) == 0, "not the normal form");
    CHECK(nfc_normalize(want, n, &room, &room_cap, &out, &out_bytes) == STATUS_OK, "memory");
    CHECK(out_bytes == n && memcmp(out, want, n) == 0, "not its own normal form");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > BYTES_MAX) return 0;
    if (utf8_valid((const char *)data, size) == size) check((const char *)data, size);
    char text[2 * BYTES_MAX];
    size_t bytes = 0;
    for (size_t i = 0; i + 1 < size; i += 2) {
        const uint32_t *pair = unicode_nfc_pairs[(data[i] << 8 | data[i + 1]) % unicode_nfc_pair_count];
        uint32_t hangul[] = {0x1100 + data[i + 1] % 0x14u, 0x1160 + data[i + 1] % 0x18u,
                             0x11a6 + data[i + 1] % 0x1fu, 0xac00 + data[i + 1]};
        uint32_t code = data[i] < 0xc0   ? pair[data[i] % 3]
                        : data[i] < 0xe0 ? hangul[data[i] % 4]
                                         : 0x300u + data[i + 1] % 0x70u;
        bytes += (size_t)utf8_write(code, text + bytes);
    }
    check(text, bytes);
    return 0;
}
