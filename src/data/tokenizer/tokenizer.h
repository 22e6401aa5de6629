/* Byte-level BPE tokenizers: train, load, save, encode, decode.
 *
 * A tokenizer is a directory with tokenizer.json (the HF format; spec: docs/FORMATS.md). Training writes the same
 * format. Encoding: special tokens are cut out first (only when asked), the rest is split by the pattern, and each
 * piece is merged by rank. The splitters are hand-written scanners over one pinned Unicode version; PCRE2 is their
 * reference in tests. */
#ifndef INGOT_DATA_TOKENIZER_TOKENIZER_H
#define INGOT_DATA_TOKENIZER_TOKENIZER_H
#include "base/status.h"
#include "base/utf8.h" /* utf8_valid */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Opaque and read-only: any number of threads may encode with it, each with its own encoder. */
struct tokenizer;

struct text { /* need not be NUL-terminated */
    const char *data;
    size_t bytes;
};

struct tokenizer_train_config {
    const char *pretokenizer;    /* a name: pretokenizer.h */
    int32_t vocab_size;          /* total: 256 bytes, merged tokens, specials */
    bool fewer;                  /* a text with fewer pairs gives a smaller vocabulary instead of an error */
    const char *const *specials; /* e.g. "<|endoftext|>": they get the last ids */
    int special_count;
};
/* Trains on `count` documents. Deterministic: pairs with equal counts are merged in the order of smaller (left id,
 * right id); ids of bytes are those of GPT-2. The merges are the same for any number of threads, and the same as
 * those of HF's BpeTrainer (initial_alphabet all bytes) if no piece is longer than BPE_PIECE_MAX. STATUS_DATA:
 * invalid UTF-8 (with document and byte offset), or too few pairs in the text (with the number of tokens it gives).
 * STATUS_CONFIG: an impossible vocabulary size or specials, an unknown pretokenizer. */
status tokenizer_train(struct tokenizer **t, const struct tokenizer_train_config *config,
                       const struct text *docs, int64_t count) WARN_UNUSED;

/* Loads a tokenizer.json, a directory with it or with vocab.json and merges.txt (encoder.json, vocab.bpe), or a
 * published rank file of tiktoken (tiktoken.h), or a tekken.json (tekken.h). STATUS_DATA when the file is damaged or describes something that this
 * program does not implement exactly; the message names it. */
status tokenizer_load(struct tokenizer **t, const char *path) WARN_UNUSED;
/* The same, with the name of the pretokenizer for files that do not define it (NULL: as tokenizer_load). */
status tokenizer_import(struct tokenizer **t, const char *path, const char *pretokenizer) WARN_UNUSED;
/* Writes tokenizer.json and its companion files, as transformers reads them. */
status tokenizer_save(const struct tokenizer *t, const char *dir) WARN_UNUSED;
void tokenizer_free(struct tokenizer *t);

int32_t tokenizer_vocab_size(const struct tokenizer *t);                /* largest id + 1 */
int32_t tokenizer_special(const struct tokenizer *t, const char *text); /* id, or -1 */
/* End-of-text token: the first of "<|endoftext|>", "<|end_of_text|>", "</s>" that is special; -1: none is. */
int32_t tokenizer_eot(const struct tokenizer *t);
/* Tokens at both ends of a text: those that DIR/tokenizer_config.json names, beside the tokenizer; where it names no end
 * of text, tokenizer_eot. -1: none. */
struct tokenizer_ends { int32_t bos, eos; };
struct tokenizer_ends tokenizer_ends_of(const struct tokenizer *t, const char *dir);
/* SHA-256 (hex) of the canonical contents: equal exactly when encode and decode are equal. */
void tokenizer_hash(const struct tokenizer *t, char out[65]);

/* Bytes of a token, not NUL-terminated; owned by the tokenizer. Length 0 for ids without a token. */
struct text tokenizer_bytes(const struct tokenizer *t, int32_t id);

/* True for added tokens, such as the end-of-text token. */
bool tokenizer_added(const struct tokenizer *t, int32_t id);

/* For writers of other formats. The name of the pretokenizer, NULL: none; whether an added token is marked special;
 * the halves of merge i in order of priority, false behind the last. */
const char *tokenizer_pattern(const struct tokenizer *t);
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);
bool tokenizer_merge(const struct tokenizer *t, int64_t i, int32_t *left, int32_t *right);

/* Per-thread encoding state (piece cache, output buffer). */
struct encoder;
/* Added tokens that the file does not mark as special are parsed in both modes, as HF does with split_special_tokens.
 */
enum specials { SPECIALS_AS_TEXT, SPECIALS_PARSE };
status encoder_open(struct encoder **e, const struct tokenizer *t) WARN_UNUSED;
void encoder_close(struct encoder *e);
/* Encodes valid UTF-8; *ids is valid until the next call. STATUS_DATA with the byte offset of the first
 * invalid sequence. */
status encoder_encode(struct encoder *e, const char *text, size_t bytes, enum specials specials,
                      const int32_t **ids, int64_t *count) WARN_UNUSED;
/* Last position in [1, want], want < bytes, where valid text can be cut without changing its ids, when both parts are
 * encoded separately with SPECIALS_AS_TEXT; `bytes` when there is none. */
size_t encoder_cut(const struct encoder *e, const char *text, size_t bytes, size_t want);
/* Appends the bytes of ids to *out (malloc'd, caller frees; *out may be NULL at first). STATUS_DATA for an id
 * outside the vocabulary. */
status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, int64_t count, char **out,
                        size_t *bytes) WARN_UNUSED;

#endif
