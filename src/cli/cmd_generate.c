/* ingot generate: continues a text, the lines of a file, or what is typed. */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/utf8.h"
#include "cli/cli.h"
#include "cli/print_json.h"
#include "cli/prompts.h"
#include "cli/sample.h"
#include "train/restore.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct generation {
    const char *run, *prompt, *file; /* file NULL: the prompt alone */
    int64_t samples, batch;          /* batch: texts that are generated side by side */
    bool json;
    uint64_t seed;
    struct sample_config config;
};

static void print_piece(void *ctx, const struct sample_token *token)
{
    (void)ctx;
    fwrite(token->bytes.data, 1, token->bytes.bytes, stdout);
    fflush(stdout);
}

/* A token may end within a character: bytes that are no text are replaced. */
static json_t *clean_json(const char *bytes, size_t count)
{
    char *clean = utf8_clean(bytes, count);
    json_t *j = json_string(clean);
    free(clean);
    return j;
}

static void collect_token(void *ctx, const struct sample_token *token)
{
    json_array_append_new(ctx, json_pack("{s:i, s:o, s:f}", "id", (int)token->id, "text",
                                         clean_json(token->bytes.data, token->bytes.bytes), "logprob",
                                         token->logprob));
}

/* One text; with `rows` it goes there, else to stdout while it comes to be. */
static status generate_one(struct trainer *t, const struct tokenizer *tok, struct sample_config *c,
                           json_t *rows)
{
    char *text = NULL;
    json_t *tokens = c->ctx = rows ? json_array() : NULL;
    status st = sample_text(t, tok, c, &text);
    if (st == STATUS_OK && rows)
        json_array_append_new(rows, json_pack("{s:I, s:o, s:O}", "seed", (json_int_t)c->sampling.seed, "text",
                                              clean_json(text, strlen(text)), "tokens", tokens));
    json_decref(tokens);
    free(text);
    return st;
}

/* The samples of one prompt. */
static status generate_prompt(struct trainer *t, const struct tokenizer *tok, struct generation *g,
                              json_t *rows)
{
    status st = STATUS_OK;
    for (int64_t i = 0; i < g->samples && st == STATUS_OK; i++) {
        g->config.sampling.seed = g->seed + (uint64_t)i;
        if (!rows) printf("%s", g->config.prompt);
        st = generate_one(t, tok, &g->config, rows);
        if (!rows) printf("\n%s", i + 1 < g->samples ? "\n" : "");
    }
    return st;
}

/* {"run", "step", "prompt", "samples"}: of one prompt a whole text, of several a line each. */
static void print_answer(const struct trainer *t, const struct generation *g, const char *prompt,
                         json_t *rows)
{
    json_t *o = json_pack("{s:s, s:I, s:s, s:O}", "run", g->run, "step", (json_int_t)t->step, "prompt",
                          prompt, "samples", rows);
    if (!g->file) {
        print_json(o);
    } else {
        json_dumpf(o, stdout, JSON_COMPACT | JSON_PRESERVE_ORDER);
        puts("");
        json_decref(o);
    }
}

static status answer(struct trainer *t, const struct tokenizer *tok, struct generation *g)
{
    json_t *rows = g->json ? json_array() : NULL;
    status st = generate_prompt(t, tok, g, rows);
    if (st == STATUS_OK && g->json) print_answer(t, g, g->config.prompt, rows);
    json_decref(rows);
    fflush(stdout);
    return st;
}

/* ---- several texts side by side */

/* Texts of whole prompts, `samples` each. */
struct pending {
    struct sample_job *jobs;
    int64_t count, room;
    int64_t made; /* tokens so far, of all */
    double seconds;
    bool again; /* something was printed */
};

static void drop(struct sample_job *job)
{
    free((char *)(uintptr_t)job->config.prompt);
    json_decref(job->config.ctx);
    sample_job_free(job);
}

static status add_prompt(struct pending *p, const struct trainer *t, const struct tokenizer *tok,
                         const struct generation *g, const char *prompt)
{
    for (int64_t i = 0; i < g->samples; i++) {
        struct sample_job *job = &p->jobs[p->count];
        struct sample_config c = g->config;
        c.prompt = memory_text(prompt);
        c.sampling.seed = g->seed + (uint64_t)i;
        c.emit = g->json ? collect_token : NULL;
        c.ctx = g->json ? json_array() : NULL;
        status st = sample_prepare(t, tok, &c, job);
        p->count++;
        if (st != STATUS_OK) {
            while (i-- >= 0) drop(&p->jobs[--p->count]);
            return st;
        }
    }
    return STATUS_OK;
}

