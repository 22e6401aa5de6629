#include "base/json_scan.h"
#include "base/bytes32.h"
#include "base/utf8.h"
#include <string.h>

status json_scan_fail(const struct json_scan *j, size_t at, const char *words)
{
    size_t line = 1, begin = 0;
    if (at > j->bytes) at = j->bytes;
    for (size_t i = 0; i < at; i++)
        if (j->text[i] == '\n') {
            line++;
            begin = i + 1;
        }
    return FAIL(STATUS_DATA, "line %zu, column %zu: %s", line, at - begin + 1, words);
}

static inline void skip_space(struct json_scan *j)
{
    while (j->at < j->bytes) {
        char c = j->text[j->at];
        if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
        j->at++;
    }
}

status json_scan_begin(struct json_scan *j, const char *text, size_t bytes)
{
    *j = (struct json_scan){.text = text, .bytes = bytes};
    size_t valid = utf8_valid(text, bytes);
    return valid == bytes ? STATUS_OK : json_scan_fail(j, valid, "invalid UTF-8");
}

status json_scan_end(struct json_scan *j)
{
    skip_space(j);
    return j->at == j->bytes ? STATUS_OK : json_scan_fail(j, j->at, "something follows the end of the JSON");
}

char json_scan_peek(struct json_scan *j)
{
    skip_space(j);
    return j->at < j->bytes ? j->text[j->at] : 0;
}

status json_scan_open(struct json_scan *j, char bracket)
{
    if (json_scan_peek(j) != bracket)
        return json_scan_fail(j, j->at, bracket == '{' ? "an object is expected" : "a list is expected");
    if (++j->depth > JSON_DEPTH_MAX) return json_scan_fail(j, j->at, "lists and objects are too deep");
    j->at++;
    j->fresh = true;
    return STATUS_OK;
}

