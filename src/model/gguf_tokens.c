/* The tokenizer of a GGUF file: model "gpt2" is byte-level BPE, tokens written with the letters of tokenizer.json. The
 * rule by which a text is split has a name (tokenizer.ggml.pre) that a reader must know. */
#include "data/text/alphabet.h"
#include "model/gguf_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NORMAL = 1, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5 }; /* token types of the specification */

static const char *rule_of(const struct tokenizer *t)
{
    static const struct {
        const char *ours, *theirs;
    } rules[] = {
        {"gpt2", "gpt-2"},    {"llama3", "llama-bpe"},        {"qwen2", "qwen2"},
        {"o200k", "gpt-4o"},  {"deepseek-v3", "deepseek-v3"}, {"deepseek-coder", "deepseek-coder"},
        {"tekken", "tekken"}, {"starcoder", "starcoder"},
    };
    const char *name = tokenizer_pattern(t);
    for (size_t i = 0; name && i < sizeof rules / sizeof rules[0]; i++)
        if (strcmp(rules[i].ours, name) == 0) return rules[i].theirs;
    return NULL;
}

static int type_of(const struct tokenizer *t, int32_t id)
{
    if (id >= tokenizer_vocab_size(t) || tokenizer_bytes(t, id).bytes == 0) return UNUSED;
    if (!tokenizer_added(t, id)) return NORMAL;
    return tokenizer_is_special(t, id) ? CONTROL : USER_DEFINED;
}

/* An added token is its text; others are letters. */
static void put_token(struct gguf_head *h, const struct tokenizer *t, int32_t id)
{
    char unused[32];
    const int type = type_of(t, id);
    if (type == UNUSED) {
        gguf_put_text(h, unused, (size_t)snprintf(unused, sizeof unused, "[PAD%d]", (int)id));
        return;
    }
    const struct text text = tokenizer_bytes(t, id);
    if (type != NORMAL) {
        gguf_put_text(h, text.data, text.bytes);
        return;
    }
    char *letters = malloc(2 * text.bytes + 1);
    CHECK(letters, "no memory for a token of %zu bytes", text.bytes);
    gguf_put_text(h, letters, alphabet_write(text.data, text.bytes, letters));
    free(letters);
}

/* "LEFT RIGHT": no letter is a blank. */
static void put_merge(struct gguf_head *h, const struct tokenizer *t, int32_t left, int32_t right)
{
    const struct text a = tokenizer_bytes(t, left), b = tokenizer_bytes(t, right);
    char *letters = malloc(2 * (a.bytes + b.bytes) + 3);
    CHECK(letters, "no memory for a merge");
    size_t n = alphabet_write(a.data, a.bytes, letters);
    letters[n++] = ' ';
    n += alphabet_write(b.data, b.bytes, letters + n);
    gguf_put_text(h, letters, n);
    free(letters);
}

static void put_merges(struct gguf_head *h, const struct tokenizer *t)
{
    int64_t count = 0;
    int32_t left, right;
    while (tokenizer_merge(t, count, &left, &right)) count++;
    gguf_key_list(h, "tokenizer.ggml.merges", GGUF_KIND_TEXT, count);
    for (int64_t i = 0; tokenizer_merge(t, i, &left, &right); i++) put_merge(h, t, left, right);
}

/* What GGUF's "llama" tokenizer computes: BPE by scores, bytes for what no piece has, no rules for letters. */
static status check_pieces(const struct sentencepiece *sp, int32_t rows)
{
    if (sp->model != SP_BPE)
        return FAIL(STATUS_CONFIG, "the tokenizer.model is of type %s; GGUF's llama tokenizer is BPE",
                    sp->model == SP_UNIGRAM ? "unigram"
                    : sp->model == SP_WORD  ? "word"
                                            : "char");
    if (sp->normalizes || sp->removes_blanks)
        return FAIL(STATUS_CONFIG, "the tokenizer.model %s, which GGUF's llama tokenizer does not",
                    sp->normalizes ? "normalizes letters" : "removes blanks");
    if (sp->count > rows)
        return FAIL(STATUS_CONFIG, "the tokenizer.model has %d ids, the model %d", (int)sp->count, (int)rows);
    return STATUS_OK;
}

