/* Most of a record is strings, which determine the speed: 32 bytes at a time up to the next quote, escape
 * or control character. A first pass checks everything and records the position of the text. Only then is
 * the text unescaped, and copied only if it contains an escape. */
#include "data/read/jsonl.h"

#include "base/bytes32.h"
#include "base/status.h"
#include "base/utf8.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 1024, LANES = 32 };

struct cursor {
    const char *begin, *p, *end;
    const char *what; /* the error, at p */
};
struct span { /* between the quotes */
    const char *begin, *end;
    bool escaped;
};

static bool fault(struct cursor *c, const char *at, const char *what)
{
    c->p = at;
    c->what = what;
    return false;
}

static void space(struct cursor *c)
{
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\n' || *c->p == '\r' || *c->p == '\t')) c->p++;
}

static char peek(const struct cursor *c)
{
    return c->p < c->end ? *c->p : 0;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The four hex digits at p; -1 if invalid. */
static int32_t hex4(const char *p, const char *end)
{
    if (end - p < 4) return -1;
    int32_t code = 0;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(p[i]);
        if (digit < 0) return -1;
        code = code << 4 | digit;
    }
    return code;
}

/* Bit i: p[i] is a quote, a backslash or a control character. */
static uint32_t special_mask(const char *p)
{
    const bytes32 v = bytes32_load(p), control = bytes32_at_most(v, bytes32_set(0x1f));
    return bytes32_mask(bytes32_or(
        bytes32_or(bytes32_equal(v, bytes32_set('"')), bytes32_equal(v, bytes32_set('\\'))), control));
}

static bool is_special(char c)
{
    return c == '"' || c == '\\' || (unsigned char)c < 0x20;
}

/* Bytes of the escape at p, which is a backslash, and its character; 0 if invalid. */
static int escape_read(const char *p, const char *end, uint32_t *code)
{
    static const char plain[256] = {['"'] = '"',  ['\\'] = '\\', ['/'] = '/',  ['b'] = '\b',
                                    ['f'] = '\f', ['n'] = '\n',  ['r'] = '\r', ['t'] = '\t'};
    if (end - p < 2) return 0;
    if (p[1] != 'u') {
        *code = (unsigned char)plain[(unsigned char)p[1]];
        return *code ? 2 : 0;
    }
    int32_t high = hex4(p + 2, end), low;
    if (high < 0) return 0;
    *code = (uint32_t)high;
    if (high < 0xd800 || high > 0xdfff) return 6;
    if (high > 0xdbff || end - p < 12 || p[6] != '\\' || p[7] != 'u') return 0;
    low = hex4(p + 8, end);
    if (low < 0xdc00 || low > 0xdfff) return 0;
    *code = 0x10000 + ((uint32_t)(high - 0xd800) << 10) + (uint32_t)(low - 0xdc00);
    return 12;
}

/* p is a quote: moves it behind the closing quote. */
static bool string(struct cursor *c, struct span *out)
{
    const char *p = c->p + 1;
    *out = (struct span){p, p, false};
    for (;;) {
        while (c->end - p >= LANES) {
            uint32_t mask = special_mask(p);
            p += mask ? __builtin_ctz(mask) : LANES;
            if (mask) break;
        }
        while (p < c->end && !is_special(*p)) p++;
        if (p == c->end) return fault(c, p, "a string without its end");
        if (*p == '"') break;
        if (*p != '\\') return fault(c, p, "a control character in a string");
        uint32_t code;
        int n = escape_read(p, c->end, &code);
        if (n == 0) return fault(c, p, "an escape that is none, or half a surrogate pair");
        p += n;
        out->escaped = true;
    }
    out->end = p;
    c->p = p + 1;
    return true;
}

static bool digits(struct cursor *c)
{
    const char *begin = c->p;
    while (c->p < c->end && *c->p >= '0' && *c->p <= '9') c->p++;
    return c->p > begin || fault(c, c->p, "a digit is expected");
}

