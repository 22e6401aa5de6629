#include "cli/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static status encode_prompt(const struct tokenizer *tok, const char *prompt, int32_t **ids, int64_t *count)
{
    int32_t eot = tokenizer_eot(tok);
    struct encoder *e;
    const int32_t *found;
    if (prompt[0] == 0) {
        *ids = malloc(sizeof **ids);
        if (*ids == NULL) return FAIL(STATUS_FIT, "no memory for the prompt");
        **ids = eot >= 0 ? eot : 0;
        *count = 1;
        return STATUS_OK;
    }
    TRY(encoder_open(&e, tok));
    status st = encoder_encode(e, prompt, strlen(prompt), SPECIALS_PARSE, &found, count);
    if (st == STATUS_OK) {
        *ids = malloc((size_t)*count * sizeof **ids);
        if (*ids == NULL)
            st = FAIL(STATUS_FIT, "no memory for the prompt");
        else
            memcpy(*ids, found, (size_t)*count * sizeof **ids);
    } else {
        st = status_wrap(st, "prompt");
    }
    encoder_close(e);
    return st;
}

static double logprob_of(const float *logits, int64_t vocab, int32_t id)
{
    float most = logits[0];
    double sum = 0;
    for (int64_t k = 1; k < vocab; k++) most = logits[k] > most ? logits[k] : most;
    for (int64_t k = 0; k < vocab; k++) sum += exp((double)logits[k] - (double)most);
    return (double)logits[id] - (double)most - log(sum);
}

/* Tokens one by one, appended to text as bytes. */
static status continue_text(struct generator *g, const struct tokenizer *tok, const struct sample_config *c,
                            int64_t tokens, char **text, size_t *bytes)
{
    int32_t eot = tokenizer_eot(tok), size = tokenizer_vocab_size(tok);
    int64_t vocab = g->decoder->spec.vocab_size < size ? g->decoder->spec.vocab_size
                                                       : size; /* ids that no token has are never drawn */
    for (int64_t i = 0; i < tokens; i++) {
        int32_t id = generate_sample(g->logits.data, vocab, &c->sampling, (uint64_t)i);
        if (id == eot) break;
        const struct sample_token token = {
            .id = id,
            .bytes = tokenizer_bytes(tok, id),
            .logprob = c->logprobs ? logprob_of(g->logits.data, g->decoder->spec.vocab_size, id) : NAN};
        if (c->emit) c->emit(c->ctx, &token);
        TRY(tokenizer_decode(tok, &id, 1, text, bytes));
        if (i + 1 < tokens) TRY(generate_append(g, &id, 1));
    }
    return STATUS_OK;
}

status sample_text(struct trainer *t, const struct tokenizer *tok, const struct sample_config *c, char **text)
{
    struct generator g = {0};
    int32_t *ids = NULL;
    int64_t count = 0;
    size_t bytes = 0;
    status st = encode_prompt(tok, c->prompt, &ids, &count);
    *text = NULL;
    if (st != STATUS_OK) return st;
    int64_t limit = generate_limit(&t->decoder), tokens = c->tokens;
    if (tokens == 0) tokens = limit - count < 128 ? limit - count : 128;
    if (tokens < 1) {
        st = FAIL(STATUS_CONFIG, "the prompt has %lld tokens, the model has %lld positions: shorten it",
                  (long long)count, (long long)limit);
        goto out;
    }
    /* trainer's activations are borrowed: generation happens between steps */
    const struct generate_lay lay = {
        .sequences = 1, .capacity = count + tokens, .eager = !t->spec.run.train_graph};
    TRY_OUT(generate_open(&g, &t->decoder, &t->acts, &lay, &t->exec));
    st = generate_append(&g, ids, count);
    if (st != STATUS_OK) {
        st = status_wrap(st, "prompt");
        goto out;
    }
    TRY_OUT(continue_text(&g, tok, c, tokens, text, &bytes));
    char *ended = realloc(*text, bytes + 1);
    if (ended == NULL) {
        st = FAIL(STATUS_FIT, "no memory for the sample");
        goto out;
    }
    ended[bytes] = 0;
    *text = ended;
out:
    if (st != STATUS_OK) {
        free(*text);
        *text = NULL;
    }
    generate_close(&g);
    free(ids);
    return st;
}
