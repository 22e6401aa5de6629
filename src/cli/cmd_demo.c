/* ingot demo: trains a language model on a book in about two minutes, on any machine.
 *
 *   corpus      demo_corpus.h: the King James Bible, or --text FILE; tokenizer, shards
 *   settings    demo_settings.h: a model for this device, and as many steps as fit in --minutes. A few steps, an evaluation, a
 *               sample and a save are timed for that. Nothing else depends on time: an interrupted run resumes bit for bit
 *   model       trained, evaluated on the held-out text in bits per byte, compared with gzip -9 and xz -9; samples; report.html
 *
 * All is in runs/demo, or runs/demo-NAME for a text of the user's. */
#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "base/text.h"
#include "base/utf8.h"
#include "cli/cli.h"
#include "cli/print_json.h"
#include "cli/demo_corpus.h"
#include "cli/demo_settings.h"
#include "cli/sample.h"
#include "observe/progress.h"
#include "train/loop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    TIMED_STEPS = 5,
    WARM_STEPS_CPU = 1,
    WARM_STEPS_GPU = 3,
    PROMPTS = 3,
    SAMPLE_TOKENS = 24,
    LAST_SAMPLE_TOKENS = 60
};
static const char *const BIBLE_PROMPTS[PROMPTS] = {"And God said", "The LORD is my", "In those days"};
static const char *const TEXT_PROMPTS[PROMPTS] = {"The ", "It was", "In the"};

struct demo {
    struct demo_corpus corpus;
    struct demo_settings settings;
    struct tokenizer *tokenizer;
    double gzip_bpb, xz_bpb;
    bool json;
    double step_s, eval_batch_s; /* timed; NaN: a run that goes on */
    char *last[PROMPTS];         /* samples after the last step; owned */
};

static const char *prompt_of(const struct demo *d, int i)
{
    return d->corpus.source ? TEXT_PROMPTS[i] : BIBLE_PROMPTS[i];
}

/* ---- the run's configuration */

