/* Scanners for the patterns in split_table, exact in every white-space rule. A piece depends only on the
 * text from its own start; each scanner is therefore one function (text, start) -> end; its alternatives
 * are tried in the order of the pattern.
 *
 * Most patterns are one family with small differences (struct family): a word with at most one other
 * character before it, a few digits, punctuation followed by line ends, white space. The members of a
 * family are compile-time constants, so each row gets its own code.
 *
 * Two techniques give the speed. Where text is ASCII, 64 bytes at a time become sets of positions (struct
 * window), and their pieces are found together, with a few dozen instructions and without a branch per
 * piece. Elsewhere, and where a window is not sufficient, the scanners go from character to character:
 * ASCII letters 32 bytes at a time, the class of any other character by one table look-up (ASCII) or two
 * (unicode.h). Measured: docs/perf-log.
 *
 * In the comments U, N, S, ... are sets of classes as in split_int.h. */
#include "data/tokenizer/split.h"
#include "base/bytes32.h"
#include "data/tokenizer/split_int.h"
#include <assert.h>

enum {
    S = SPLIT_S,
    N = SPLIT_N,
    L = SPLIT_L,
    M = SPLIT_M,
    P = SPLIT_P | SPLIT_Y,
    C = SPLIT_C,
    LOWER = SPLIT_SET(LOWER),
    BOTH = SPLIT_SET(MODIFIER) | SPLIT_SET(LETTER) | SPLIT_M, /* in words of either case */
    UPPERISH = SPLIT_SET(UPPER) | SPLIT_SET(TITLE) | BOTH,    /* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] */
    LOWERISH = LOWER | BOTH,                                  /* [\p{Ll}\p{Lm}\p{Lo}\p{M}] */
    NOT_SLN = SPLIT_ALL & ~(SPLIT_S | SPLIT_L | SPLIT_N),     /* [^\s\p{L}\p{N}] */
};

static inline size_t run_end(const uint8_t *text, size_t at, size_t bytes, uint32_t set)
{
    for (struct split_unit u; (u = split_unit_at(text, at, bytes)).set & set;) at += u.bytes;
    return at;
}

/* Bit i: byte i is an ASCII letter, of any case or (any_case false) a lower one. */
static inline uint32_t letters_mask(const uint8_t *p, bool any_case)
{
    bytes32 v = bytes32_load(p);
    if (any_case) v = bytes32_or(v, bytes32_set(0x20));
    bytes32 above = bytes32_above(v, bytes32_set('a' - 1)); /* bytes >= 0x80 are negative: no letters */
    bytes32 below = bytes32_above(bytes32_set('z' + 1), v);
    return bytes32_mask(bytes32_and(above, below));
}

/* run_end for a set that contains the ASCII letters (any_case false: only lower ones). */
static inline size_t letters_end(const uint8_t *text, size_t at, size_t bytes, uint32_t set, bool any_case)
{
    while (bytes - at >= 32) {
        uint32_t others = ~letters_mask(text + at, any_case);
        if (others == 0) {
            at += 32;
            continue;
        }
        at += (size_t)__builtin_ctz(others);
        if (text[at] < 0x80) return at;
        for (struct split_unit u; at < bytes && text[at] >= 0x80; at += u.bytes)
            if (!((u = split_unit_at(text, at, bytes)).set & set)) return at;
    }
    return run_end(text, at, bytes, set);
}

/* Bytes of 's 't 'm 'd 're 've 'll at `at`, which is an apostrophe; else 0. fold_case: as (?i:...), which
 * makes U+017F (long s, c5 bf) an s. */
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
        newline_end; /* end; start of its last character; end of its last \r or \n, 0 if there is none */
};

static inline struct blank blank_run(const uint8_t *text, size_t at, size_t bytes)
{
    struct blank b = {at, at, 0};
    for (struct split_unit u; (u = split_unit_at(text, b.end, bytes)).set & S; b.end += u.bytes) {
        b.last = b.end;
        if (text[b.end] == '\n' || text[b.end] == '\r') b.newline_end = b.end + 1;
    }
    return b;
}

/* \s+(?!\S)|\s+: at the end of the text the whole run; else all but its last character; else that character. */
static inline size_t blank_end(struct blank b, size_t at, size_t bytes)
{
    return b.end == bytes || b.last == at ? b.end : b.last;
}