static bool number(struct cursor *c)
{
    if (peek(c) == '-') c->p++;
    if (peek(c) == '0')
        c->p++;
    else if (!digits(c))
        return false;
    if (peek(c) == '.') {
        c->p++;
        if (!digits(c)) return false;
    }
    if (peek(c) != 'e' && peek(c) != 'E') return true;
    c->p++;
    if (peek(c) == '+' || peek(c) == '-') c->p++;
    return digits(c);
}

static bool literal(struct cursor *c, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(c->end - c->p) < n || memcmp(c->p, word, n) != 0)
        return fault(c, c->p, "a value is expected");
    c->p += n;
    return true;
}

/* A value that is not a list or object. */
static bool scalar(struct cursor *c)
{
    struct span ignored;
    switch (peek(c)) {
    case '"': return string(c, &ignored);
    case 't': return literal(c, "true");
    case 'f': return literal(c, "false");
    case 'n': return literal(c, "null");
    case '-':
    case '0' ... '9': return number(c);
    default: return fault(c, c->p, "a value is expected");
    }
}

/* A key and its colon. */
static bool member(struct cursor *c, struct span *key)
{
    space(c);
    if (peek(c) != '"') return fault(c, c->p, "a key in quotes is expected");
    if (!string(c, key)) return false;
    space(c);
    if (peek(c) != ':') return fault(c, c->p, "':' is expected");
    c->p++;
    return true;
}

/* Bit i of the stack: level i is an object, not a list. */
struct nesting {
    uint64_t objects[DEPTH_MAX / 64];
    int depth;
};

static bool in_object(const struct nesting *n)
{
    int i = n->depth - 1;
    return n->objects[i / 64] >> i % 64 & 1;
}

/* p is '{' or '[': moves it to the first value, or behind the end if it is empty. */
static bool open_level(struct cursor *c, struct nesting *n, bool *empty)
{
    struct span key;
    if (n->depth == DEPTH_MAX) return fault(c, c->p, "values nest deeper than 1024");
    bool object = *c->p == '{';
    int i = n->depth++;
    n->objects[i / 64] = (n->objects[i / 64] & ~(1ull << i % 64)) | (uint64_t)object << i % 64;
    c->p++;
    space(c);
    *empty = peek(c) == (object ? '}' : ']');
    if (*empty) {
        c->p++;
        n->depth--;
        return true;
    }
    return !object || member(c, &key);
}

/* After a value: closes what ends here and moves to the next value; *done if the outermost has ended. */
static bool close_levels(struct cursor *c, struct nesting *n, bool *done)
{
    struct span key;
    *done = false;
    while (n->depth > 0) {
        space(c);
        bool object = in_object(n);
        if (peek(c) == ',') {
            c->p++;
            return !object || member(c, &key);
        }
        if (peek(c) != (object ? '}' : ']'))
            return fault(c, c->p, object ? "',' or '}' is expected" : "',' or ']' is expected");
        c->p++;
        n->depth--;
    }
    *done = true;
    return true;
}

static bool value(struct cursor *c)
{
    struct nesting n;
    n.depth = 0;
    for (bool done = false; !done;) {
        space(c);
        bool whole = true;
        if (peek(c) == '{' || peek(c) == '[') {
            if (!open_level(c, &n, &whole)) return false;
        } else if (!scalar(c)) {
            return false;
        }
        if (whole && !close_levels(c, &n, &done)) return false;
    }
    return true;
}

static char *unescape(const struct span *s, size_t *bytes)
{
    char *out = malloc((size_t)(s->end - s->begin) + LANES), *to = out;
    MEMORY_CHECK(out, "no memory for a text of %zu bytes", (size_t)(s->end - s->begin));
    for (const char *p = s->begin; p < s->end;) {
        while (s->end - p >= LANES) {
            uint32_t mask = special_mask(p);
            int n = mask ? __builtin_ctz(mask) : LANES;
            bytes32_store(to, bytes32_load(p));
            p += n;
            to += n;
            if (mask) break;
        }
        while (p < s->end && *p != '\\') *to++ = *p++;
        if (p == s->end) break;
        uint32_t code = 0;
        int n = escape_read(p, s->end, &code);
        CHECK(n > 0, "an escape was checked and is none");
        p += n;
        to += utf8_write(code, to);
    }
    *bytes = (size_t)(to - out);
    return out;
}

