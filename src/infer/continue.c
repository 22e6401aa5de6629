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
            st = FAIL(STATUS_OUT_OF_MEMORY, "no memory for the prompt");
    }
    encoder_close(e);
    return st;
}

/* ids that no token has are never drawn */
static int64_t drawable(const struct continuation *c, const struct decoder *d)
{
    const int64_t size = tokenizer_vocab_size(c->tokenizer);
    return d->spec.vocab_size < size ? d->spec.vocab_size : size;
}

/* Token number `i` of a text; *over: it was the last one. */
static status draw(const struct continuation *c, const float *logits, const struct decoder *d, int64_t i,
                   int32_t *id, bool *over)
{
    bool enough = false;
    *id = generate_sample(logits, drawable(c, d), &c->sampling, (uint64_t)i);
    const struct continued token = {*id, logits, *id == tokenizer_eot(c->tokenizer)};
    TRY(c->emit(c->ctx, &token, &enough));
    *over = token.end || enough || i + 1 == c->tokens;
    return STATUS_OK;
}

status continue_tokens(const struct continuation *c, const float *logits, const struct decoder *d,
                       struct generator *g)
{
    for (int64_t i = 0;; i++, logits = g->logits.data) {
        int32_t id;
        bool over;
        TRY(draw(c, logits, d, i, &id, &over));
        if (over) return STATUS_OK;
        TRY(generate_append(g, &id, 1));
    }
}

/* One token of every sequence that is not over yet; *left: of how many. */
static status draw_all(const struct continuation *rows, const struct decoder *d, struct generator *g,
                       int64_t i, int32_t *next, int64_t *left)
{
    *left = 0;
    for (int64_t k = 0; k < g->layout.sequences; k++) {
        bool over;
        next[k] = 0;
        if (g->lengths[k] == GENERATE_IDLE) continue;
        const float *logits = (const float *)g->logits.data + k * g->logits.shape[1];
        TRY(draw(&rows[k], logits, d, i, &next[k], &over));
        if (over) generate_idle(g, k);
        *left += !over;
    }
    return STATUS_OK;
}

status continue_all(const struct continuation *rows, const struct decoder *d, struct generator *g)
{
    int32_t *next = calloc((size_t)g->layout.sequences, sizeof *next);
    if (next == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %lld tokens", (long long)g->layout.sequences);
    status st = STATUS_OK;
    int64_t left = 1;
    for (int64_t i = 0; st == STATUS_OK && left > 0; i++) {
        st = draw_all(rows, d, g, i, next, &left);
        if (st == STATUS_OK && left > 0) st = generate_append(g, next, 1);
    }
    free(next);
    return st;
}