static inline bool is_newline(uint8_t c)
{
    return c == '\n' || c == '\r';
}

static inline size_t newlines_end(const uint8_t *text, size_t at, size_t bytes)
{
    while (at < bytes && is_newline(text[at])) at++;
    return at;
}

static inline size_t numbers_end(const uint8_t *text, size_t at, size_t bytes, int max)
{
    struct split_unit u;
    for (int i = 0; i < max && (u = split_unit_at(text, at, bytes)).set & N; i++) at += u.bytes;
    return at;
}

static inline size_t gpt2_end(const uint8_t *text, size_t at, size_t bytes)
{
    if (text[at] == '\'') {
        size_t n = contraction_bytes(text, at, bytes, false);
        if (n != 0) return at + n;
    }
    size_t begin = at + (text[at] == ' ');
    struct split_unit u = split_unit_at(text, begin, bytes);
    if (u.set & L) return letters_end(text, begin + u.bytes, bytes, L, true);
    if (u.set & N) return run_end(text, begin + u.bytes, bytes, N);
    if (u.set & NOT_SLN) return run_end(text, begin + u.bytes, bytes, NOT_SLN);
    return blank_end(blank_run(text, at, bytes), at, bytes);
}

/* What differs between the patterns
 *
 *   contraction | [^\r\n\p{L}\p{N}]?word | \p{N}{1,digits} | ?[punct]+[tail]* | \s*[\r\n]+ | \s+(?!\S) | \s+
 */
struct family {
    enum {
        FAMILY_WORDS,
        FAMILY_GPT2,
        FAMILY_DEEPSEEK3
    } kind; /* the last two have scanners of their own: below */
    enum { NO_CONTRACTION, CONTRACTION_FIRST, CONTRACTION_BEHIND } contraction; /* alone, or ending a word */
    bool cased;        /* a word is [UPPERISH]*[LOWERISH]+|[UPPERISH]+[LOWERISH]*; else [word]+ */
    bool slash;        /* the tail of punctuation is [\r\n/]*; else [\r\n]* */
    bool blank_to_end; /* \s++$ comes before \s*[\r\n] */
    int digits;
    uint32_t word, punct;
};

/* [UPPERISH]*[LOWERISH]+|[UPPERISH]+[LOWERISH]*. The first alternative is greedy in UPPERISH; without a lower
 * letter after it, it backtracks to the last character in both sets; if there is none, the second alternative
 * matches all. */
static inline size_t cased_end(const uint8_t *text, size_t at, size_t bytes)
{
    size_t both = 0;
    struct split_unit u;
    for (; (u = split_unit_at(text, at, bytes)).set & UPPERISH; at += u.bytes)
        if (u.set & BOTH) both = at + u.bytes;
    if (u.set & LOWER) return letters_end(text, at + u.bytes, bytes, LOWERISH, false);
    return both != 0 ? both : at;
}

/* The word that begins at `at`, where a character of f.word is. */
static inline __attribute__((always_inline)) size_t word_end(struct family f, const uint8_t *text, size_t at,
                                                             size_t bytes)
{
    size_t end = f.cased ? cased_end(text, at, bytes) : letters_end(text, at, bytes, f.word, true);
    if (f.contraction == CONTRACTION_BEHIND && end < bytes && text[end] == '\'')
        end += contraction_bytes(text, end, bytes, true);
    return end;
}

/* A mark can be the one character before a word and, if f.word has marks, the first of one. Both readings end
 * at the same position, so marks are not tried as that one character. */
static inline __attribute__((always_inline)) size_t family_end(struct family f, const uint8_t *text,
                                                               size_t at, size_t bytes)
{
    uint8_t c = text[at];
    if (f.contraction == CONTRACTION_FIRST && c == '\'') {
        size_t n = contraction_bytes(text, at, bytes, true);
        if (n != 0) return at + n;
    }
    struct split_unit u = split_unit_at(text, at, bytes);
    if (u.set & f.word) return word_end(f, text, at, bytes);
    if (u.set & N) return numbers_end(text, at, bytes, f.digits);
    size_t end = at + u.bytes;
    struct split_unit next = split_unit_at(text, end, bytes);
    if (next.set & f.word && !is_newline(c)) return word_end(f, text, end, bytes);
    if (u.set & f.punct || (c == ' ' && next.set & f.punct)) {
        end = run_end(text, end, bytes, f.punct);
        while (end < bytes && (is_newline(text[end]) || (f.slash && text[end] == '/'))) end++;
        return end;
    }
    struct blank b = blank_run(text, at, bytes);
    if (f.blank_to_end && b.end == bytes) return bytes;
    return b.newline_end != 0 ? b.newline_end : blank_end(b, at, bytes);
}

