/* Characters as classified by the scanners: shared by split.c and split_stage.c. */
#ifndef INGOT_DATA_TOKENIZER_SPLIT_INT_H
#define INGOT_DATA_TOKENIZER_SPLIT_INT_H
#include "base/utf8.h"
#include "data/text/unicode.h"

/* Sets of classes. */
#define SPLIT_SET(class) (1u << UNICODE_##class)
enum {
    SPLIT_S = SPLIT_SET(SPACE),
    SPLIT_N = SPLIT_SET(NUMBER),
    SPLIT_L =
        SPLIT_SET(UPPER) | SPLIT_SET(LOWER) | SPLIT_SET(TITLE) | SPLIT_SET(MODIFIER) | SPLIT_SET(LETTER),
    SPLIT_M = SPLIT_SET(MARK),
    SPLIT_P = SPLIT_SET(PUNCT),
    SPLIT_Y = SPLIT_SET(SYMBOL),
    SPLIT_C = SPLIT_SET(OTHER),
    SPLIT_ALL = SPLIT_S | SPLIT_N | SPLIT_L | SPLIT_M | SPLIT_P | SPLIT_Y | SPLIT_C,
};

struct split_unit { /* one character */
    uint32_t set;   /* its class as a set; empty after the end of the text, which is a member of no set */
    uint32_t bytes; /* 0 after the end of the text */
    uint32_t code;
};

static inline struct split_unit split_unit_at(const uint8_t *text, size_t at, size_t bytes)
{
    if (at >= bytes) return (struct split_unit){0, 0, 0};
    if (text[at] < 0x80) return (struct split_unit){1u << unicode_blocks[0][text[at]], 1, text[at]};
    struct utf8_char c = utf8_read(text + at);
    return (struct split_unit){1u << unicode_class_of(c.code), c.bytes, c.code};
}
#endif