static void put_id(struct gguf_head *h, const char *key, int32_t id, int32_t count)
{
    if (id >= 0 && id < count) gguf_key_u32(h, key, (uint32_t)id);
}

static void put_score(struct gguf_head *h, float score)
{
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    gguf_put_u32(h, bits);
}

/* Scores decide which pieces join first; ids of the model without a piece are unused. Types have the same numbers. */
static status put_pieces(struct gguf_head *h, const struct sentencepiece *sp, int32_t rows)
{
    TRY(check_pieces(sp, rows));
    gguf_key_text(h, "tokenizer.ggml.model", "llama");
    gguf_key_text(h, "tokenizer.ggml.pre", "default");
    gguf_key_list(h, "tokenizer.ggml.tokens", GGUF_KIND_TEXT, rows);
    for (int32_t id = 0; id < rows; id++) {
        char unused[32];
        if (id < sp->count)
            gguf_put_text(h, sp->pieces[id].text, sp->pieces[id].bytes);
        else
            gguf_put_text(h, unused, (size_t)snprintf(unused, sizeof unused, "[PAD%d]", (int)id));
    }
    gguf_key_list(h, "tokenizer.ggml.scores", GGUF_KIND_F32, rows);
    for (int32_t id = 0; id < rows; id++) put_score(h, id < sp->count ? sp->pieces[id].score : -1e4f);
    gguf_key_list(h, "tokenizer.ggml.token_type", GGUF_KIND_I32, rows);
    for (int32_t id = 0; id < rows; id++)
        gguf_put_u32(h, (uint32_t)(id < sp->count ? sp->pieces[id].type : SP_UNUSED));
    put_id(h, "tokenizer.ggml.bos_token_id", sp->bos, sp->count);
    put_id(h, "tokenizer.ggml.eos_token_id", sp->eos, sp->count);
    put_id(h, "tokenizer.ggml.unknown_token_id", sp->unk, sp->count);
    gguf_key_bool(h, "tokenizer.ggml.add_bos_token", sp->bos >= 0); /* as Llama 2's and Mistral's */
    gguf_key_bool(h, "tokenizer.ggml.add_eos_token", false);
    gguf_key_bool(h, "tokenizer.ggml.add_space_prefix", sp->dummy_prefix);
    return STATUS_OK;
}

status gguf_put_tokenizer(struct gguf_head *h, const struct gguf_source *s)
{
    const struct tokenizer *t = s->tokenizer;
    const int32_t rows = (int32_t)s->d->spec.vocab_size;
    if (s->pieces) return put_pieces(h, s->pieces, rows);
    if (!t) {
        gguf_key_text(h, "tokenizer.ggml.model", "no_vocab");
        return STATUS_OK;
    }
    const char *rule = rule_of(t);
    if (!rule)
        return FAIL(
            STATUS_CONFIG,
            "the tokenizer splits text by a rule (%s) that GGUF has no name for; --data.tokenizer= exports "
            "without one",
            tokenizer_pattern(t) ? tokenizer_pattern(t) : "of its own");
    if (tokenizer_vocab_size(t) > rows)
        return FAIL(STATUS_CONFIG,
                    "the tokenizer has %d ids, the model %d; --data.tokenizer= exports without one",
                    (int)tokenizer_vocab_size(t), (int)rows);
    gguf_key_text(h, "tokenizer.ggml.model", "gpt2");
    gguf_key_text(h, "tokenizer.ggml.pre", rule);
    gguf_key_list(h, "tokenizer.ggml.tokens", GGUF_KIND_TEXT, rows);
    for (int32_t id = 0; id < rows; id++) put_token(h, t, id);
    gguf_key_list(h, "tokenizer.ggml.token_type", GGUF_KIND_I32, rows);
    for (int32_t id = 0; id < rows; id++) gguf_put_u32(h, (uint32_t)type_of(t, id));
    put_merges(h, t);
    if (s->bos >= 0) gguf_key_u32(h, "tokenizer.ggml.bos_token_id", (uint32_t)s->bos);
    if (s->eos >= 0) gguf_key_u32(h, "tokenizer.ggml.eos_token_id", (uint32_t)s->eos);
    gguf_key_bool(h, "tokenizer.ggml.add_bos_token", false); /* the ids of `ingot tokenizer encode` */
    gguf_key_bool(h, "tokenizer.ggml.add_eos_token", false);
    return STATUS_OK;
}
