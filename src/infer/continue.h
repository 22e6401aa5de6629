/* Texts that go on: a prompt's tokens, and token after token behind them. */
#ifndef INGOT_INFER_CONTINUE_H
#define INGOT_INFER_CONTINUE_H
#include "data/tokenizer/tokenizer.h"
#include "infer/generate.h"

/* A text's tokens, malloc'd; special tokens are parsed. "": the end-of-text token, or id 0. STATUS_DATA: no UTF-8. */
status continue_prompt(const struct tokenizer *tok, const char *text, int32_t **ids, int64_t *count) WARN_UNUSED;

struct continued {
    int32_t id;
    const float *logits; /* [vocab of the model] that it was drawn from */
    bool end;            /* the end-of-text token: no text, and the last one */
};
struct continuation {
    const struct tokenizer *tokenizer;
    int64_t tokens; /* at most; at least 1 */
    struct sampling sampling;
    /* Called with each token. *enough: no more are wanted. A failure ends the work. */
    status (*emit)(void *ctx, const struct continued *token, bool *enough);
    void *ctx;
};
/* Draws tokens from `logits` (of the prompt's last token) and then from those of the generator, one sequence, which
 * holds the prompt; NULL for one token alone. */
status continue_tokens(const struct continuation *c, const float *logits, const struct decoder *d,
                       struct generator *g) WARN_UNUSED;
/* The same for all sequences of the generator, which holds their prompts: row k of `rows` is sequence k's. Each has the
 * tokens that it would have alone, if the logits have the bits that they have alone: on a CPU up to 8 sequences. */
status continue_all(const struct continuation *rows, const struct decoder *d, struct generator *g) WARN_UNUSED;
#endif
