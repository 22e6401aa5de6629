/* Splits text into pieces by the long patterns of tokenizers. Each row of split_table is one pattern: the regular
 * expression in tokenizer.json, implemented by a hand-written scanner. */
#ifndef INGOT_DATA_TOKENIZER_SPLIT_H
#define INGOT_DATA_TOKENIZER_SPLIT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Splits valid UTF-8 text[at, bytes): the pieces end at ends[0] < ends[1] < ..., the first one begins at `at`.
 * Returns their number, at most `max`; 0 only when at == bytes. Call again with at = the last end. Every piece is
 * final: `bytes` is treated as the end of the text. Time is linear in the bytes for any text. */
typedef int split_scan_fn(const uint8_t *text, size_t at, size_t bytes, size_t *ends, int max);

enum split_id {
    SPLIT_GPT2,
    SPLIT_CL100K,
    SPLIT_O200K,
    SPLIT_LLAMA3,
    SPLIT_QWEN2,
    SPLIT_QWEN35,
    SPLIT_NANOCHAT,
    SPLIT_TEKKEN,
    SPLIT_DEEPSEEK3,
    SPLIT_COUNT
};
enum { SPLIT_PATTERNS_MAX = 3, SPLIT_PARTS_MAX = 3 };

struct split_row {
    /* Spellings of one pattern as regular expressions of Oniguruma, which Hugging Face tokenizers uses; \r and \n are
     * written as escapes. The first is the one that is written. For DEEPSEEK3 these are three consecutive patterns. */
    const char *patterns[SPLIT_PATTERNS_MAX];
    int parts; /* stages that the scanner performs at once: 1, or 3 for DEEPSEEK3 */
    split_scan_fn *scan;
};
extern const struct split_row split_table[SPLIT_COUNT];

/* Last position in [1, want], want < bytes, where the text can be cut without changing the pieces, for every row of
 * the table; `bytes` when there is none. The text must be valid UTF-8. */
size_t split_cut(const char *text, size_t bytes, size_t want);
#endif
