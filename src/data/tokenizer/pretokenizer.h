/* From text to pieces, as the members "normalizer" and "pre_tokenizer" of tokenizer.json say it. BPE merges
 * never cross from one piece into the next.
 *
 * In the order in which a text passes through:
 *
 *   added tokens with normalized=false are cut out       by the caller
 *   pretokenizer_normalize                               NFC, or nothing
 *   added tokens with normalized=true are cut out        by the caller
 *   pretokenizer_scan, for each section between them     ends of the pieces; nothing of the text is dropped
 *
 * What a file asks for beyond that is refused by name, so a pretokenizer that is there is exact. */
#ifndef INGOT_DATA_TOKENIZER_PRETOKENIZER_H
#define INGOT_DATA_TOKENIZER_PRETOKENIZER_H
#include "base/status.h"
#include "data/tokenizer/split_stage.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_t; /* jansson's */

/* A value: copied by assignment, owns nothing. Its members are for the files pretokenizer*.c alone. */
enum { PRETOKENIZER_STAGES_MAX = 8 };
struct pretokenizer {
    bool nfc;
    int count; /* each stage divides the pieces of the one before it, as if each were a text of its own */
    struct split_stage stages[PRETOKENIZER_STAGES_MAX];
};

/* One that has a name: gpt2 (also r50k, p50k), cl100k, o200k (also llama4), llama3, qwen2 (also qwen, qwen3),
 * qwen3.5, nanochat, tekken, deepseek-v3, deepseek-coder, starcoder. STATUS_CONFIG lists the names. */
status pretokenizer_named(struct pretokenizer *p, const char *name) WARN_UNUSED;
/* Name number i, from 0 on; NULL behind the last. Each pretokenizer comes once, without its other names. */
const char *pretokenizer_word(int i);
/* The name; NULL for one that has none. */
const char *pretokenizer_name(const struct pretokenizer *p);
/* From the two members of tokenizer.json; NULL where the file has no such member. STATUS_DATA names the JSON
 * path of what is not supported. */
status pretokenizer_from_json(struct pretokenizer *p, const struct json_t *normalizer,
                              const struct json_t *pre_tokenizer) WARN_UNUSED;
/* The two members, new references, as Hugging Face tokenizers reads them. STATUS_FIT. */
status pretokenizer_to_json(const struct pretokenizer *p, struct json_t **normalizer,
                            struct json_t **pre_tokenizer) WARN_UNUSED;
/* The canonical text, for hashes: equal only when all texts have equal pieces. Writes at most `cap` bytes
 * with the NUL and returns the length, as snprintf does; PRETOKENIZER_TEXT_BYTES are enough. */
enum { PRETOKENIZER_TEXT_BYTES = 4096 };
size_t pretokenizer_text(const struct pretokenizer *p, char *out, size_t cap);

/* Room for normalized text, kept from one call to the next: zero it first, free(data) last. */
struct pretokenizer_room {
    char *data;
    size_t cap;
};
/* Normalizes valid UTF-8: *out is `text` itself when nothing changes (found by a fast check), else in `room`.
 * STATUS_FIT. */
status pretokenizer_normalize(const struct pretokenizer *p, const char *text, size_t bytes,
                              struct pretokenizer_room *room, const char **out,
                              size_t *out_bytes) WARN_UNUSED;

/* Where a scan stands: what lies before `at` is done. */
struct pretokenizer_cursor {
    const uint8_t *text; /* valid UTF-8, normalized */
    size_t at, bytes;
    size_t ends[PRETOKENIZER_STAGES_MAX]; /* of the piece of each stage that `at` is in */
};
static inline struct pretokenizer_cursor pretokenizer_begin(const char *text, size_t bytes)
{
    struct pretokenizer_cursor c = {(const uint8_t *)text, 0, bytes, {0}};
    return c;
}
/* The next pieces: they end at ends[0] < ends[1] < ..., the first one begins at c->at. Returns how many were
 * found, at most `max`; 0 only when the text is done. Every piece is final: what lies beyond c->bytes is
 * taken to be the end of the text. */
int pretokenizer_scan(const struct pretokenizer *p, struct pretokenizer_cursor *c, size_t *ends, int max);

/* The last place in [1, want], want < bytes, where the text can be cut so that both parts, normalized and
 * scanned apart, give the pieces of the whole; `bytes` when there is none. The text must be valid UTF-8, not
 * yet normalized. */
size_t pretokenizer_cut(const struct pretokenizer *p, const char *text, size_t bytes, size_t want);
#endif