static const struct family gpt2 = {.kind = FAMILY_GPT2, .contraction = CONTRACTION_FIRST};
static const struct family deepseek3 = {.kind = FAMILY_DEEPSEEK3, .digits = 3};
#define FAMILY(name, ...)                                                                                    \
    static const struct family name = {__VA_ARGS__};                                                         \
    static inline size_t name##_end(const uint8_t *text, size_t at, size_t bytes)                            \
    {                                                                                                        \
        return family_end(name, text, at, bytes);                                                            \
    }
FAMILY(llama3, .contraction = CONTRACTION_FIRST, .word = L, .punct = NOT_SLN, .digits = 3)
FAMILY(cl100k, .contraction = CONTRACTION_FIRST, .word = L, .punct = NOT_SLN, .digits = 3,
       .blank_to_end = true)
FAMILY(nanochat, .contraction = CONTRACTION_FIRST, .word = L, .punct = NOT_SLN, .digits = 2)
FAMILY(qwen2, .contraction = CONTRACTION_FIRST, .word = L, .punct = NOT_SLN, .digits = 1)
FAMILY(qwen35, .contraction = CONTRACTION_FIRST, .word = L | M, .punct = NOT_SLN & ~M, .digits = 1)
FAMILY(o200k, .contraction = CONTRACTION_BEHIND, .word = L | M, .punct = NOT_SLN, .digits = 3, .cased = true,
       .slash = true)
FAMILY(tekken, .word = L | M, .punct = NOT_SLN, .digits = 1, .cased = true, .slash = true)

/* DeepSeek-V3: numbers are cut out first, then runs of Chinese and Japanese characters; the third pattern
 * splits the rest and each such run, as separate texts. So a number ends the text for it, and so does a
 * character of the other kind: `inside` a run or not. */
static inline bool is_deepseek_cjk(uint32_t code)
{
    return (code >= 0x4e00 && code <= 0x9fa5) || (code >= 0x3040 && code <= 0x30ff);
}

static inline struct split_unit part_unit_at(const uint8_t *text, size_t at, size_t bytes, bool inside)
{
    struct split_unit u = split_unit_at(text, at, bytes);
    if (u.set & N || is_deepseek_cjk(u.code) != inside) u.set = 0;
    return u;
}

static inline size_t part_run_end(const uint8_t *text, size_t at, size_t bytes, uint32_t set, bool inside)
{
    for (struct split_unit u; (u = part_unit_at(text, at, bytes, inside)).set & set;) at += u.bytes;
    return at;
}

static inline size_t part_letters_end(const uint8_t *text, size_t at, size_t bytes, bool inside)
{
    while (!inside && bytes - at >= 32) {
        uint32_t others = ~letters_mask(text + at, true);
        at += others == 0 ? 32 : (size_t)__builtin_ctz(others);
        if (others == 0) continue;
        if (text[at] < 0x80) return at;
        for (struct split_unit u; at < bytes && text[at] >= 0x80; at += u.bytes)
            if (!((u = part_unit_at(text, at, bytes, false)).set & (L | M))) return at;
    }
    return part_run_end(text, at, bytes, L | M, inside);
}

static inline bool is_ascii_letter(uint8_t c)
{
    return (uint8_t)((c | 0x20) - 'a') < 26;
}

