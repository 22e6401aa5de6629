#include "cli/sample.h"
#include "infer/continue.h"
#include "infer/score.h"

#include <math.h>
#include <stdlib.h>

struct work {
    const struct trainer *trainer;
    const struct tokenizer *tok;
    const struct sample_config *config;
    char **text;
    size_t bytes;
};

/* Appends a token to the text, as bytes. */
static status take(void *ctx, const struct continued *token, bool *enough)
{
    struct work *w = ctx;
    struct score_likely it = {.nats = NAN};
    (void)enough;
    if (token->end) return STATUS_OK;
    if (w->config->logprobs)
        score_likely(token->logits, w->trainer->decoder.spec.vocab_size, token->id, &it, 0);
    const struct sample_token out = {
        .id = token->id, .bytes = tokenizer_bytes(w->tok, token->id), .logprob = it.nats};
    if (w->config->emit) w->config->emit(w->config->ctx, &out);
    return tokenizer_decode(w->tok, &token->id, 1, w->text, &w->bytes);
}

status sample_text(struct trainer *t, const struct tokenizer *tok, const struct sample_config *c, char **text)
{
    struct generator g = {0};
    int32_t *ids = NULL;
    int64_t count = 0;
    struct work w = {.trainer = t, .tok = tok, .config = c, .text = text};
    status st = continue_prompt(tok, c->prompt, &ids, &count);
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
    const struct continuation more = {
        .tokenizer = tok, .tokens = tokens, .sampling = c->sampling, .emit = take, .ctx = &w};
    TRY_OUT(continue_tokens(&more, g.logits.data, &t->decoder, &g));
    char *whole = realloc(*text, w.bytes + 1);
    if (whole == NULL) {
        st = FAIL(STATUS_FIT, "no memory for the sample");
        goto out;
    }
    whole[w.bytes] = 0;
    *text = whole;
out:
    if (st != STATUS_OK) {
        free(*text);
        *text = NULL;
    }
    generate_close(&g);
    free(ids);
    return st;
}
