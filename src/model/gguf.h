/* Writes models as GGUF files, version 3, which llama.cpp and its kin load: one file of metadata, tokenizer and
 * tensors. Written from the public specification; docs/FORMATS.md says what a file holds.
 *
 * Architectures: llama, qwen2, qwen3, qwen3moe, gpt2. A model that none of them computes is refused with the layer or
 * the key that has no counterpart. */
#ifndef INGOT_MODEL_GGUF_H
#define INGOT_MODEL_GGUF_H
#include "data/tokenizer/sentencepiece.h"
#include "data/tokenizer/tokenizer.h"
#include "model/decoder.h"

/* Types of tensors, with the numbers of the specification. Vectors, routers and positions are F32 in every file; a
 * matrix whose rows are no multiple of 32 is F16 in a file of Q8_0. */
enum gguf_type { GGUF_F32 = 0, GGUF_F16 = 1, GGUF_Q8_0 = 8, GGUF_BF16 = 30 };
int gguf_type_find(const char *word);         /* "f32", "f16", "q8_0", "bf16"; -1: another word */
const char *gguf_type_word(enum gguf_type t);

struct gguf_source {
    const struct decoder *d;
    const struct tokenizer *tokenizer; /* NULL: the file has none, or that: */
    const struct sentencepiece *pieces; /* in its place, with its own bos and eos; NULL */
    int32_t bos, eos;                  /* -1: none */
    const char *name;                  /* general.name */
    enum gguf_type type;
};
/* The architecture that computes this model. STATUS_CONFIG: none, and why. */
status gguf_architecture(const struct decoder *d, const char **arch) WARN_UNUSED;
/* Writes and commits `path`. STATUS_CONFIG: a model, or a tokenizer, that has no counterpart; STATUS_NUMERIC: a weight
 * that is not finite, or too large for f16. */
status gguf_write(const struct gguf_source *s, const char *path) WARN_UNUSED;
#endif
