/* A vocabulary: id -> bytes for all tokens, bytes -> id for those made by BPE. Tokens are never removed. */
#ifndef INGOT_DATA_TOKENIZER_VOCAB_H
#define INGOT_DATA_TOKENIZER_VOCAB_H
#include "base/status.h"
#include "data/tokenizer/tokenizer.h"
#include <stddef.h>
#include <stdint.h>

enum token_kind {
    TOKEN_HOLE,  /* no token has this id; 0 bytes */
    TOKEN_MODEL, /* made by BPE */
    TOKEN_ADDED, /* only matched in the text as a whole */
    TOKEN_RAW,   /* the same, but tokenizer.json also lists it in model.vocab */
};

struct vocab_token {
    uint32_t at, bytes; /* range in blob */
    enum token_kind kind;
};

struct vocab_slot {
    uint32_t hash; /* low half of the hash of the bytes: distinguishes most others without reading their bytes */
    int32_t id;    /* -1: free */
};

struct vocab {
    size_t count;
    struct vocab_token *tokens;
    char *blob;
    struct vocab_slot *slots; /* open addressing over TOKEN_MODEL */
    size_t tokens_cap, blob_bytes, blob_cap, model_count, slots_count;
};

/* Appends a token; its id is the previous count. STATUS_DATA when it is empty (and not a hole), when the total size
 * is too large, and when a TOKEN_MODEL token with the same bytes exists. */
status vocab_append(struct vocab *v, const char *bytes, size_t count, enum token_kind kind) WARN_UNUSED;
/* The same for any unused id from 0 (a used one is STATUS_DATA); lower unused ids become holes until they are set. */
status vocab_place(struct vocab *v, int32_t id, const char *bytes, size_t count,
                   enum token_kind kind) WARN_UNUSED;
/* Reserves capacity for this many tokens and bytes; nothing moves while they are added. */
status vocab_reserve(struct vocab *v, size_t tokens, size_t bytes) WARN_UNUSED;
void vocab_free(struct vocab *v);

/* Id of the TOKEN_MODEL token, or -1. */
int32_t vocab_find(const struct vocab *v, const char *bytes, size_t count);

static inline struct text vocab_bytes(const struct vocab *v, int32_t id)
{
    const struct vocab_token *t = &v->tokens[id];
    return (struct text){v->blob + t->at, t->bytes};
}
#endif
