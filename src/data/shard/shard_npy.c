/* numpy's .npy, versions 1 to 3: one dimension of whole numbers.
 *
 *   0    93 'N' 'U' 'M' 'P' 'Y', major, minor
 *   8    u16 (version 1) or u32: bytes of the header that follows
 *        {'descr': '<u2', 'fortran_order': False, 'shape': (N,), } and spaces, up to a line's end
 *        the ids; the file ends with the last one
 *
 * The header is a Python literal. The parser accepts every form that numpy itself has written, and no
 * other. */
#include "data/shard/shard_int.h"

#include <stdbool.h>
#include <stdio.h>

enum { HEADER_MAX = 65535 };

struct scan {
    const uint8_t *at, *end;
};

static void spaces(struct scan *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n')) c->at++;
}

static bool take(struct scan *c, char want)
{
    spaces(c);
    if (c->at == c->end || *c->at != (uint8_t)want) return false;
    c->at++;
    return true;
}

/* 'word' or "word", without escapes. */
static bool take_text(struct scan *c, char out[32])
{
    spaces(c);
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"')) return false;
    uint8_t quote = *c->at++;
    for (int n = 0; c->at < c->end && n < 31; n++) {
        uint8_t b = *c->at++;
        out[n] = 0;
        if (b == quote) return true;
        if (b < 32 || b > 126 || b == '\\') return false;
        out[n] = (char)b;
    }
    return false;
}

static bool take_word(struct scan *c, const char *word)
{
    spaces(c);
    size_t n = strlen(word);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0) return false;
    c->at += n;
    return true;
}

static bool take_number(struct scan *c, int64_t *out)
{
    spaces(c);
    const uint8_t *begin = c->at;
    for (*out = 0; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++)
        if (__builtin_mul_overflow(*out, 10, out) || __builtin_add_overflow(*out, *c->at - '0', out))
            return false;
    if (c->at == begin) return false;
    if (c->at < c->end && *c->at == 'L') c->at++; /* as Python 2 wrote them */
    return true;
}

struct header {
    char descr[32];
    bool fortran;
    int dims, seen; /* seen: bits 1 descr, 2 fortran_order, 4 shape */
    int64_t count;
};

static bool take_shape(struct scan *c, struct header *h)
{
    if (!take(c, '(')) return false;
    while (!take(c, ')')) {
        int64_t n;
        if (h->dims > 0 && !take(c, ',')) return false;
        if (h->dims > 0 && take(c, ')')) return true;
        if (!take_number(c, &n) || h->dims == 32) return false;
        if (h->dims++ == 0) h->count = n;
    }
    return true;
}

static bool take_header(struct scan *c, struct header *h)
{
    char key[32];
    *h = (struct header){0};
    if (!take(c, '{')) return false;
    while (!take(c, '}')) {
        int bit = 0;
        if (h->seen && !take(c, ',')) return false;
        if (h->seen && take(c, '}')) break;
        if (!take_text(c, key) || !take(c, ':')) return false;
        if (strcmp(key, "descr") == 0) {
            bit = 1;
            spaces(c);
            if (c->at < c->end && *c->at == '[') { /* fields with names */
                snprintf(h->descr, sizeof h->descr, "[...]");
                return true;
            }
            if (!take_text(c, h->descr)) return false;
        } else if (strcmp(key, "fortran_order") == 0) {
            bit = 2;
            h->fortran = take_word(c, "True");
            if (!h->fortran && !take_word(c, "False")) return false;
        } else if (strcmp(key, "shape") == 0) {
            bit = 4;
            if (!take_shape(c, h)) return false;
        }
        if (bit == 0 || (h->seen & bit)) return false;
        h->seen |= bit;
    }
    spaces(c);
    return h->seen == 7 && c->at == c->end;
}

static status check_header(struct shard *s, const struct header *h)
{
    static const struct {
        const char *descr;
        enum shard_type type;
    } known[] = {{"<u2", SHARD_TYPE_U16}, {"<u4", SHARD_TYPE_U32}, {"<i4", SHARD_TYPE_I32},
                 {"<i8", SHARD_TYPE_I64}, {"|u1", SHARD_TYPE_U8},  {"<u8", SHARD_TYPE_U64},
                 {"<i2", SHARD_TYPE_I16}, {"|i1", SHARD_TYPE_I8}};
    enum shard_type type = SHARD_TYPE_UNKNOWN;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].descr, h->descr) == 0) type = known[i].type;
    if (h->descr[0] == '>')
        return FAIL(STATUS_DATA,
                    "%s: an array of '%s': big-endian; save it as uint16 or uint32 of this machine", s->path,
                    h->descr);
    if (type == SHARD_TYPE_UNKNOWN)
        return FAIL(STATUS_DATA,
                    "%s: an array of '%s', not of token ids: '<u2', '<u4', '<i4', '<i8' or '|u1' is expected",
                    s->path, h->descr);
    if (h->dims != 1 || h->fortran)
        return FAIL(STATUS_DATA, "%s: an array of %d dimensions%s: one is expected; save array.reshape(-1)",
                    s->path, h->dims, h->fortran ? " in Fortran's order" : "");
    shard_set_type(s, type);
    s->format = SHARD_NPY;
    s->count = h->count;
    return STATUS_OK;
}

status shard_npy_parse(struct shard *s, const uint8_t *data, int64_t bytes)
{
    struct header h;
    int64_t at = 10, length = 0;
    if (bytes >= 12) {
        if (data[6] < 1 || data[6] > 3)
            return FAIL(STATUS_DATA, "%s: version %d of numpy's format, expected 1 to 3", s->path, data[6]);
        length = data[8] | data[9] << 8;
        if (data[6] > 1) {
            length |= (int64_t)data[10] << 16 | (int64_t)data[11] << 24;
            at = 12;
        }
    }
    if (length > HEADER_MAX)
        return FAIL(STATUS_DATA, "%s: a header of %lld bytes, expected at most %d", s->path,
                    (long long)length, HEADER_MAX);
    if (bytes < at + length || length == 0)
        return FAIL(STATUS_DATA, "%s: %lld bytes: truncated in its numpy header", s->path, (long long)bytes);
    struct scan c = {data + at, data + at + length};
    bool whole = take_header(&c, &h);
    if (h.descr[0] == '[' || whole) TRY(check_header(s, &h));
    if (!whole)
        return FAIL(STATUS_DATA, "%s: byte %lld of the numpy header is not as numpy writes it", s->path,
                    (long long)(c.at - data));
    int64_t rest = bytes - at - length;
    if (rest / s->width != s->count || rest % s->width != 0)
        return FAIL(STATUS_DATA,
                    "%s: %lld bytes behind the header, expected %lld tokens * %d: the file is %s", s->path,
                    (long long)rest, (long long)s->count, s->width,
                    rest / s->width < s->count ? "truncated" : "longer than its header says");
    s->tokens = data + at + length;
    return STATUS_OK;
}

void shard_npy_header(int64_t count, int width, char out[SHARD_NPY_HEADER])
{
    static const char magic[10] = {(char)0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, SHARD_NPY_HEADER - 10, 0};
    memset(out, ' ', SHARD_NPY_HEADER);
    memcpy(out, magic, sizeof magic);
    char text[SHARD_NPY_HEADER - 10];
    int n = snprintf(text, sizeof text, "{'descr': '<u%d', 'fortran_order': False, 'shape': (%lld,), }",
                     width, (long long)count);
    memcpy(out + sizeof magic, text, (size_t)n);
    out[SHARD_NPY_HEADER - 1] = '\n';
}
