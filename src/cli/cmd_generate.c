/* ingot generate: continues a text, the lines of a file, or what is typed. */
#include "base/log.h"
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
    int64_t samples;
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
static status answer(struct trainer *t, const struct tokenizer *tok, struct generation *g)
{
    json_t *rows = g->json ? json_array() : NULL;
    status st = generate_prompt(t, tok, g, rows);
    if (st == STATUS_OK && g->json) {
        json_t *o = json_pack("{s:s, s:I, s:s, s:O}", "run", g->run, "step", (json_int_t)t->step, "prompt",
                              g->config.prompt, "samples", rows);
        if (!g->file) {
            print_json(o);
        } else {
            json_dumpf(o, stdout, JSON_COMPACT | JSON_PRESERVE_ORDER);
            puts("");
            json_decref(o);
        }
    }
    json_decref(rows);
    fflush(stdout);
    return st;
}

/* Every prompt of a file; what is typed at a terminal may fail and be followed by another. */
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
    status st = g->file ? answer_all(t, tok, g) : answer(t, tok, g);
    tokenizer_free(tok);
    return st;
}

status cmd_generate(struct args *a)
{
    struct generation g = {.prompt = NULL, .samples = 1};
    int64_t tokens = 0, top_k = 0, seed = 1;
    double temperature = 0.8, top_p = 0.95;
    bool accept = false;
    const struct flag flags[] = {FLAG("prompt", &g.prompt),
                                 FLAG("prompts", &g.file),
                                 FLAG("tokens", &tokens),
                                 FLAG("temperature", &temperature),
                                 FLAG("top-k", &top_k),
                                 FLAG("top-p", &top_p),
                                 FLAG("seed", &seed),
                                 FLAG("samples", &g.samples),
                                 FLAG("accept-data-change", &accept),
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
    TRY(restore_open(
        &t, g.run,
        &(struct restore_options){
            .sequences = 1, .override_count = a->key_count, .overrides = a->keys, .accept_data = accept}));
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