static inline size_t deepseek3_end(const uint8_t *text, size_t at, size_t bytes)
{
    uint8_t c = text[at];
    struct split_unit u = split_unit_at(text, at, bytes);
    if (u.set & N) return numbers_end(text, at, bytes, 3);
    bool inside = is_deepseek_cjk(u.code);
    size_t end = at + u.bytes;
    if (u.set & P && c < 0x80 && end < bytes && is_ascii_letter(text[end])) {
        while (end < bytes && is_ascii_letter(text[end])) end++;
        return end;
    }
    if (u.set & (L | M)) return part_letters_end(text, end, bytes, inside);
    struct split_unit next = part_unit_at(text, end, bytes, inside);
    if (!(u.set & P) && !is_newline(c) && next.set & (L | M))
        return part_letters_end(text, end, bytes, inside);
    if (u.set & P || (c == ' ' && next.set & P)) {
        end = part_run_end(text, end, bytes, P, inside);
        return inside ? end : newlines_end(text, end, bytes);
    }
    if (u.set & S) {
        struct blank b = blank_run(text, at, bytes);
        if (b.newline_end != 0) return b.newline_end;
        return part_unit_at(text, b.end, bytes, false).set == 0 ? b.end : blank_end(b, at, bytes);
    }
    /* No alternative begins with a control or unassigned character unless a word follows: such characters
     * stay between two matches, as one piece. */
    for (; next.set & C; end += next.bytes, next = u)
        if ((u = part_unit_at(text, end + next.bytes, bytes, inside)).set & (L | M)) break;
    return end;
}

/* 64 bytes as bit sets, bit i for byte i. Only ASCII is in any set; everything from the first other byte on
 * is in none. */
struct window {
    int bytes; /* before the first that is not ASCII */
    uint64_t letter, upper, digit, blank, newline, space, quote, slash,
        other; /* other: none of the first, third, fourth */
};

static inline uint64_t places(bytes32 low, bytes32 high)
{
    return bytes32_mask(low) | (uint64_t)bytes32_mask(high) << 32;
}

static inline bytes32 between(bytes32 v, char first, char last)
{
    return bytes32_and(bytes32_above(v, bytes32_set((char)(first - 1))),
                       bytes32_above(bytes32_set((char)(last + 1)), v));
}

static inline uint64_t places_of(bytes32 a, bytes32 b, char c)
{
    bytes32 v = bytes32_set(c);
    return places(bytes32_equal(a, v), bytes32_equal(b, v));
}

/* no_control: control characters count as not ASCII. */
static inline __attribute__((always_inline)) struct window window_read(const uint8_t *p, bool no_control)
{
    bytes32 a = bytes32_load(p), b = bytes32_load(p + 32);
    bytes32 fold = bytes32_set(0x20), a_low = bytes32_or(a, fold), b_low = bytes32_or(b, fold);
    uint64_t blank = places(between(a, '\t', '\r'), between(b, '\t', '\r')), high = places(a, b);
    if (no_control)
        high |= (places(bytes32_above(fold, a), bytes32_above(fold, b)) & ~blank) | places_of(a, b, 0x7f);
    uint64_t in = high != 0 ? (high & -high) - 1 : UINT64_MAX;
    struct window w = {.bytes = high != 0 ? __builtin_ctzll(high) : 64};
    w.letter = in & places(between(a_low, 'a', 'z'), between(b_low, 'a', 'z'));
    w.upper = in & places(between(a, 'A', 'Z'), between(b, 'A', 'Z'));
    w.digit = in & places(between(a, '0', '9'), between(b, '0', '9'));
    w.space = in & places_of(a, b, ' ');
    w.blank = w.space | (in & blank);
    w.newline = in & (places_of(a, b, '\n') | places_of(a, b, '\r'));
    w.quote = in & places_of(a, b, '\'');
    w.slash = in & places_of(a, b, '/');
    w.other = in & ~(w.letter | w.digit | w.blank);
    return w;
}

/* Members of a set without a member directly before them. */
static inline uint64_t firsts(uint64_t set)
{
    return set & ~(set << 1);
}

/* Contractions start or end pieces where `starts` does not say so yet. quotes: where one may be. */
static inline uint64_t with_contractions(uint64_t starts, uint64_t quotes, bool fold_case, bool behind,
                                         const uint8_t *text, size_t at, size_t bytes)
{
    for (int done = -1; quotes != 0; quotes &= quotes - 1) {
        int q = __builtin_ctzll(quotes);
        int n = (int)contraction_bytes(text, at + (size_t)q, bytes, fold_case);
        if (n == 0 || (behind && q == done)) continue; /* behind a word only one */
        starts &= ~(((UINT64_C(1) << n) - 1) << q);
        if (!behind) starts |= UINT64_C(1) << q;
        done = q + n;
        if (done < 64) starts |= UINT64_C(1) << done;
    }
    return starts;
}

