/* Scanners for the patterns in split_table, exact to the last white-space rule. A piece depends only on the
 * text from its own start, so each scanner is one function (text, start) -> end; its alternatives are tried
 * in the order of the pattern.
 *
 * Three things carry the speed: ASCII letters are found 32 bytes at a time, the class of any other character
 * is one table look-up (ASCII) or two (unicode.h), and ends come in batches, so that the caller can fetch
 * cache lines ahead.
 *
 * Classes: L = \p{L}, N = \p{N}, S = \s, O = everything else. */
#include "data/split.h"
#include "data/unicode.h"
#include "base/utf8.h"
#include <assert.h>
#include <immintrin.h>
#include <stdbool.h>

enum class { O = UNICODE_OTHER, S = UNICODE_SPACE, L = UNICODE_LETTER, N = UNICODE_NUMBER, END };
static_assert((int)UNICODE_NUMBER < (int)END, "END is not a class of characters");

static const uint8_t ascii_class[128] = {
    ['\t'] = S, ['\n'] = S,        ['\v'] = S,        ['\f'] = S,        ['\r'] = S,
    [' '] = S,  ['0' ... '9'] = N, ['A' ... 'Z'] = L, ['a' ... 'z'] = L,
};

struct unit { /* one character; END with 0 bytes behind the text */
    enum class class;
    uint32_t bytes;
};

static inline struct unit unit_at(const uint8_t *text, size_t at, size_t bytes)
{
    if (at >= bytes) return (struct unit){END, 0};
    if (text[at] < 0x80) return (struct unit){ascii_class[text[at]], 1};
    struct utf8_char c = utf8_read(text + at);
    return (struct unit){(enum class)unicode_class_of(c.code), c.bytes};
}

static inline size_t run_end(const uint8_t *text, size_t at, size_t bytes, enum class class)
{
    for (struct unit u; (u = unit_at(text, at, bytes)).class == class;) at += u.bytes;
    return at;
}

/* Bit i: byte i is an ASCII letter. */
static inline uint32_t letters_mask(const uint8_t *p)
{
    __m256i lower = _mm256_or_si256(_mm256_loadu_si256((const __m256i *)p), _mm256_set1_epi8(0x20));
    __m256i above =
        _mm256_cmpgt_epi8(lower, _mm256_set1_epi8('a' - 1)); /* bytes >= 0x80 are negative: no letters */
    __m256i below = _mm256_cmpgt_epi8(_mm256_set1_epi8('z' + 1), lower);
    return (uint32_t)_mm256_movemask_epi8(_mm256_and_si256(above, below));
}

static inline size_t letters_end(const uint8_t *text, size_t at, size_t bytes)
{
    while (bytes - at >= 32) {
        uint32_t others = ~letters_mask(text + at);
        if (others == 0) {
            at += 32;
            continue;
        }
        at += (size_t)__builtin_ctz(others);
        if (text[at] < 0x80) return at;
        for (struct unit u; at < bytes && text[at] >= 0x80; at += u.bytes)
            if ((u = unit_at(text, at, bytes)).class != L) return at;
    }
    return run_end(text, at, bytes, L);
}

/* Bytes of 's 't 'm 'd 're 've 'll at `at`, which holds an apostrophe; else 0. With fold_case as (?i:...)
 * does it, which makes U+017F (long s, c5 bf) an s. */
static inline size_t contraction_bytes(const uint8_t *text, size_t at, size_t bytes, bool fold_case)
{
    size_t left = bytes - at;
    if (left < 2) return 0;
    const uint8_t *p = text + at;
    uint8_t fold = fold_case ? 0x20 : 0, a = p[1] | fold;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (left < 3) return 0;
    uint8_t b = p[2] | fold;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
    return fold_case && p[1] == 0xc5 && p[2] == 0xbf ? 3 : 0;
}

struct blank { /* a run of white space */
    size_t end, last,
        newline_end; /* end; start of its last character; behind its last \r or \n, 0 when it has none */
};

