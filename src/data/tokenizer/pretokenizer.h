/* Splits text into pieces, as the members "normalizer" and "pre_tokenizer" of tokenizer.json define. BPE merges never
 * cross the border of a piece.
 *
 * The steps in order:
 *
 *   added tokens with normalized=false are cut out       by the caller
 *   pretokenizer_normalize                               NFC, or nothing
 *   added tokens with normalized=true are cut out        by the caller
 *   pretokenizer_scan, for each section between them     ends of the pieces; no text is dropped
 *
 * Anything else in a file is an error that names it; a loaded pretokenizer is therefore exact. */
#ifndef INGOT_DATA_TOKENIZER_PRETOKENIZER_H
#define INGOT_DATA_TOKENIZER_PRETOKENIZER_H
#include "base/status.h"
#include "data/tokenizer/split_stage.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_t; /* jansson's */

/* A value: copied by assignment, owns nothing. Only the files pretokenizer*.c access its members. */
enum { PRETOKENIZER_STAGES_MAX = 8 };
struct pretokenizer {
    bool nfc;
    int count; /* each stage splits the pieces of the previous one, each as an independent text */
    struct split_stage stages[PRETOKENIZER_STAGES_MAX];
};

/* Returns a named pretokenizer: gpt2 (also r50k, p50k), cl100k, o200k (also llama4), llama3, qwen2 (also qwen,
 * qwen3), qwen3.5, nanochat, tekken, deepseek-v3, deepseek-coder, starcoder. STATUS_CONFIG lists the names. */
status pretokenizer_named(struct pretokenizer *p, const char *name) WARN_UNUSED;
/* Name number i, from 0; NULL after the last. Each pretokenizer is listed once, without aliases. */
const char *pretokenizer_word(int i);
/* The name; NULL if it has none. */
const char *pretokenizer_name(const struct pretokenizer *p);
/* Reads the two members of tokenizer.json; NULL for a missing member. STATUS_DATA names the JSON path of an
 * unsupported part. */
status pretokenizer_from_json(struct pretokenizer *p, const struct json_t *normalizer,
                              const struct json_t *pre_tokenizer) WARN_UNUSED;
/* One of the patterns that split the whole text, by its spelling. STATUS_DATA for another. */
status pretokenizer_of_pattern(struct pretokenizer *p, const char *regex) WARN_UNUSED;
/* Writes the two members (new references) in the form that Hugging Face tokenizers reads. STATUS_OUT_OF_MEMORY. */
status pretokenizer_to_json(const struct pretokenizer *p, struct json_t **normalizer,
                            struct json_t **pre_tokenizer) WARN_UNUSED;
/* The canonical text, for hashes: equal only when all texts have equal pieces. Writes at most `cap` bytes including
 * the NUL and returns the length, as snprintf does; PRETOKENIZER_TEXT_BYTES are enough. */
enum { PRETOKENIZER_TEXT_BYTES = 4096 };
size_t pretokenizer_text(const struct pretokenizer *p, char *out, size_t cap);

/* Buffer for normalized text, reused between calls: zero it first, free(data) last. */
struct pretokenizer_room {
    char *data;
    size_t cap;
};
/* Normalizes valid UTF-8: *out is `text` itself when nothing changes (found by a fast check), else in `room`.
 * STATUS_OUT_OF_MEMORY. */
status pretokenizer_normalize(const struct pretokenizer *p, const char *text, size_t bytes,
                              struct pretokenizer_room *room, const char **out,
                              size_t *out_bytes) WARN_UNUSED;

/* Position of a scan: the text before `at` is done. */
struct pretokenizer_cursor {
    const uint8_t *text; /* valid UTF-8, normalized */
    size_t at, bytes;
    size_t ends[PRETOKENIZER_STAGES_MAX]; /* end of the piece of each stage that contains `at` */
};
static inline struct pretokenizer_cursor pretokenizer_begin(const char *text, size_t bytes)
{
    struct pretokenizer_cursor c = {(const uint8_t *)text, 0, bytes, {0}};
    return c;
}
/* Finds the next pieces: they end at ends[0] < ends[1] < ..., the first one begins at c->at. Returns their number, at
 * most `max`; 0 only at the end of the text. Every piece is final: c->bytes is treated as the end of the text. */
int pretokenizer_scan(const struct pretokenizer *p, struct pretokenizer_cursor *c, size_t *ends, int max);

/* Last position in [1, want], want < bytes, where the text can be cut without changing the pieces, when both parts
 * are normalized and scanned separately; `bytes` when there is none. The text must be valid UTF-8, not yet
 * normalized. */
size_t pretokenizer_cut(const struct pretokenizer *p, const char *text, size_t bytes, size_t want);
#endif
