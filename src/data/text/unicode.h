/* Character properties for tokenizers. Generated tables of Unicode 16.0.0: tools/gen_unicode.py, which also explains
 * the choice of version and where parts of Hugging Face tokenizers use another. */
#ifndef INGOT_DATA_TEXT_UNICODE_H
#define INGOT_DATA_TEXT_UNICODE_H
#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

/* General categories, as patterns use them. SPACE is \s, the 25 code points of White_Space (some of them have
 * category Cc). OTHER is everything else, including unassigned code points. */
enum unicode_class {
    UNICODE_OTHER,
    UNICODE_SPACE,
    UNICODE_NUMBER,   /* \p{N} */
    UNICODE_UPPER,    /* \p{Lu} */
    UNICODE_LOWER,    /* \p{Ll} */
    UNICODE_TITLE,    /* \p{Lt} */
    UNICODE_MODIFIER, /* \p{Lm} */
    UNICODE_LETTER,   /* \p{Lo} */
    UNICODE_MARK,     /* \p{M} */
    UNICODE_PUNCT,    /* \p{P} */
    UNICODE_SYMBOL,   /* \p{S} */
};

/* Two-stage table: unicode_index maps a code point to a block of 128, and a block holds one byte per code point.
 * Block 0 is ASCII. */
enum { UNICODE_BLOCK = 128, UNICODE_END = 0xe0200 }; /* from UNICODE_END on everything is OTHER */
extern const uint8_t unicode_index[UNICODE_END / UNICODE_BLOCK];
extern const uint8_t unicode_blocks[][UNICODE_BLOCK];

static inline enum unicode_class unicode_class_of(uint32_t code)
{
    if (code >= UNICODE_END) return UNICODE_OTHER;
    return (enum unicode_class)unicode_blocks[unicode_index[code / UNICODE_BLOCK]][code % UNICODE_BLOCK];
}

/* Ranges that became punctuation after Unicode 8.0. */
extern const uint32_t unicode_punct_later[][2];
extern const int unicode_punct_later_count;

/* For NFC, from Unicode 9.0. Hangul syllables are not in these tables: they are computed. */
enum unicode_nfc_quick { UNICODE_NFC_YES, UNICODE_NFC_MAYBE, UNICODE_NFC_NO };
struct unicode_nfc {
    uint32_t first,
        second; /* canonical decomposition in one step: two characters, one (second 0), none (both 0) */
    uint8_t combining; /* canonical combining class */
    uint8_t quick;     /* NFC_Quick_Check */
};
/* Records below TROUBLE belong to characters that no neighbour changes: class 0, quick check YES. */
enum { UNICODE_NFC_END = 0x2fa80, UNICODE_NFC_TROUBLE = 941 };
extern const uint8_t unicode_nfc_index[UNICODE_NFC_END / UNICODE_BLOCK];
extern const uint16_t unicode_nfc_blocks[][UNICODE_BLOCK];
extern const struct unicode_nfc unicode_nfc_records[]; /* [0] is the record of most characters */
/* first, second, composition; sorted */
extern const uint32_t unicode_nfc_pairs[][3];
extern const int unicode_nfc_pair_count;

/* A character without accents, in lower case and in compatibility form (token_map.h), where that differs from itself:
 * `count` characters of the pool, possibly none. Sorted by code. Hangul syllables are not in the table: they are
 * computed. */
struct unicode_fold {
    uint32_t code;
    uint16_t at, count;
};
extern const struct unicode_fold unicode_folds[];
extern const int unicode_fold_count;
extern const uint32_t unicode_fold_pool[];

static inline unsigned unicode_nfc_number(uint32_t code)
{
    if (code >= UNICODE_NFC_END) return 0;
    return unicode_nfc_blocks[unicode_nfc_index[code / UNICODE_BLOCK]][code % UNICODE_BLOCK];
}
#endif
