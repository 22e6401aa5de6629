#include "data/text/alphabet.h"
#include "base/utf8.h"
#include <stdbool.h>

static bool stands_for_itself(uint32_t code)
{
    return (code >= 0x21 && code <= 0x7e) || (code >= 0xa1 && code <= 0xff && code != 0xad);
}

/* The other bytes in order: 00-20 (33), 7F-A0 (34), AD. */
static uint32_t code_of(uint8_t byte)
{
    if (stands_for_itself(byte)) return byte;
    if (byte <= 0x20) return 0x100u + byte;
    if (byte <= 0xa0) return 0x100u + 33 + (byte - 0x7fu);
    return 0x100u + 33 + 34;
}

int alphabet_byte(uint32_t code)
{
    if (code < 0x100) return stands_for_itself(code) ? (int)code : -1;
    if (code >= ALPHABET_END) return -1;
    uint32_t i = code - 0x100;
    return (int)(i < 33 ? i : i < 33 + 34 ? 0x7f + (i - 33) : 0xad);
}

size_t alphabet_write(const char *bytes, size_t count, char *out)
{
    size_t at = 0;
    for (size_t i = 0; i < count; i++) at += (size_t)utf8_write(code_of((uint8_t)bytes[i]), out + at);
    out[at] = 0;
    return at;
}

ptrdiff_t alphabet_read(const char *letters, size_t count, char *out)
{
    ptrdiff_t written = 0;
    for (size_t at = 0; at < count;) {
        if (letters[at] > 0x20 && letters[at] < 0x7f) { /* nearly all */
            out[written++] = letters[at++];
            continue;
        }
        struct utf8_char c = utf8_read((const uint8_t *)letters + at);
        int byte = alphabet_byte(c.code);
        if (byte < 0) return -1;
        out[written++] = (char)byte;
        at += c.bytes;
    }
    return written;
}
