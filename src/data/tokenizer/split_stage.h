/* One stage of a pre_tokenizer: how a text falls into spans that match a pattern and spans between them, and which
 * spans become one piece. */
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

/* What else a stage can look for than a row of split_table: short patterns that leave text between them. */
struct split_short {
    const char
        *pattern; /* regular expression; NULL for the parts of tokenizer.json with a type of their own */
    bool (*is)(uint32_t code);
    bool blank;   /* \s? before it */
    bool spaced;  /* a match may hold white space */
    int min, max; /* how many characters; max 0: no limit */
};
enum { SPLIT_DIGITS, SPLIT_PUNCTUATION, SPLIT_SHORT_COUNT = 12 };
extern const struct split_short split_shorts[SPLIT_SHORT_COUNT];

enum { SPLIT_STRING_MAX = 15 };
struct split_stage { /* one of row, look and string */
    const struct split_row *row;
    const struct split_short *look;
    uint8_t string[SPLIT_STRING_MAX];
    uint8_t string_bytes;
    enum split_behavior behavior; /* rows: always Isolated, and no text is left between the matches */
};

/* End of the piece that begins at `at` < bytes, which is the end of the piece before (or of the text's begin). */
size_t split_stage_end(const struct split_stage *s, const uint8_t *text, size_t at, size_t bytes);
/* A row, or for short patterns look, by the spelling in tokenizer.json: a carriage return or line feed in it is
 * taken for its escape. NULL when there is none. *part: which pattern of the row it is. */
const struct split_row *split_stage_row(const char *pattern, int *part);
const struct split_short *split_stage_short(const char *pattern);
#endif