static void print_prompt(struct pending *p, const struct trainer *t, const struct generation *g,
                         struct sample_job *jobs)
{
    json_t *rows = json_array();
    if (p->again && !g->json) puts("");
    p->again = true;
    for (int64_t i = 0; i < g->samples; i++) {
        const struct sample_job *job = &jobs[i];
        p->made += job->made;
        if (g->json) {
            json_array_append_new(
                rows, json_pack("{s:I, s:o, s:O}", "seed", (json_int_t)job->config.sampling.seed, "text",
                                clean_json(job->text, strlen(job->text)), "tokens", job->config.ctx));
            continue;
        }
        printf("%s", job->config.prompt);
        fwrite(job->text, 1, job->bytes, stdout);
        printf("\n%s", i + 1 < g->samples ? "\n" : "");
    }
    if (g->json) print_answer(t, g, jobs->config.prompt, rows);
    json_decref(rows);
    fflush(stdout);
}

static status flush(struct pending *p, struct trainer *t, const struct tokenizer *tok,
                    const struct generation *g)
{
    status st = STATUS_OK;
    const double begin = clock_s();
    for (int64_t k = 0; k < p->count && st == STATUS_OK; k += g->batch)
        st = sample_run(t, tok, p->jobs + k, p->count - k < g->batch ? p->count - k : g->batch);
    p->seconds += clock_s() - begin;
    for (int64_t k = 0; k < p->count && st == STATUS_OK; k += g->samples) print_prompt(p, t, g, p->jobs + k);
    while (p->count > 0) drop(&p->jobs[--p->count]);
    return st;
}

/* Reads prompts until so many are there or none is left; the error of one is told when those before it are done. */
static status answer_pending(struct pending *p, struct prompts *in, struct trainer *t,
                             const struct tokenizer *tok, struct generation *g)
{
    bool more = true;
    status st = STATUS_OK;
    while (st == STATUS_OK && more) {
        char why[1200] = "", where[1100] = "";
        const char *prompt;
        while (st == STATUS_OK && more && p->count + g->samples <= p->room) {
            st = prompts_next(in, &prompt, &more);
            if (st != STATUS_OK || !more) break;
            st = add_prompt(p, t, tok, g, prompt);
            if (st != STATUS_OK)
                snprintf(where, sizeof where, "%.1000s:%lld: ", in->path, (long long)in->number);
        }
        if (st != STATUS_OK) snprintf(why, sizeof why, "%s", status_message());
        const status done = flush(p, t, tok, g);
        if (done != STATUS_OK) return done;
        if (st != STATUS_OK) return FAIL(st, "%s%s", where, why);
    }
    return STATUS_OK;
}

static status answer_side_by_side(struct trainer *t, const struct tokenizer *tok, struct generation *g)
{
    struct prompts in = {0};
    const int64_t prompts = g->samples < g->batch ? g->batch / g->samples : 1;
    struct pending p = {.room = prompts * g->samples};
    char rate[32];
    TRY(prompts_open(&in, g->file));
    p.jobs = calloc((size_t)p.room, sizeof *p.jobs);
    status st =
        p.jobs ? answer_pending(&p, &in, t, tok, g) : FAIL(STATUS_OUT_OF_MEMORY, "no memory for the prompts");
    if (p.made > 0)
        log_info("rate      %s tokens/s: %lld tokens, up to %lld texts at once",
                 text_count(rate, (double)p.made / p.seconds), (long long)p.made, (long long)g->batch);
    free(p.jobs);
    prompts_close(&in);
    return st;
}

/* ---- */

/* Every line as it comes; what is typed at a terminal may fail and be followed by another. */
static status answer_all(struct trainer *t, const struct tokenizer *tok, struct generation *g)
{
    struct prompts p = {0};
    bool more = true;
    TRY(prompts_open(&p, g->file));
    status st = STATUS_OK;
    for (bool first = true; st == STATUS_OK; first = false) {
        st = prompts_next(&p, &g->config.prompt, &more);
        if (st != STATUS_OK || !more) break;
        if (!first && !g->json && !p.asks) puts("");
        st = answer(t, tok, g);
        if (st == STATUS_CONFIG && p.asks) {
            log_warn("%s", status_message());
            st = STATUS_OK;
        } else if (st != STATUS_OK) {
            char where[1100];
            snprintf(where, sizeof where, "%.1000s:%lld", p.path, (long long)p.number);
            st = status_wrap(st, "%s", where);
        }
    }
    prompts_close(&p);
    return st;
}

