/* Splitting text into pieces: each row of split_table is one pattern, known by the regular expression that
 * tokenizer.json holds and done by a hand-written scanner. BPE merges never cross from one piece into the
 * next. */
#ifndef INGOT_DATA_SPLIT_H
#define INGOT_DATA_SPLIT_H
#include <stddef.h>
#include <stdint.h>

/* Splits valid UTF-8 text[at, bytes): the pieces end at ends[0] < ends[1] < ..., the first one begins at
 * `at`. Returns how many were found, at most `max`; 0 only when at == bytes. Call again with at = the last
 * end. Every piece is final: what lies beyond `bytes` is taken to be the end of the text. */
typedef int split_scan_fn(const uint8_t *text, size_t at, size_t bytes, size_t *ends, int max);

struct split_row {
    const char *name;
    const char *pattern; /* exactly as in tokenizer.json */
    split_scan_fn *scan;
};
enum { SPLIT_COUNT = 2 };
extern const struct split_row split_table[SPLIT_COUNT];

/* The last place in [1, want], want < bytes, where the text can be cut so that both parts split as the whole
 * does, for every row of the table; `bytes` when there is none. The text must be valid UTF-8. */
size_t split_cut(const char *text, size_t bytes, size_t want);
#endif