static inline struct blank blank_run(const uint8_t *text, size_t at, size_t bytes)
{
    struct blank b = {at, at, 0};
    for (struct unit u; (u = unit_at(text, b.end, bytes)).class == S; b.end += u.bytes) {
        b.last = b.end;
        if (text[b.end] == '\n' || text[b.end] == '\r') b.newline_end = b.end + 1;
    }
    return b;
}

/* \s+(?!\S)|\s+: all of a run at the end of the text; else all but its last character; else that one
 * character. */
static inline size_t blank_end(struct blank b, size_t at, size_t bytes)
{
    return b.end == bytes || b.last == at ? b.end : b.last;
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static inline size_t gpt2_end(const uint8_t *text, size_t at, size_t bytes)
{
    if (text[at] == '\'') {
        size_t n = contraction_bytes(text, at, bytes, false);
        if (n != 0) return at + n;
    }
    size_t begin = at + (text[at] == ' ');
    struct unit u = unit_at(text, begin, bytes);
    if (u.class == L) return letters_end(text, begin + u.bytes, bytes);
    if (u.class == N || u.class == O) return run_end(text, begin + u.bytes, bytes, u.class);
    return blank_end(blank_run(text, at, bytes), at, bytes);
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
 * ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static inline size_t llama3_end(const uint8_t *text, size_t at, size_t bytes)
{
    uint8_t c = text[at];
    if (c == '\'') {
        size_t n = contraction_bytes(text, at, bytes, true);
        if (n != 0) return at + n;
    }
    struct unit u = unit_at(text, at, bytes);
    size_t end = at + u.bytes;
    if (u.class == L) return letters_end(text, end, bytes);
    if (u.class == N) {
        for (int i = 1; i < 3 && (u = unit_at(text, end, bytes)).class == N; i++) end += u.bytes;
        return end;
    }
    struct unit next = unit_at(text, end, bytes);
    if (next.class == L && c != '\r' && c != '\n') return letters_end(text, end + next.bytes, bytes);
    if (u.class == O || (c == ' ' && next.class == O)) {
        end = run_end(text, end, bytes, O);
        while (end < bytes && (text[end] == '\r' || text[end] == '\n')) end++;
        return end;
    }
    struct blank b = blank_run(text, at, bytes);
    return b.newline_end != 0 ? b.newline_end : blank_end(b, at, bytes);
}

/* The loop around a scanner, with the scanner compiled into it. */
#define SCAN(name)                                                                                           \
    static int name##_scan(const uint8_t *text, size_t at, size_t bytes, size_t *ends, int max)              \
    {                                                                                                        \
        int count = 0;                                                                                       \
        while (at < bytes && count < max) ends[count++] = at = name##_end(text, at, bytes);                  \
        return count;                                                                                        \
    }
SCAN(gpt2)
SCAN(llama3)

const struct split_row split_table[SPLIT_COUNT] = {
    {"gpt2", "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", gpt2_scan},
    {"llama3",
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
     "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     llama3_scan},
};

static inline size_t char_before(const uint8_t *text, size_t at)
{
    do at--;
    while ((text[at] & 0xc0) == 0x80);
    return at;
}

/* No pattern has white space behind a letter or a number in one piece. A single \n between two other
 * characters ends a piece in all of them (alone, or behind punctuation), with or without something after it.
 * */
static bool cut_is_safe(const uint8_t *text, size_t at, size_t bytes)
{
    enum class next = unit_at(text, at, bytes).class;
    size_t before = char_before(text, at);
    enum class class = unit_at(text, before, bytes).class;
    if (next == S) return class == L || class == N;
    return text[before] == '\n' && before > 0 && unit_at(text, char_before(text, before), bytes).class != S;
}

size_t split_cut(const char *text, size_t bytes, size_t want)
{
    const uint8_t *p = (const uint8_t *)text;
    for (size_t at = want; at > 0; at--)
        if ((p[at] & 0xc0) != 0x80 && cut_is_safe(p, at, bytes)) return at;
    return bytes;
}
