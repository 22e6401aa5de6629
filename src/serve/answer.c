/* One request, answered by the model. */
#include "base/clock.h"
#include "base/memory.h"
#include "infer/continue.h"
#include "serve/answer.h"

#include <stdlib.h>
#include <string.h>

/* A request in work. */
struct answer {
    struct completion_model *m;
    struct job *job;
    struct completion *c;
    struct completion_error *e;
    struct score_request
        *scored;     /* [prompt_count]: of echo with log-probabilities; owned with what it points to */
    json_t *choices; /* NULL: a stream */
    int64_t generated;
};

char *answer_event(const char *data)
{
    char *text;
    size_t bytes;
    FILE *f = memory_stream(&text, &bytes);
    fprintf(f, "data: %s\n\n", data);
    memory_stream_close(f);
    return text;
}

static char *dump(json_t *o)
{
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    MEMORY_CHECK(text, "no memory for an answer");
    json_decref(o);
    return text;
}

/* A failure of the model or of the request's tokens. */
static bool failed(struct answer *a, status st)
{
    if (st == STATUS_STOPPED) /* by the client, or the server stops */
        return completion_fail(a->e, 503, "stopping", "", "the server is stopping");
    const bool theirs = st == STATUS_CONFIG || st == STATUS_DATA;
    return completion_fail(a->e, theirs ? 400 : 500, NULL, theirs ? "prompt" : "", "%s", status_message());
}

/* ---- prompts */

static bool prepare(struct answer *a)
{
    const struct decoder *d = &a->m->trainer.decoder;
    const int64_t limit = generate_limit(d) < a->m->trainer.spec.model.context_length
                              ? generate_limit(d)
                              : a->m->trainer.spec.model.context_length;
    for (int64_t i = 0; i < a->c->prompt_count; i++) {
        struct completion_prompt *p = &a->c->prompts[i];
        if (p->text) {
            const status st = continue_prompt(a->m->tokenizer, p->text, &p->ids, &p->count);
            if (st != STATUS_OK) return failed(a, st);
        }
        for (int64_t k = 0; k < p->count; k++)
            if (p->ids[k] >= d->spec.vocab_size)
                return completion_fail(a->e, 400, NULL, "prompt",
                                       "token id %d is outside the model's vocabulary of %lld", p->ids[k],
                                       (long long)d->spec.vocab_size);
        /* the last token that is drawn is not read */
        if (p->count + a->c->tokens > limit + 1 || p->count > limit)
            return completion_fail(
                a->e, 400, "context_length_exceeded", "prompt",
                "this model's context is %lld tokens: %lld of the prompt and max_tokens %lld are more",
                (long long)limit, (long long)p->count, (long long)a->c->tokens);
    }
    return true;
}

/* With echo and one token more, the forward that scores a prompt is all there is to do. */
static bool one_forward(const struct answer *a)
{
    return a->scored && a->c->tokens == 1;
}

static status tick(void *ctx, int64_t done, int64_t count)
{
    (void)done, (void)count;
    return job_wanted(ctx) ? STATUS_OK : FAIL(STATUS_STOPPED, "nobody waits for it");
}

static status score_prompts(struct answer *a)
{
    struct completion *c = a->c;
    struct trainer *t = &a->m->trainer;
    const struct scorer s = {&t->decoder, &t->acts, &t->feed, &t->exec, a->m->rows};
    const struct score_tick each = {tick, a->job};
    const size_t width = (size_t)c->likely + 1, vocab = (size_t)t->decoder.spec.vocab_size;
    int64_t some = 0;
    a->scored = calloc((size_t)c->prompt_count, sizeof *a->scored);
    if (a->scored == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %lld prompts", (long long)c->prompt_count);
    for (int64_t i = 0; i < c->prompt_count; i++) {
        const struct completion_prompt *p = &c->prompts[i];
        struct score_request *q = &a->scored[i];
        *q = (struct score_request){
            .tokens = p->ids, .count = p->count, .first = 1, .likely_count = c->likely};
        q->likely = malloc((size_t)p->count * width * sizeof *q->likely);
        if (c->tokens == 1) q->next = malloc(vocab * sizeof *q->next);
        if (q->likely == NULL || (c->tokens == 1 && q->next == NULL))
            return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the log-probabilities of %lld tokens",
                        (long long)p->count);
        some += q->next != NULL || p->count > 1;
    }
    if (some == c->prompt_count) return score(&s, a->scored, c->prompt_count, &each);
    for (int64_t i = 0; i < c->prompt_count; i++) /* prompts of one token have nothing to score */
        if (c->prompts[i].count > 1) TRY(score(&s, &a->scored[i], 1, &each));
    return STATUS_OK;
}

static void answer_free(struct answer *a)
{
    for (int64_t i = 0; a->scored && i < a->c->prompt_count; i++) {
        free(a->scored[i].likely);
        free(a->scored[i].next);
    }
    free(a->scored);
    json_decref(a->choices);
}

/* ---- choices */

struct choice_work {
    struct answer *a;
    struct choice choice;
    size_t from; /* where generated text begins */
};

/* To the client: an event, or the list of choices at the end. */
static bool show(struct answer *a, struct choice *choice)
{
    if (a->choices)
        return choice->finish == NULL || json_array_append_new(a->choices, choice_take(choice)) == 0;
    if (choice->safe == choice->shown && choice->finish == NULL) return job_wanted(a->job);
    json_t *list = json_array();
    json_array_append_new(list, choice_take(choice));
    char *text = dump(completion_object(&a->m->head, list));
    char *event = answer_event(text);
    free(text);
    return job_put(a->job, event, 200, false);
}