status json_scan_next(struct json_scan *j, char bracket, bool *more)
{
    bool fresh = j->fresh;
    char c = json_scan_peek(j);
    j->fresh = false;
    *more = c != bracket;
    if (!*more) {
        j->at++;
        j->depth--;
        return STATUS_OK;
    }
    if (fresh) return STATUS_OK;
    if (c != ',')
        return json_scan_fail(j, j->at,
                              bracket == '}' ? "a comma or } is expected" : "a comma or ] is expected");
    j->at++;
    return json_scan_peek(j) == bracket ? json_scan_fail(j, j->at, "a comma without a value behind it")
                                        : STATUS_OK;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    char lower = (char)(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/* The 4 hexadecimal digits at p, or -1. */
static int32_t hex_unit(const char *p, size_t left)
{
    int32_t value = 0;
    for (int i = 0; i < 4; i++) {
        int digit = left > (size_t)i ? hex_digit(p[i]) : -1;
        if (digit < 0) return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* The escape at p, which is a backslash: returns its bytes, 0 if it is invalid; *code: its code point. */
static size_t read_escape(const char *p, size_t left, uint32_t *code)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (left < 2 || p[1] == 0) return 0;
    const char *simple = strchr(from, p[1]);
    if (simple != NULL) {
        *code = (uint8_t)to[simple - from];
        return 2;
    }
    int32_t unit = p[1] == 'u' ? hex_unit(p + 2, left - 2) : -1;
    if (unit < 0 || (unit >= 0xdc00 && unit < 0xe000)) return 0;
    *code = (uint32_t)unit;
    if (unit < 0xd800 || unit >= 0xe000) return 6;
    int32_t low = left >= 8 && p[6] == '\\' && p[7] == 'u' ? hex_unit(p + 8, left - 8) : -1;
    if (low < 0xdc00 || low >= 0xe000) return 0;
    *code = 0x10000u + ((uint32_t)unit - 0xd800u) * 0x400u + ((uint32_t)low - 0xdc00u);
    return 12;
}

/* From `at` to the next quote, backslash or control character, or the end. */
static inline size_t plain_end(const char *text, size_t at, size_t bytes)
{
    for (; at + 32 <= bytes; at += 32) {
        const bytes32 v = bytes32_load(text + at), control = bytes32_at_most(v, bytes32_set(0x1f));
        const uint32_t stop = bytes32_mask(bytes32_or(
            bytes32_or(bytes32_equal(v, bytes32_set('"')), bytes32_equal(v, bytes32_set('\\'))), control));
        if (stop != 0) return at + (size_t)__builtin_ctz(stop);
    }
    while (at < bytes && text[at] != '"' && text[at] != '\\' && (uint8_t)text[at] >= 0x20) at++;
    return at;
}

status json_scan_string(struct json_scan *j, struct json_text *value)
{
    if (json_scan_peek(j) != '"') return json_scan_fail(j, j->at, "a string is expected");
    size_t begin = j->at + 1, at = begin;
    bool escaped = false;
    while ((at = plain_end(j->text, at, j->bytes)) < j->bytes && j->text[at] == '\\') {
        uint32_t code;
        size_t n = read_escape(j->text + at, j->bytes - at, &code);
        if (n == 0 || (code == 0 && !j->zeros))
            return json_scan_fail(j, at, "this is no escape that stands for a character");
        at += n;
        escaped = true;
    }
    if (at == j->bytes) return json_scan_fail(j, begin - 1, "a string without an end");
    if (j->text[at] != '"') return json_scan_fail(j, at, "a control character in a string");
    *value = (struct json_text){j->text + begin, at - begin, escaped};
    j->at = at + 1;
    return STATUS_OK;
}

size_t json_scan_unescape(struct json_text s, char *out)
{
    if (!s.escaped) {
        memcpy(out, s.data, s.bytes);
        return s.bytes;
    }
    size_t count = 0;
    for (size_t at = 0; at < s.bytes;) {
        uint32_t code = 0;
        if (s.data[at] != '\\') {
            out[count++] = s.data[at++];
            continue;
        }
        size_t n = read_escape(s.data + at, s.bytes - at, &code);
        CHECK(n != 0, "the string was not checked");
        count += (size_t)utf8_write(code, out + count);
        at += n;
    }
    return count;
}

status json_scan_key(struct json_scan *j, struct json_text *key)
{
    TRY(json_scan_string(j, key));
    if (json_scan_peek(j) != ':') return json_scan_fail(j, j->at, "a colon is expected");
    j->at++;
    return STATUS_OK;
}

static bool is_digit(const struct json_scan *j, size_t at)
{
    return at < j->bytes && j->text[at] >= '0' && j->text[at] <= '9';
}

/* True: c may follow a number or a word. */
static bool is_end_of_word(const struct json_scan *j, size_t at)
{
    return at == j->bytes || (j->text[at] != 0 && strchr(" \t\r\n,]}", j->text[at]) != NULL);
}

status json_scan_integer(struct json_scan *j, int64_t *value)
{
    bool negative = json_scan_peek(j) == '-';
    size_t at = j->at + negative, begin = at;
    int64_t v = 0;
    for (; is_digit(j, at) && at - begin < 18; at++) v = 10 * v + (j->text[at] - '0');
    if (at == begin || !is_end_of_word(j, at) || (j->text[begin] == '0' && at - begin > 1))
        return json_scan_fail(j, j->at, "a whole number is expected");
    *value = negative ? -v : v;
    j->at = at;
    return STATUS_OK;
}

static status skip_number(struct json_scan *j)
{
    size_t at = j->at + (j->text[j->at] == '-');
    bool good = is_digit(j, at) && !(j->text[at] == '0' && is_digit(j, at + 1));
    while (is_digit(j, at)) at++;
    if (at < j->bytes && j->text[at] == '.') {
        good &= is_digit(j, at + 1);
        for (at++; is_digit(j, at);) at++;
    }
    if (at < j->bytes && (j->text[at] | 0x20) == 'e') {
        at++;
        at += at < j->bytes && (j->text[at] == '+' || j->text[at] == '-');
        good &= is_digit(j, at);
        while (is_digit(j, at)) at++;
    }
    if (!good || !is_end_of_word(j, at)) return json_scan_fail(j, j->at, "this is no JSON value");
    j->at = at;
    return STATUS_OK;
}

static status skip_word(struct json_scan *j)
{
    static const char *const words[] = {"true", "false", "null"};
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if (j->bytes - j->at < n || memcmp(j->text + j->at, words[i], n) != 0) continue;
        if (!is_end_of_word(j, j->at + n)) break;
        j->at += n;
        return STATUS_OK;
    }
    return skip_number(j);
}

status json_scan_skip(struct json_scan *j, struct json_text *value)
{
    struct json_text inner;
    char c = json_scan_peek(j), close = c == '{' ? '}' : ']';
    const char *begin = j->text + j->at;
    if (c == '{' || c == '[') {
        TRY(json_scan_open(j, c));
        for (bool more = true;;) {
            TRY(json_scan_next(j, close, &more));
            if (!more) break;
            if (c == '{') TRY(json_scan_key(j, &inner));
            TRY(json_scan_skip(j, &inner));
        }
    } else if (c == '"') {
        TRY(json_scan_string(j, &inner));
    } else if (c == 0 && j->at == j->bytes) {
        return json_scan_fail(j, j->at, "the JSON ends too early");
    } else {
        TRY(skip_word(j));
    }
    *value = (struct json_text){begin, (size_t)(j->text + j->at - begin), false};
    return STATUS_OK;
}
