/* One stage of a pre_tokenizer: divides a text into spans that match a pattern and spans between them, and joins
 * spans into pieces. */
#ifndef INGOT_DATA_TOKENIZER_SPLIT_STAGE_H
#define INGOT_DATA_TOKENIZER_SPLIT_STAGE_H
#include "data/tokenizer/split.h"

/* X(behavior, as in tokenizer.json). Removed is missing: text that disappears cannot be decoded. */
#define SPLIT_BEHAVIORS(X)                                                                                   \
    X(ISOLATED, "Isolated")           /* each match, each text between */                                    \
    X(CONTIGUOUS, "Contiguous")       /* adjacent matches are one piece */                                   \
    X(PREVIOUS, "MergedWithPrevious") /* a match ends the piece of the text before it */                     \
    X(NEXT, "MergedWithNext")         /* a match begins the piece of the text behind it */
enum split_behavior {
#define X(name, text) SPLIT_BEHAVIOR_##name,
    SPLIT_BEHAVIORS(X)
#undef X
        SPLIT_BEHAVIOR_COUNT
};

/* Patterns other than rows of split_table: short patterns that leave text between matches. */
struct split_short {
    const char
        *pattern; /* regular expression; NULL for parts of tokenizer.json with their own type */
    bool (*is)(uint32_t code);
    bool blank;   /* \s? before the match */
    bool spaced;  /* a match may hold white space */
    int min, max; /* number of characters; max 0: no limit */
};
enum { SPLIT_DIGITS, SPLIT_PUNCTUATION, SPLIT_SHORT_COUNT = 12 };
extern const struct split_short split_shorts[SPLIT_SHORT_COUNT];

enum { SPLIT_STRING_MAX = 15 };
struct split_stage { /* exactly one of row, look and string is set */
    const struct split_row *row;
    const struct split_short *look;
    uint8_t string[SPLIT_STRING_MAX];
    uint8_t string_bytes;
    enum split_behavior behavior; /* rows: always Isolated, and matches leave no text between them */
};

/* Returns the end of the piece that begins at `at` < bytes; `at` is the end of the previous piece, or the start of
 * the text. */
size_t split_stage_end(const struct split_stage *s, const uint8_t *text, size_t at, size_t bytes);
/* Finds a row, or a short pattern, by its spelling in tokenizer.json; a carriage return or line feed equals its
 * escape. NULL when there is none. *part: index of the pattern in the row. */
const struct split_row *split_stage_row(const char *pattern, int *part);
const struct split_short *split_stage_short(const char *pattern);
#endif
