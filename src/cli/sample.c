#include "cli/sample.h"
#include "infer/continue.h"
#include "infer/score.h"

#include <math.h>
#include <stdlib.h>

struct work {
    const struct trainer *trainer;
    const struct tokenizer *tok;
    struct sample_job *job;
};

/* Appends a token to the text, as bytes. */
static status take(void *ctx, const struct continued *token, bool *enough)
{
    const struct work *w = ctx;
    struct sample_job *job = w->job;
    const struct sample_config *c = &job->config;
    struct score_likely it = {.nats = NAN};
    (void)enough;
    job->made++;
    if (token->end) return STATUS_OK;
    if (c->logprobs) score_likely(token->logits, w->trainer->decoder.spec.vocab_size, token->id, &it, 0);
    const struct sample_token out = {
        .id = token->id, .bytes = tokenizer_bytes(w->tok, token->id), .logprob = it.nats};
    if (c->emit) c->emit(c->ctx, &out);
    return tokenizer_decode(w->tok, &token->id, 1, &job->text, &job->bytes);
}

status sample_prepare(const struct trainer *t, const struct tokenizer *tok, const struct sample_config *c,
                      struct sample_job *job)
{
    *job = (struct sample_job){.config = *c, .tokens = c->tokens};
    TRY(continue_prompt(tok, c->prompt, &job->ids, &job->count));
    const int64_t limit = generate_limit(&t->decoder), left = limit - job->count;
    if (job->tokens == 0) job->tokens = left < 128 ? left : 128;
    if (job->tokens < 1)
        return FAIL(STATUS_CONFIG, "the prompt has %lld tokens, the model has %lld positions: shorten it",
                    (long long)job->count, (long long)limit);
    if (job->tokens > left)
        return FAIL(STATUS_CONFIG,
                    "%lld tokens with the prompt, the model has %lld positions: shorten the prompt or ask "
                    "for fewer tokens",
                    (long long)(job->count + job->tokens), (long long)limit);
    return STATUS_OK;
}

/* The caches of one text may begin with more tokens than the trainer has rows. */
static status begin(struct generator *g, const struct sample_job *jobs, int64_t count)
{
    if (count == 1) return generate_append(g, jobs->ids, jobs->count);
    const int32_t **prompts = calloc((size_t)count, sizeof *prompts);
    int64_t *counts = calloc((size_t)count, sizeof *counts);
    status st = prompts && counts
                    ? STATUS_OK
                    : FAIL(STATUS_OUT_OF_MEMORY, "no memory for %lld prompts", (long long)count);
    for (int64_t k = 0; k < count && st == STATUS_OK; k++)
        prompts[k] = jobs[k].ids, counts[k] = jobs[k].count;
    if (st == STATUS_OK) st = generate_prompts(g, prompts, counts);
    free(prompts);
    free(counts);
    return st;
}

static status go_on(const struct trainer *t, const struct tokenizer *tok, struct generator *g,
                    struct sample_job *jobs, int64_t count)
{
    struct work *work = calloc((size_t)count, sizeof *work);
    struct continuation *more = calloc((size_t)count, sizeof *more);
    status st =
        work && more ? STATUS_OK : FAIL(STATUS_OUT_OF_MEMORY, "no memory for %lld texts", (long long)count);
    for (int64_t k = 0; k < count && st == STATUS_OK; k++) {
        work[k] = (struct work){t, tok, &jobs[k]};
        more[k] = (struct continuation){.tokenizer = tok,
                                        .tokens = jobs[k].tokens,
                                        .sampling = jobs[k].config.sampling,
                                        .emit = take,
                                        .ctx = &work[k]};
    }
    if (st == STATUS_OK) st = continue_all(more, &t->decoder, g);
    free(work);
    free(more);
    return st;
}

static status end_text(struct sample_job *job)
{
    char *whole = realloc(job->text, job->bytes + 1);
    if (whole == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the sample");
    whole[job->bytes] = 0;
    job->text = whole;
    return STATUS_OK;
}

static bool fit_rows(const struct trainer *t, const struct sample_job *jobs, int64_t count)
{
    bool fits = true;
    for (int64_t k = 0; k < count; k++) fits = fits && jobs[k].count <= t->acts.layout.n;
    return fits;
}

status sample_run(struct trainer *t, const struct tokenizer *tok, struct sample_job *jobs, int64_t count)
{
    struct generator g = {0};
    if (count > 1 && !fit_rows(t, jobs, count)) {
        for (int64_t k = 0; k < count; k++) TRY(sample_run(t, tok, jobs + k, 1));
        return STATUS_OK;
    }
    /* trainer's activations are borrowed: generation happens between steps */
    struct generate_layout layout = {.sequences = count, .eager = !t->spec.run.train_graph};
    for (int64_t k = 0; k < count; k++)
        if (jobs[k].count + jobs[k].tokens > layout.capacity)
            layout.capacity = jobs[k].count + jobs[k].tokens;
    TRY(generate_open(&g, &t->decoder, &t->acts, &layout, &t->exec));
    status st = begin(&g, jobs, count);
    if (st != STATUS_OK)
        st = status_wrap(st, "prompt");
    else
        st = go_on(t, tok, &g, jobs, count);
    for (int64_t k = 0; k < count && st == STATUS_OK; k++) st = end_text(&jobs[k]);
    generate_close(&g);
    return st;
}

void sample_job_free(struct sample_job *job)
{
    free(job->ids);
    free(job->text);
    *job = (struct sample_job){0};
}

status sample_text(struct trainer *t, const struct tokenizer *tok, const struct sample_config *c, char **text)
{
    struct sample_job job = {0};
    *text = NULL;
    status st = sample_prepare(t, tok, c, &job);
    if (st == STATUS_OK) st = sample_run(t, tok, &job, 1);
    if (st == STATUS_OK) *text = job.text, job.text = NULL;
    sample_job_free(&job);
    return st;
}