/* Where white space starts a piece; *limit: from which position on this is unknown. `blank` excludes line
 * ends that belong to the punctuation before them. A run splits into: up to its last line end, what follows,
 * and its last character unless white space follows. */
static inline uint64_t blank_starts(uint64_t blank, uint64_t newline, uint64_t ends_before, uint64_t *limit)
{
    uint64_t gap = blank & ~newline, behind = firsts(gap) & (blank & newline) << 1;
    /* white space between two line ends is no piece: too rare to detect here */
    if (behind != 0 && ((gap + firsts(gap)) & newline) != 0) *limit = behind & -behind;
    return firsts(blank) | behind | (gap & ~(blank >> 1) & ~ends_before);
}

/* Piece starts in the window at text[at], where one begins; 0 is left out. A piece that ends outside the
 * window or at an unknown position has no end here. */
static inline __attribute__((always_inline)) uint64_t
window_starts(struct family f, struct window w, const uint8_t *text, size_t at, size_t bytes)
{
    bool is_gpt2 = f.kind == FAMILY_GPT2;
    uint64_t limit = 0, newline = is_gpt2 ? 0 : w.newline, starts;
    uint64_t alone =
        firsts(w.other) & ~(w.space << 1); /* punctuation that starts a piece: no space belongs to it */
    uint64_t tail = newline & ~(newline + (newline & w.other << 1)), blank = w.blank & ~tail;
    /* Before numbers and, for DeepSeek-V3, the end of a text: all white space is one piece. */
    starts = blank_starts(blank, newline, f.kind == FAMILY_DEEPSEEK3 ? w.digit >> 1 : 0, &limit) | alone;
    if (is_gpt2) {
        starts |= (firsts(w.letter) | firsts(w.digit)) & ~(w.space << 1);
    } else {
        starts |= firsts(w.letter) & ~((alone | (blank & ~newline)) << 1);
        if (f.digits == 1) starts |= w.digit;
        for (uint64_t three = w.digit & w.digit << 1 & w.digit << 2, d = firsts(w.digit);
             f.digits == 3 && d != 0; d = d << 3 & three)
            starts |= d;
        for (uint64_t two = w.digit & w.digit << 1, d = firsts(w.digit); f.digits == 2 && d != 0;
             d = d << 2 & two)
            starts |= d;
    }
    if (f.cased) starts |= w.upper & (w.letter & ~w.upper) << 1;
    if (f.contraction == CONTRACTION_FIRST)
        starts = with_contractions(starts, w.quote & alone, !is_gpt2, false, text, at, bytes);
    if (f.contraction == CONTRACTION_BEHIND)
        starts = with_contractions(starts, w.quote & w.letter << 1, true, true, text, at, bytes);
    if (f.slash && (w.slash & tail << 1) != 0) limit |= w.slash & tail << 1;
    /* A run of white space that the window cuts off: only its start is known. */
    uint64_t last = UINT64_C(1) << (w.bytes - 1);
    if (blank & last) limit |= (UINT64_C(2) << (63 - __builtin_clzll(firsts(blank)))) & ~UINT64_C(1);
    if (limit != 0) starts &= (limit & -limit) - 1;
    return starts & ~UINT64_C(1);
}

/* The loop around a scanner, which is inlined into it. */
#define SCAN(name)                                                                                           \
    static int name##_scan(const uint8_t *text, size_t at, size_t bytes, size_t *ends, int max)              \
    {                                                                                                        \
        int count = 0;                                                                                       \
        while (at < bytes && count < max) {                                                                  \
            if (bytes - at >= 64 && ((text[at] | text[at + 1]) & 0x80) == 0) {                               \
                struct window w = window_read(text + at, name.kind == FAMILY_DEEPSEEK3);                     \
                uint64_t starts = w.bytes > 1 ? window_starts(name, w, text, at, bytes) : 0;                 \
                size_t begin = at;                                                                           \
                for (; starts != 0 && count < max; starts &= starts - 1)                                     \
                    ends[count++] = at = begin + (size_t)__builtin_ctzll(starts);                            \
                if (at != begin && (w.bytes == 64 || count == max)) continue;                                \
            }                                                                                                \
            ends[count++] = at = name##_end(text, at, bytes);                                                \
        }                                                                                                    \
        return count;                                                                                        \
    }
