#include "base/utf8_repair.h"
#include "base/utf8.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Bytes to replace at p: the first byte of a character with its valid continuation bytes, or one byte. */
static size_t bad_bytes(const uint8_t *p, size_t left)
{
    uint8_t c = p[0], low = 0x80, high = 0xbf;
    size_t whole = c < 0xc2 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 1, n = 1;
    if (c == 0xe0) low = 0xa0;
    if (c == 0xed) high = 0x9f;
    if (c == 0xf0) low = 0x90;
    if (c == 0xf4) high = 0x8f;
    while (n < whole && n < left && p[n] >= low && p[n] <= high) {
        n++;
        low = 0x80;
        high = 0xbf;
    }
    return n;
}

status utf8_repair(const char *text, size_t bytes, enum utf8_invalid how, char **out, size_t *out_bytes,
                   int64_t *repaired)
{
    size_t n = 0;
    *repaired = 0;
    *out = NULL;
    if (bytes > SIZE_MAX / 3 - 1)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for a text of %zu bytes", bytes);
    char *to = malloc(3 * bytes + 1); /* unused entries stay unreachable */
    if (to == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for a text of %zu bytes", bytes);
    for (size_t at = 0; at < bytes;) {
        size_t good = utf8_valid(text + at, bytes - at);
        memcpy(to + n, text + at, good);
        n += good;
        at += good;
        if (at == bytes) break;
        if (how == UTF8_ERROR) {
            free(to);
            return FAIL(STATUS_DATA, "invalid UTF-8 at byte offset %zu (0x%02x)", at,
                        (unsigned)(uint8_t)text[at]);
        }
        if (how == UTF8_REPLACE) n += (size_t)utf8_write(0xfffd, to + n);
        at += bad_bytes((const uint8_t *)text + at, bytes - at);
        ++*repaired;
    }
    to[n] = 0;
    *out = to;
    *out_bytes = n;
    return STATUS_OK;
}