/* What remains of `key` behind a member's name: "" for the whole key, "b" of "a.b" behind "a"; NULL: another name. */
static const char *key_rest(const struct span *s, const char *key)
{
    size_t bytes = (size_t)(s->end - s->begin), key_bytes = strlen(key);
    if (bytes > (s->escaped ? 6 * key_bytes : key_bytes)) return NULL;
    char *plain = s->escaped ? unescape(s, &bytes) : NULL;
    const bool begins = bytes <= key_bytes && memcmp(plain ? plain : s->begin, key, bytes) == 0;
    free(plain);
    if (begins && key[bytes] == '.') return key + bytes + 1;
    return begins && bytes == key_bytes ? key + bytes : NULL;
}

enum found { NOTHING, NO_TEXT, NULL_TEXT, TEXT };

static bool object(struct cursor *c, const char *key, struct span *text, enum found *found);

/* The value of a member whose name is the key (`rest` is "") or begins it. */
static bool value_under(struct cursor *c, const char *rest, struct span *text, enum found *found)
{
    *found = peek(c) == 'n' ? NULL_TEXT : *rest ? NOTHING : NO_TEXT;
    if (*rest) return peek(c) == '{' ? object(c, rest, text, found) : value(c);
    if (peek(c) != '"') return value(c);
    *found = TEXT;
    return string(c, text);
}

/* Parses an object and finds the text under `key`. A name that is the whole key wins over a path. */
static bool object(struct cursor *c, const char *key, struct span *text, enum found *found)
{
    bool whole = false;
    *found = NOTHING;
    c->p++;
    space(c);
    bool empty = peek(c) == '}';
    while (!empty) {
        struct span name;
        if (!member(c, &name)) return false;
        space(c);
        const char *rest = key_rest(&name, key);
        struct span inner;
        enum found got = NOTHING;
        if (!(rest ? value_under(c, rest, &inner, &got) : value(c))) return false;
        if (rest && (!*rest || !whole)) {
            whole = !*rest;
            *found = got;
            if (got == TEXT) *text = inner;
        }
        space(c);
        if (peek(c) == '}') break;
        if (peek(c) != ',') return fault(c, c->p, "',' or '}' is expected");
        c->p++;
    }
    c->p++;
    return true;
}

/* Parses the record, which is one object. */
static bool outermost(struct cursor *c, const char *key, struct span *text, enum found *found)
{
    if (!object(c, key, text, found)) return false;
    space(c);
    return c->p == c->end || fault(c, c->p, "something follows the object");
}

bool jsonl_read(const char *record, size_t bytes, const char *key, struct jsonl_text *out,
                struct jsonl_fault *f)
{
    struct cursor c = {record, record, record + bytes, NULL};
    struct span text = {0};
    enum found found = NOTHING;
    *out = (struct jsonl_text){0};
    *f = (struct jsonl_fault){JSONL_NO_OBJECT, 0, ""};
    space(&c);
    if (peek(&c) != '{') {
        /* The message depends on whether the file looks like JSON at all. */
        if (peek(&c) == '[') f->what = " in each line, not an array";
        bool json = value(&c) && (space(&c), c.p == c.end);
        if (!json)
            *f = (struct jsonl_fault){JSONL_SYNTAX, (size_t)(c.p - record),
                                      c.what ? c.what : "a JSON object is expected"};
        return false;
    }
    if (!outermost(&c, key, &text, &found)) {
        *f = (struct jsonl_fault){JSONL_SYNTAX, (size_t)(c.p - record), c.what};
        return false;
    }
    if (found == NULL_TEXT) {
        out->text = "";
        return true;
    }
    if (found != TEXT) {
        *f = (struct jsonl_fault){JSONL_NO_TEXT, 0, found == NOTHING ? "nothing" : "not text"};
        return false;
    }
    *out = (struct jsonl_text){text.begin, (size_t)(text.end - text.begin), NULL};
    if (text.escaped) out->text = out->owner = unescape(&text, &out->bytes);
    return true;
}