static status take(void *ctx, const struct continued *token, bool *enough)
{
    struct choice_work *w = ctx;
    struct answer *a = w->a;
    struct score_likely likely[COMPLETION_LIKELY + 1];
    const int64_t count = a->c->likely;
    if (count >= 0)
        score_likely(token->logits, a->m->trainer.decoder.spec.vocab_size, token->id, likely, count);
    choice_add(&w->choice, a->m->tokenizer, token->id, token->end, likely, count);
    w->choice.tokens++;
    if (token->end) w->choice.finish = "stop";
    choice_look(&w->choice, a->c, w->from);
    *enough = w->choice.finish != NULL;
    if (!*enough && !show(a, &w->choice)) return FAIL(STATUS_STOPPED, "nobody waits for it");
    return job_wanted(a->job) ? STATUS_OK : FAIL(STATUS_STOPPED, "nobody waits for it");
}

static void echo(struct choice_work *w, const struct completion_prompt *p, const struct score_request *q)
{
    const int64_t count = w->a->c->likely;
    for (int64_t i = 0; i < p->count; i++)
        choice_add(&w->choice, w->a->m->tokenizer, p->ids[i], false,
                   q && i > 0 ? q->likely + (i - 1) * (1 + count) : NULL, count);
    w->from = w->choice.bytes;
    w->choice.safe = w->choice.bytes;
}

static status generate(struct choice_work *w, const struct completion_prompt *p, int64_t number)
{
    struct answer *a = w->a;
    struct trainer *t = &a->m->trainer;
    const struct continuation c = {.tokenizer = a->m->tokenizer,
                                   .tokens = a->c->tokens,
                                   .sampling = {.temperature = a->c->temperature,
                                                .top_k = a->c->top_k,
                                                .top_p = a->c->top_p,
                                                .seed = a->c->seed + (uint64_t)number},
                                   .emit = take,
                                   .ctx = w};
    if (one_forward(a)) {
        const int64_t prompt = p - a->c->prompts;
        TRY(continue_tokens(&c, a->scored[prompt].next, &t->decoder, NULL));
    } else if (a->c->tokens) {
        struct generator g = {0};
        const struct generate_layout layout = {
            .sequences = 1, .capacity = p->count + c.tokens - 1, .eager = !t->spec.run.train_graph};
        TRY(generate_open(&g, &t->decoder, &t->acts, &layout, &t->exec));
        status st = generate_append(&g, p->ids, p->count);
        if (st == STATUS_OK) st = continue_tokens(&c, g.logits.data, &t->decoder, &g);
        generate_close(&g);
        TRY(st);
    }
    if (w->choice.finish == NULL) w->choice.finish = "length";
    return STATUS_OK;
}

/* Choice `number` of a prompt. */
static status choose(struct answer *a, int64_t prompt, int64_t number)
{
    const struct completion_prompt *p = &a->c->prompts[prompt];
    struct choice_work w = {.a = a};
    choice_begin(&w.choice, prompt * a->c->n + number, a->c->likely >= 0);
    if (a->c->echo) echo(&w, p, a->scored ? &a->scored[prompt] : NULL);
    status st = show(a, &w.choice) ? STATUS_OK : FAIL(STATUS_STOPPED, "nobody waits for it");
    if (st == STATUS_OK) st = generate(&w, p, number);
    if (st == STATUS_OK) {
        choice_look(&w.choice, a->c, w.choice.bytes); /* it has ended: all of it is safe */
        a->generated += w.choice.tokens;
        if (!show(a, &w.choice)) st = FAIL(STATUS_STOPPED, "nobody waits for it");
    }
    choice_free(&w.choice);
    return st;
}

static void finish(struct answer *a)
{
    int64_t prompt = 0;
    for (int64_t i = 0; i < a->c->prompt_count; i++) prompt += a->c->prompts[i].count;
    if (a->choices) {
        json_t *o = completion_object(&a->m->head, a->choices);
        a->choices = NULL;
        json_object_set_new(o, "usage", completion_usage(prompt, a->generated));
        job_put(a->job, dump(o), 200, true);
        return;
    }
    if (a->c->usage) {
        json_t *o = completion_object(&a->m->head, json_array());
        json_object_set_new(o, "usage", completion_usage(prompt, a->generated));
        char *text = dump(o);
        job_put(a->job, answer_event(text), 200, false);
        free(text);
    }
    job_put(a->job, answer_event("[DONE]"), 200, true);
}

bool answer_run(struct completion_model *m, struct job *j, struct completion *c, struct completion_error *e)
{
    struct answer a = {.m = m, .job = j, .c = c, .e = e};
    m->head.created = (int64_t)clock_wall_s();
    snprintf(m->head.id, sizeof m->head.id, "cmpl-%llx-%llu", (unsigned long long)m->head.created,
             (unsigned long long)++m->answers);
    if (!prepare(&a)) return false;
    if (!c->stream) a.choices = json_array();
    status st = c->echo && c->likely >= 0 ? score_prompts(&a) : STATUS_OK;
    for (int64_t i = 0; i < c->prompt_count && st == STATUS_OK; i++)
        for (int64_t k = 0; k < c->n && st == STATUS_OK; k++) st = choose(&a, i, k);
    if (st == STATUS_OK) finish(&a);
    answer_free(&a);
    return st == STATUS_OK || failed(&a, st);
}
