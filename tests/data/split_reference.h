/* What PCRE2 says: the pieces of a text by a list of patterns, each of which divides the pieces of the one before, with
 * what lies between two matches as a piece of its own (Isolated).
 *
 * PCRE2 10.42 knows Unicode 14, the tables of the scanners Unicode 16, and its \s has U+180E: code points that PCRE2
 * takes for unassigned, and that one, have to stay out of the texts. */
#ifndef INGOT_TESTS_DATA_SPLIT_REFERENCE_H
#define INGOT_TESTS_DATA_SPLIT_REFERENCE_H
#define PCRE2_CODE_UNIT_WIDTH 8
#include "base/status.h"
#include "data/tokenizer/split.h"
#include "data/text/unicode.h"
#include "base/utf8.h"
#include <pcre2.h>
#include <string.h>

struct reference {
    pcre2_code *codes[SPLIT_PARTS_MAX];
    pcre2_match_data *match;
    int count;
};

static inline pcre2_code *reference_compile(const char *pattern)
{
    int error;
    size_t where;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                     &error, &where, NULL);
    CHECK(code != NULL, "%s: error %d at %zu", pattern, error, where);
    CHECK(pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0, "%s", pattern);
    return code;
}

/* `spelling`: which of the patterns of a row that is one pattern. */
static inline struct reference reference_open(enum split_id row, int spelling)
{
    struct reference r = {.match = pcre2_match_data_create(1, NULL), .count = split_table[row].parts};
    for (int i = 0; i < r.count; i++)
        r.codes[i] = reference_compile(split_table[row].patterns[r.count > 1 ? i : spelling]);
    return r;
}

static inline void reference_close(struct reference *r)
{
    for (int i = 0; i < r->count; i++) pcre2_code_free(r->codes[i]);
    pcre2_match_data_free(r->match);
}

/* Writes the ends of the pieces to ends (room for one for each byte) and returns how many there are; `base` is added. */
static inline size_t reference_scan(const struct reference *r, int part, const char *text, size_t bytes,
                                    size_t base, size_t *ends)
{
    if (part >= r->count || part >= SPLIT_PARTS_MAX) {
        ends[0] = base + bytes;
        return 1;
    }
    size_t count = 0;
    for (size_t at = 0; at < bytes;) {
        size_t span[2] = {bytes, bytes}; /* the next match */
        int rc = pcre2_match(r->codes[part], (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK, r->match, NULL);
        CHECK(rc == 1 || rc == PCRE2_ERROR_NOMATCH, "PCRE2: %d", rc);
        if (rc == 1) memcpy(span, pcre2_get_ovector_pointer(r->match), sizeof span);
        CHECK(rc != 1 || span[1] > span[0], "an empty match");
        if (span[0] > at)
            count += reference_scan(r, part + 1, text + at, span[0] - at, base + at, ends + count);
        if (span[1] > span[0])
            count +=
                reference_scan(r, part + 1, text + span[0], span[1] - span[0], base + span[0], ends + count);
        at = span[1];
    }
    return count;
}

/* Some of each class, and all that patterns name. Both know all of them. */
static const uint32_t reference_alphabet[] = {
    ' ',    'a',    '\n',  '7',     '\'',   '.',    'B',    0x301,  0x4e2d,  0x1,     '/',    's',    '\r',
    0x3000, 0x430,  0x1c5, 0x2b0,   '$',    'S',    't',    'L',    'l',     'r',     'e',    'V',    'D',
    'm',    '\t',   0x410, 0x17f,   0x661,  0x30fb, 0x3042, 0xa0,   0x85,    0x2028,  0x200b, 0xfeff, 0xbd,
    0x216b, 0x20ac, 0x903, 0x1f600, 0xac00, 0xe9,   0xc9,   0x2160, 0x9fa5,  0x9fa6,  0x3040, 0x309f, 0x30a0,
    0x3100, '-',    '_',   '^',     '!',    '0',    'z',    'A',    0x1d7d8, 0x20000, 0xe000, 0x378};
enum { REFERENCE_LETTERS = sizeof reference_alphabet / sizeof *reference_alphabet };
#endif