/* Steps are filled in by measure_out(). */
static status spec_of(const struct demo *d, struct spec *s)
{
    enum { KEYS = 23, ROOM = DEMO_PATH + 128 };
    const struct demo_settings *c = &d->settings;
    char text[KEYS][ROOM], *keys[KEYS];
    int n = 0;
#define KEY(...) snprintf(text[n++], ROOM, __VA_ARGS__)
    KEY("model.preset=nano");
    KEY("model.layer_count=%lld", (long long)c->layers);
    KEY("model.hidden_size=%lld", (long long)c->hidden);
    KEY("model.ffn_size=%lld", (long long)c->ffn);
    KEY("model.head_count=%lld", (long long)c->heads);
    KEY("model.head_count_kv=%lld", (long long)c->heads);
    KEY("run.name=demo");
    KEY("run.dir=%s", d->corpus.dir);
    KEY("data.train=%s/data/corpus_train_*.bin", d->corpus.dir);
    KEY("data.val=%s/data/corpus_val_*.bin", d->corpus.dir);
    KEY("data.tokenizer=%s/tokenizer", d->corpus.dir);
    if (c->micro_batch > 0)
        KEY("train.micro_batch=%lld", (long long)c->micro_batch);
    else
        KEY("train.micro_batch=auto");
    KEY("train.batch_tokens=%lld", (long long)c->batch_tokens);
    KEY("train.sequence_length=%d", DEMO_SEQUENCE);
    KEY("train.steps=1000");
    KEY("optim.name=muon");
    KEY("optim.lr=%g", c->lr);
    KEY("optim.schedule=cosine");
    KEY("optim.min_ratio=0.05");
    KEY("eval.tokens=%d", DEMO_EVAL_TOKENS);
    KEY("eval.final_tokens=0");
    KEY("ckpt.keep=2");
#undef KEY
    CHECK(n <= KEYS, "%d keys", n);
    for (int i = 0; i < n; i++) keys[i] = text[i];
    TRY(spec_load(s, NULL, n, keys, NULL));
    struct data_sources data;
    TRY(data_sources_open(&data, &s->run));
    status st = loop_resolve_vocab(s, &data);
    data_sources_close(&data);
    return st;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static status time_steps(struct trainer *t, struct loader *l, double *median)
{
    const int warm = t->dev.kind == DEV_CUDA ? WARM_STEPS_GPU : WARM_STEPS_CPU;
    double seconds[TIMED_STEPS];
    for (int i = -warm; i < TIMED_STEPS; i++) {
        const struct step_batch *b;
        struct step_result r;
        progress_done(i + warm, warm + TIMED_STEPS);
        TRY(loader_next(l, &b));
        const double begin = clock_s();
        TRY(train_step(t, b, &r));
        if (i >= 0) seconds[i] = clock_s() - begin;
    }
    qsort(seconds, TIMED_STEPS, sizeof *seconds, by_value);
    *median = seconds[TIMED_STEPS / 2];
    return STATUS_OK;
}

static status draw_sample(const struct demo *d, struct trainer *t, int prompt, int64_t tokens, char **text)
{
    return sample_text(
        t, d->tokenizer,
        &(struct sample_config){.prompt = prompt_of(d, prompt),
                                .tokens = tokens,
                                .sampling = {.temperature = 0.8, .top_p = 0.95, .seed = (uint64_t)prompt}},
        text);
}

/* What comes beside the steps: an evaluation, a sample, a save. */
static status time_rest(const struct demo *d, struct trainer *t, const struct shard_set *val,
                        struct demo_times *out)
{
    char path[DEMO_PATH + 64], *text;
    struct eval_result r;
    double begin = clock_s();
    TRY(train_eval(t, val, DEMO_EVAL_TOKENS, &r));
    out->eval = clock_s() - begin;
    out->last_eval = out->eval * fmax(1, (double)val->tokens / DEMO_EVAL_TOKENS);
    begin = clock_s();
    TRY(draw_sample(d, t, 0, SAMPLE_TOKENS, &text));
    free(text);
    out->sample = clock_s() - begin;
    out->last_sample = out->sample * PROMPTS * LAST_SAMPLE_TOKENS / SAMPLE_TOKENS;
    begin = clock_s();
    TRY(io_make_dirs(demo_path(&d->corpus, "timing", path)));
    status st = trainer_save(t, path);
    out->save = clock_s() - begin;
    status removed = io_remove_tree(path);
    return st == STATUS_OK ? removed : st;
}

static status time_parts(const struct demo *d, struct spec *s, struct demo_times *out, int64_t *train_tokens)
{
    struct trainer t;
    struct data_sources data;
    struct shard_set val;
    struct loader *l = NULL;
    struct loader_config c;
    const struct shard_hints hints = shard_hints_of(&s->run);
    TRY(data_sources_open(&data, &s->run));
    *train_tokens = data_sources_tokens(&data);
    status st = shard_set_open_as(&val, s->run.data_val, &hints);
    if (st != STATUS_OK) goto close_data;
    st = data_sources_mix(&data, s);
    if (st == STATUS_OK) st = trainer_open(&t, s, NULL, NULL);
    if (st != STATUS_OK) goto close_val;
    *s = t.spec; /* train.micro_batch=auto is resolved now */
    TRY_OUT(data_sources_loader(s, NULL, &t.dev, &c));
    TRY_OUT(trainer_init_weights(&t));
    TRY_OUT(loader_open(&l, data.samples, &c, 0));
    TRY_OUT(time_steps(&t, l, &out->step));
    TRY_OUT(time_rest(d, &t, &val, out));
out:
    loader_close(l);
    trainer_close(&t);
close_val:
    shard_set_close(&val);
close_data:
    data_sources_close(&data);
    return st;
}

/* The length of the run: what fits into the minutes on this machine. */
static status measure_out(struct demo *d, struct spec *s)
{
    struct demo_times times;
    int64_t tokens;
    char a[32];
    const double minutes = d->corpus.minutes > 0 ? d->corpus.minutes : d->settings.minutes;
    progress_begin(WORK_OTHER, "timing a few steps", 0);
    status st = time_parts(d, s, &times, &tokens);
    progress_end();
    TRY(st);
    const struct demo_length l = demo_length_of(&d->settings, &times, minutes, tokens);
    s->run.train_steps = l.steps;
    s->run.optim_warmup_steps = l.warmup_steps;
    s->run.eval_every = l.eval_every;
    s->run.ckpt_every = l.ckpt_every;
    s->run.log_every = l.log_every;
    d->step_s = times.step;
    d->eval_batch_s = times.eval * (double)(s->run.train_micro_batch * DEMO_SEQUENCE) / DEMO_EVAL_TOKENS;
    if (l.by_epochs)
        log_info("length    %lld steps: %lld times through the text; more would only learn it by heart",
                 (long long)l.steps, (long long)d->settings.epochs_max);
    else
        log_info("length    %lld steps: what fits into %s here, with evaluations, samples and saves",
                 (long long)l.steps, text_duration(a, minutes * 60));
    return STATUS_OK;
}

/* A run that was begun goes on as it was configured; else a new one is measured out. */
static status configure(struct demo *d, struct spec *s, bool *resume)
{
    char path[DEMO_PATH + 64];
    struct dev dev;
    TRY(io_exists(demo_path(&d->corpus, "config.yaml", path), resume));
    d->step_s = NAN;
    if (*resume) return spec_load(s, path, 0, NULL, NULL);
    TRY(dev_open(&dev, DEV_AUTO));
    d->settings = demo_settings_of(dev.kind);
    if (dev.kind == DEV_CUDA)
        log_info("device    %s: a larger model than on a CPU, in less than a minute", dev.name);
    dev_close(&dev);
    TRY(spec_of(d, s));
    TRY(measure_out(d, s));
    return spec_check(s);
}

/* ---- the run */

static status sample(void *ctx, struct trainer *t, struct observe *o)
{
    struct demo *d = ctx;
    const bool last = t->step >= t->steps_total;
    for (int i = 0; i < (last ? PROMPTS : 1); i++) {
        char *text;
        TRY(draw_sample(d, t, i, last ? LAST_SAMPLE_TOKENS : SAMPLE_TOKENS, &text));
        observe_sample(o, t->step, prompt_of(d, i), text);
        if (last) {
            free(d->last[i]);
            d->last[i] = text;
            continue;
        }
        log_info("sample    %s%s", prompt_of(d, i), text);
        free(text);
    }
    return STATUS_OK;
}

static void facts(void *ctx, struct observe *o, const struct eval_result *last)
{
    struct demo *d = ctx;
    if (isnan(last->loss)) return;
    observe_fact(o, "gzip_bpb", d->gzip_bpb);
    observe_fact(o, "xz_bpb", d->xz_bpb);
}

static void print_results_json(const struct demo *d, const struct loop_result *r)
{
    char report[DEMO_PATH + 64];
    json_t *samples = json_array();
    for (int i = 0; i < PROMPTS; i++) {
        if (!d->last[i]) continue;
        char *text = utf8_clean(d->last[i], strlen(d->last[i])); /* it may end within a character */
        json_array_append_new(samples, json_pack("{s:s, s:s}", "prompt", prompt_of(d, i), "text", text));
        free(text);
    }
    json_t *o = json_pack("{s:s, s:s, s:I, s:o}", "run", d->corpus.dir, "report",
                          demo_path(&d->corpus, "report.html", report), "step", (json_int_t)r->step,
                          "samples", samples);
    json_set_real(o, "bits_per_byte", r->eval.bits_per_byte);
    json_set_real(o, "gzip_bits_per_byte", d->gzip_bpb);
    json_set_real(o, "xz_bits_per_byte", d->xz_bpb);
    print_json(o);
}

static void print_results(const struct demo *d, const struct loop_result *r)
{
    const char *dir = d->corpus.dir;
    if (d->json) return print_results_json(d, r);
    for (int i = 0; i < PROMPTS; i++)
        if (d->last[i]) printf("sample %d: %s%s\n\n", i + 1, prompt_of(d, i), d->last[i]);
    printf("held-out text, bits per byte:   gzip -9  %.3f    xz -9  %.3f    this model  %.3f\n", d->gzip_bpb,
           d->xz_bpb, r->eval.bits_per_byte);
    printf("report: %s/report.html\n", dir);
    printf("more:   ingot generate %s --prompt \"%s\"\n", dir,
           d->corpus.source ? "The" : "And it came to pass");
}

static status pack(struct demo *d)
{
    progress_begin(WORK_OTHER, "packing the held-out text with gzip and xz", 0);
    status st = demo_packed_bpb(&d->corpus, "gzip", &d->gzip_bpb);
    if (st == STATUS_OK) st = demo_packed_bpb(&d->corpus, "xz", &d->xz_bpb);
    progress_end();
    return st;
}

static status run(struct demo *d)
{
    struct spec spec;
    struct loop_result r;
    bool resume;
    char path[DEMO_PATH + 64];
    TRY(demo_corpus_prepare(&d->corpus));
    TRY(tokenizer_load(&d->tokenizer, demo_path(&d->corpus, "tokenizer", path)));
    TRY(pack(d));
    TRY(configure(d, &spec, &resume));
    TRY(loop_run(&spec,
                 &(struct loop_options){.resume = resume,
                                        .resume_step = -1,
                                        .step_s = d->step_s,
                                        .eval_batch_s = d->eval_batch_s,
                                        .again = "the same command resumes it",
                                        .hooks = {.ctx = d, .sample = sample, .finish = facts}},
                 &r));
    print_results(d, &r);
    return STATUS_OK;
}

status cmd_demo(struct args *a)
{
    struct demo d = {.corpus.minutes = 0};
    bool fresh = false;
    const struct flag flags[] = {FLAG("minutes", &d.corpus.minutes), FLAG("text", &d.corpus.source),
                                 FLAG("fresh", &fresh), FLAG("json", &d.json)};
    d.corpus.minutes = NAN;
    TRY(args_parse(a, flags, 4));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 0, 0));
    if (isnan(d.corpus.minutes))
        d.corpus.minutes = 0;
    else if (!(d.corpus.minutes > 0 && d.corpus.minutes < 1e5))
        return FAIL(STATUS_CONFIG, "--minutes is above 0 and below 100000");
    progress_start();
    status st = demo_corpus_read(&d.corpus);
    if (st == STATUS_OK && fresh) st = io_remove_tree(d.corpus.dir);
    if (st == STATUS_OK) st = run(&d);
    progress_stop();
    demo_corpus_free(&d.corpus);
    tokenizer_free(d.tokenizer);
    for (int i = 0; i < PROMPTS; i++) free(d.last[i]);
    return st;
}
