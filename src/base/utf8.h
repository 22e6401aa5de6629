/* UTF-8: validation, and reading text that is already known to be valid. */
#ifndef INGOT_BASE_UTF8_H
#define INGOT_BASE_UTF8_H
#include <stddef.h>
#include <stdint.h>

/* Returns the offset of the first invalid UTF-8 sequence, or `bytes` when all is valid. Overlong forms, surrogates,
 * values above U+10FFFF and a sequence cut off by the end are invalid. */
size_t utf8_valid(const char *text, size_t bytes);

struct utf8_char {
    uint32_t code;
    uint32_t bytes; /* 1 to 4 */
};

/* Decodes the character at `p`. The text must be valid. */
static inline struct utf8_char utf8_read(const uint8_t *p)
{
    if (p[0] < 0x80) return (struct utf8_char){p[0], 1};
    if (p[0] < 0xe0) return (struct utf8_char){(p[0] & 0x1fu) << 6 | (p[1] & 0x3fu), 2};
    if (p[0] < 0xf0)
        return (struct utf8_char){(p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu), 3};
    return (struct utf8_char){
        (p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu), 4};
}

/* Returns a malloc'd, NUL-terminated copy in which U+FFFD replaces every byte that is not part of valid UTF-8. Model
 * output and file names can hold any bytes; JSON and HTML cannot. Aborts without memory. */
char *utf8_clean(const char *text, size_t bytes);

/* Writes `code` (a Unicode scalar value) to out, which needs 4 bytes. Returns the number of bytes written. */
int utf8_write(uint32_t code, char *out);
#endif