static status generate(struct trainer *t, struct generation *g)
{
    struct tokenizer_place place;
    struct tokenizer *tok;
    TRY(restore_tokenizer_place(&t->spec, &place));
    TRY(restore_tokenizer(t, &place, &tok));
    const bool typed = g->file && strcmp(g->file, "-") == 0;
    status st = !g->file                 ? answer(t, tok, g)
                : typed && g->batch == 1 ? answer_all(t, tok, g)
                                         : answer_side_by_side(t, tok, g);
    tokenizer_free(tok);
    return st;
}

/* On a CPU up to eight rows of a GEMM have the bits of one: a text is what it is alone. On a GPU its logits differ from
 * those in roundoff, because GEMMs and attention sum in an order that depends on the batch. */
enum { SAME_BITS = 8, BATCH_MOST = 256, NOT_GIVEN = -1 };

/* How many texts side by side, and the rows that the model is opened with. */
static status take_batch(struct generation *g, struct restore_options *o)
{
    struct spec spec;
    const bool given = g->batch != NOT_GIVEN;
    if (given && !g->file) return FAIL(STATUS_CONFIG, "--batch needs --prompts FILE");
    if (given && (g->batch < 1 || g->batch > BATCH_MOST))
        return FAIL(STATUS_CONFIG, "--batch is 1 to %d", BATCH_MOST);
    o->sequences = 1;
    if (!given && (!g->file || strcmp(g->file, "-") == 0)) g->batch = 1; /* who types waits for an answer */
    if (g->batch == 1) return STATUS_OK;
    TRY(restore_spec(&spec, g->run, o));
    const bool drops = spec.model.moe_capacity > 0;
    if (given && drops)
        return FAIL(STATUS_CONFIG, "--batch: with model.moe_capacity tokens of several texts compete for "
                                   "experts; leave it away");
    if (!given) g->batch = drops ? 1 : SAME_BITS;
    if (g->batch == 1) return STATUS_OK;
    o->sequences = 0;
    o->rows = spec.run.train_sequence_length > g->batch ? spec.run.train_sequence_length : g->batch;
    return STATUS_OK;
}

status cmd_generate(struct args *a)
{
    struct generation g = {.prompt = NULL, .samples = 1, .batch = NOT_GIVEN};
    int64_t tokens = 0, top_k = 0, seed = 1;
    double temperature = 0.8, top_p = 0.95;
    bool accept = false;
    const struct flag flags[] = {FLAG("prompt", &g.prompt), FLAG("prompts", &g.file),
                                 FLAG("tokens", &tokens),   FLAG("temperature", &temperature),
                                 FLAG("top-k", &top_k),     FLAG("top-p", &top_p),
                                 FLAG("seed", &seed),       FLAG("samples", &g.samples),
                                 FLAG("batch", &g.batch),   FLAG("accept-data-change", &accept),
                                 FLAG("json", &g.json)};
    TRY(args_parse(a, flags, sizeof flags / sizeof flags[0]));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 1, 1));
    g.run = a->words[0];
    g.seed = (uint64_t)seed;
    if (tokens < 0 || tokens > INT32_MAX || g.samples < 1)
        return FAIL(STATUS_CONFIG, "--tokens is 0 to 2^31, --samples is at least 1");
    if (temperature < 0 || top_k < 0 || top_p <= 0 || top_p > 1)
        return FAIL(STATUS_CONFIG, "--temperature and --top-k are not negative, --top-p is in (0, 1]");
    if (g.file && g.prompt) return FAIL(STATUS_CONFIG, "--prompts FILE excludes --prompt TEXT");
    struct trainer t;
    struct restore_options how = {
        .override_count = a->key_count, .overrides = a->keys, .accept_data = accept};
    TRY(take_batch(&g, &how));
    TRY(restore_open(&t, g.run, &how));
    g.config = (struct sample_config){
        .prompt = g.prompt ? g.prompt : "",
        .tokens = tokens,
        .emit = g.json ? collect_token : print_piece,
        .logprobs = g.json,
        .sampling = {.temperature = temperature, .top_k = top_k, .top_p = top_p, .seed = g.seed}};
    status st = generate(&t, &g);
    trainer_close(&t);
    return st;
}
