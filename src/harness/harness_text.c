#include "base/memory.h"
#include "base/utf8.h"
#include "data/text/unicode.h"
#include "harness/harness_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *harness_join(const char *fmt, ...)
{
    char *out = NULL;
    va_list args;
    va_start(args, fmt);
    const int n = vasprintf(&out, fmt, args);
    va_end(args);
    MEMORY_CHECK(n >= 0, "no memory for a text");
    return out;
}

static struct utf8_char read_at(const char *p)
{
    return utf8_read((const uint8_t *)p);
}

/* str.isspace: White_Space, and the four separators of ASCII. */
static bool is_blank(uint32_t code)
{
    return unicode_class_of(code) == UNICODE_SPACE || (code >= 0x1c && code <= 0x1f);
}

size_t harness_blank_end(const char *text)
{
    size_t end = 0;
    for (size_t at = 0; text[at];) {
        const struct utf8_char c = read_at(text + at);
        at += c.bytes;
        if (!is_blank(c.code)) end = at;
    }
    return end;
}

char *harness_strip(const char *text)
{
    while (text[0] && is_blank(read_at(text).code)) text += read_at(text).bytes;
    return harness_join("%.*s", (int)harness_blank_end(text), text);
}

/* Distance to the small letter, for Latin, Greek and Cyrillic; 0: not a large letter of these. */
static int to_small(uint32_t c)
{
    if ((c >= 'A' && c <= 'Z') || (c >= 0xc0 && c <= 0xde && c != 0xd7)) return 32;
    if ((c >= 0x391 && c <= 0x3a9 && c != 0x3a2) || (c >= 0x410 && c <= 0x42f)) return 32;
    if (c >= 0x400 && c <= 0x40f) return 80;
    const bool odd = (c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17e);
    const bool even = (c >= 0x100 && c <= 0x12f) || (c >= 0x132 && c <= 0x137) || (c >= 0x14a && c <= 0x177);
    return (odd && c % 2 == 1) || (even && c % 2 == 0) ? 1 : 0;
}

static uint32_t to_large(uint32_t c)
{
    static const uint32_t distances[] = {32, 80, 1};
    for (int i = 0; i < 3; i++)
        if (c > distances[i] && to_small(c - distances[i]) == (int)distances[i]) return c - distances[i];
    return c;
}

char *harness_capitalize(const char *text)
{
    char *out = malloc(strlen(text) * 2 + 1), *to = out;
    MEMORY_CHECK(out, "no memory for a text");
    for (const char *p = text; *p;) {
        const struct utf8_char c = read_at(p);
        const uint32_t code = p == text ? to_large(c.code) : c.code + (uint32_t)to_small(c.code);
        to += utf8_write(code, to);
        p += c.bytes;
    }
    *to = 0;
    return out;
}

char *harness_replace(const char *text, const char *from, const char *to)
{
    char *out = NULL;
    size_t bytes = 0;
    const size_t step = strlen(from);
    FILE *f = memory_stream(&out, &bytes);
    for (const char *at; (at = strstr(text, from)) != NULL; text = at + step)
        fprintf(f, "%.*s%s", (int)(at - text), text, to);
    fputs(text, f);
    memory_stream_close(f);
    return out;
}

/* A dot is any character but a line's end. */
char *harness_unbracket(const char *text)
{
    char *out = malloc(strlen(text) + 1), *to = out;
    MEMORY_CHECK(out, "no memory for a text");
    for (const char *p = text; *p;) {
        const char *end = *p == '[' ? p + strcspn(p, "]\n") : p;
        if (*p == '[' && *end == ']')
            p = end + 1;
        else
            *to++ = *p++;
    }
    *to = 0;
    return out;
}

int64_t harness_characters(const char *text)
{
    int64_t n = 0;
    for (const char *p = text; *p; p++) n += (*p & 0xc0) != 0x80;
    return n;
}

int64_t harness_words(const char *text)
{
    int64_t words = 1;
    bool before = false;
    for (const char *p = text; *p;) {
        const struct utf8_char c = read_at(p);
        const bool blank = is_blank(c.code);
        words += blank && !before;
        before = blank;
        p += c.bytes;
    }
    return words;
}
