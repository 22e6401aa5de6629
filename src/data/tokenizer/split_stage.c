/* Stages performed one by one. Each is a function of the text from the start of a piece, like the scanners
 * of split.c; no state is kept between pieces. */
#include "data/tokenizer/split_stage.h"
#include "data/tokenizer/split_int.h"
#include "base/status.h"
#include <string.h>

static uint32_t set_of(uint32_t code)
{
    return 1u << unicode_class_of(code);
}

/* Hugging Face's Digits uses Rust's char::is_numeric, which has Unicode 17. */
static bool is_digit(uint32_t code)
{
    return set_of(code) & SPLIT_N || (code >= 0x11de0 && code <= 0x11de9) ||
           (code >= 0x16ff4 && code <= 0x16ff6);
}

/* Its Punctuation uses a crate with Unicode 8, and includes all ASCII symbols. */
static bool is_punctuation(uint32_t code)
{
    uint32_t set = set_of(code);
    if (code < 0x80) return (set & (SPLIT_P | SPLIT_Y)) != 0;
    if (code == 0x166d || code == 0x111c9) return true; /* punctuation in Unicode 8 */
    if (!(set & SPLIT_P)) return false;
    for (int i = 0; i < unicode_punct_later_count && unicode_punct_later[i][0] <= code; i++)
        if (code <= unicode_punct_later[i][1]) return false;
    return true;
}

static bool is_number(uint32_t code)
{
    return (set_of(code) & SPLIT_N) != 0;
}
static bool is_letter(uint32_t code)
{
    return (set_of(code) & SPLIT_L) != 0;
}
static bool is_punct(uint32_t code)
{
    return (set_of(code) & SPLIT_P) != 0;
}
static bool is_newline(uint32_t code)
{
    return code == '\r' || code == '\n';
}
static bool is_ascii_digit(uint32_t code)
{
    return code >= '0' && code <= '9';
}
static bool is_deepseek_asian(uint32_t code)
{
    return (code >= 0x800 && code <= 0x9fa5) || (code >= 0xac00 && code <= 0xd7ff);
}
static bool is_deepseek_cjk(uint32_t code)
{
    return (code >= 0x4e00 && code <= 0x9fa5) || (code >= 0x3040 && code <= 0x30ff);
}

const struct split_short split_shorts[SPLIT_SHORT_COUNT] = {
    [SPLIT_DIGITS] = {.is = is_digit, .min = 1, .max = 1},
    [SPLIT_PUNCTUATION] = {.is = is_punctuation, .min = 1, .max = 1},
    {"\\p{N}", is_number, .min = 1, .max = 1},
    {"\\p{N}+", is_number, .min = 1},
    {"\\p{N}{1,3}", is_number, .min = 1, .max = 3},
    {"[0-9]", is_ascii_digit, .min = 1, .max = 1},
    {"[0-9][0-9][0-9]", is_ascii_digit, .min = 3, .max = 3},
    {"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", is_deepseek_cjk, .min = 1},
    {"[\\r\\n]", is_newline, .spaced = true, .min = 1, .max = 1}, /* from here on: DeepSeek-Coder */
    {"\\s?\\p{L}+", is_letter, .blank = true, .spaced = true, .min = 1},
    {"\\s?\\p{P}+", is_punct, .blank = true, .spaced = true, .min = 1},
    {"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", is_deepseek_asian, .spaced = true, .min = 1},
};

/* End of the match that begins at `at`; `at` when none does. */
static size_t match_end(const struct split_stage *s, const uint8_t *text, size_t at, size_t bytes)
{
    if (s->row != NULL) {
        size_t end = at;
        (void)s->row->scan(text, at, bytes, &end, 1);
        return end;
    }
    if (s->look == NULL) {
        bool same = bytes - at >= s->string_bytes && memcmp(text + at, s->string, s->string_bytes) == 0;
        return same ? at + s->string_bytes : at;
    }
    const struct split_short *look = s->look;
    struct split_unit u;
    size_t end = at;
    int count = 0;
    if (look->blank && (u = split_unit_at(text, end, bytes)).set & SPLIT_S) end += u.bytes;
    for (; count != look->max || count == 0; count++, end += u.bytes)
        if ((u = split_unit_at(text, end, bytes)).set == 0 || !look->is(u.code)) break;
    return count >= look->min ? end : at;
}

static size_t text_end(const struct split_stage *s, const uint8_t *text, size_t at, size_t bytes)
{
    while (at < bytes && match_end(s, text, at, bytes) == at) at += split_unit_at(text, at, bytes).bytes;
    return at;
}

size_t split_stage_end(const struct split_stage *s, const uint8_t *text, size_t at, size_t bytes)
{
    size_t end = match_end(s, text, at, bytes);
    bool is_match = end > at;
    if (!is_match) end = text_end(s, text, at, bytes);
    switch (s->behavior) {
    case SPLIT_BEHAVIOR_CONTIGUOUS:
        for (size_t next; is_match && (next = match_end(s, text, end, bytes)) > end;) end = next;
        return end;
    case SPLIT_BEHAVIOR_PREVIOUS: return is_match ? end : match_end(s, text, end, bytes);
    case SPLIT_BEHAVIOR_NEXT: return is_match ? text_end(s, text, end, bytes) : end;
    default: return end;
    }
}

/* True: `pattern` is `known`, with \r and \n as escapes or as themselves. */
static bool same_pattern(const char *pattern, const char *known)
{
    for (; *known != 0; known++) {
        bool newline = *pattern == '\r' || *pattern == '\n';
        if (newline && known[0] == '\\' && known[1] == (*pattern == '\r' ? 'r' : 'n'))
            known++;
        else if (newline || *pattern != *known)
            return false;
        pattern++;
    }
    return *pattern == 0;
}

const struct split_row *split_stage_row(const char *pattern, int *part)
{
    for (int i = 0; i < SPLIT_COUNT; i++)
        for (int k = 0; k < SPLIT_PATTERNS_MAX && split_table[i].patterns[k] != NULL; k++)
            if (same_pattern(pattern, split_table[i].patterns[k])) {
                *part = split_table[i].parts == 1 ? 0 : k;
                return &split_table[i];
            }
    return NULL;
}

const struct split_short *split_stage_short(const char *pattern)
{
    for (int i = 0; i < SPLIT_SHORT_COUNT; i++)
        if (split_shorts[i].pattern != NULL && same_pattern(pattern, split_shorts[i].pattern))
            return &split_shorts[i];
    return NULL;
}
