#include "infer/continue.h"

#include <stdlib.h>
#include <string.h>

status continue_prompt(const struct tokenizer *tok, const char *text, int32_t **ids, int64_t *count)
{
    const int32_t eot = tokenizer_eot(tok), begin = eot >= 0 ? eot : 0, *found = &begin;
    struct encoder *e;
    TRY(encoder_open(&e, tok));
    status st = STATUS_OK;
    *count = 1;
    if (text[0]) st = encoder_encode(e, text, strlen(text), SPECIALS_PARSE, &found, count);
    if (st != STATUS_OK) {
        st = status_wrap(st, "prompt");
    } else {
        *ids = malloc((size_t)(*count + 1) * sizeof **ids);
        if (*ids)
            memcpy(*ids, found, (size_t)*count * sizeof **ids);
        else
            st = FAIL(STATUS_FIT, "no memory for the prompt");
    }
    encoder_close(e);
    return st;
}

status continue_tokens(const struct continuation *c, const float *logits, const struct decoder *d,
                       struct generator *g)
{
    const int32_t eot = tokenizer_eot(c->tokenizer), size = tokenizer_vocab_size(c->tokenizer);
    /* ids that no token has are never drawn */
    const int64_t vocab = d->spec.vocab_size < size ? d->spec.vocab_size : size;
    bool enough = false;
    for (int64_t i = 0;; logits = g->logits.data) {
        const int32_t id = generate_sample(logits, vocab, &c->sampling, (uint64_t)i);
        const struct continued token = {id, logits, id == eot};
        TRY(c->emit(c->ctx, &token, &enough));
        if (token.end || enough || ++i == c->tokens) return STATUS_OK;
        TRY(generate_append(g, &id, 1));
    }
}