SCAN(gpt2)
SCAN(cl100k)
SCAN(o200k)
SCAN(llama3)
SCAN(qwen2)
SCAN(qwen35)
SCAN(nanochat)
SCAN(tekken)
SCAN(deepseek3)

#define CONTRACTIONS  "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define UPPERISH_TEXT "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWERISH_TEXT "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED_TEXT(suffix)                                                                                   \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPERISH_TEXT "*" LOWERISH_TEXT "+" suffix                                      \
    "|[^\\r\\n\\p{L}\\p{N}]?" UPPERISH_TEXT "+" LOWERISH_TEXT "*" suffix
#define LLAMA3_TEXT(numbers)                                                                                 \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"                 \
                 "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
/* cl100k as tiktoken had it up to 0.6: the same pieces as LLAMA3_TEXT, since \s* takes all line ends but one. */
#define POSSESSIVE_TEXT(numbers)                                                                             \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|" numbers "| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*"       \
    "|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"

const struct split_row split_table[SPLIT_COUNT] = {
    /* Also r50k and p50k; the second is how tiktoken spells it since 0.7. */
    [SPLIT_GPT2] =
        {{"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
          "'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^\\s\\p{L}\\p{N}]++|\\s++$|\\s+(?!\\S)|\\s"},
         1,
         gpt2_scan},
    /* tiktoken since 0.7 writes \p{N}{1,3}+, which to Oniguruma is not possessive but ({1,3})+: in
     * tokenizer.json that text means numbers of any length, so it is not among the spellings. */
    [SPLIT_CL100K] = {{"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}| "
                       "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s"},
                      1,
                      cl100k_scan},
    /* Also Llama-4's: models/llama4/tokenizer.py of github.com/meta-llama/llama-models, O200K_PATTERN. */
    [SPLIT_O200K] = {{CASED_TEXT(CONTRACTIONS "?") "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*"
                                                   "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
                     1,
                     o200k_scan},
    [SPLIT_LLAMA3] = {{LLAMA3_TEXT("\\p{N}{1,3}"), POSSESSIVE_TEXT("\\p{N}{1,3}")}, 1, llama3_scan},
    [SPLIT_QWEN2] = {{LLAMA3_TEXT("\\p{N}"), POSSESSIVE_TEXT("\\p{N}"), LLAMA3_TEXT("\\p{N}{1}")},
                     1,
                     qwen2_scan},
    [SPLIT_QWEN35] = {{CONTRACTIONS
                       "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*"
                       "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
                      1,
                      qwen35_scan},
    [SPLIT_NANOCHAT] = {{POSSESSIVE_TEXT("\\p{N}{1,2}")}, 1, nanochat_scan},
    /* Mistral's, as in the Nemo models. */
    [SPLIT_TEKKEN] = {{CASED_TEXT(
                          "") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
                      1,
                      tekken_scan},
    [SPLIT_DEEPSEEK3] = {{"\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
                          "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"
                          "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
                         3,
                         deepseek3_scan},
};

static inline size_t char_before(const uint8_t *text, size_t at)
{
    do at--;
    while ((text[at] & 0xc0) == 0x80);
    return at;
}

/* In no pattern does a piece have white space after a letter or a number. A single \n between two other
 * characters ends a piece in all of them (alone, or after punctuation), except before a slash, which may
 * belong to the same piece. */
static bool cut_is_safe(const uint8_t *text, size_t at, size_t bytes)
{
    uint32_t next = split_unit_at(text, at, bytes).set;
    size_t before = char_before(text, at);
    if (next & S) return (split_unit_at(text, before, bytes).set & (L | N)) != 0;
    return text[before] == '\n' && text[at] != '/' && before > 0 &&
           !(split_unit_at(text, char_before(text, before), bytes).set & S);
}

size_t split_cut(const char *text, size_t bytes, size_t want)
{
    const uint8_t *p = (const uint8_t *)text;
    for (size_t at = want; at > 0; at--)
        if ((p[at] & 0xc0) != 0x80 && cut_is_safe(p, at, bytes)) return at;
    return bytes;
}
