#include "observe/observe_int.h"

#include <stdlib.h>
#include <string.h>

/* Length of the valid character at p (1..4), or 0. Overlong forms, surrogates and values above 10FFFF are
 * not valid (RFC 3629). */
static size_t char_bytes(const unsigned char *p, size_t left)
{
    if (p[0] < 0x80) return 1;
    size_t n = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || n > left) return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    bool low = (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xf0 && p[1] < 0x90);
    bool high = (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf4 && p[1] > 0x8f);
    return low || high ? 0 : n;
}

char *utf8_clean(const char *text, size_t bytes)
{
    char *out = malloc(bytes * 3 + 1), *to = out;
    CHECK(out != NULL, "out of memory for %zu bytes of text", bytes);
    for (size_t i = 0; i < bytes;) {
        size_t n = char_bytes((const unsigned char *)text + i, bytes - i);
        memcpy(to, n ? text + i : "\xef\xbf\xbd", n ? n : 3);
        to += n ? n : 3;
        i += n ? n : 1;
    }
    *to = 0;
    return out;
}
