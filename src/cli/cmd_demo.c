/* ingot demo: trains a language model on a book in about two minutes, on any machine.
 *
 *   corpus      the King James Bible as Debian's `bible` prints it (or --text FILE)    runs/demo/data/{train,val}.txt
 *   tokenizer   byte-level BPE, trained on the training part                            runs/demo/tokenizer/
 *   shards      the last 5 % of the text are held out                                   runs/demo/data/kjv_{train,val}_*.bin
 *   speed       a few steps are timed, and the run gets as many steps as fit in --minutes. Nothing else depends on time:
 *               an interrupted run resumes bit for bit
 *   model       preset nano, evaluated on the held-out text in bits per byte and compared with gzip -9 and xz -9; samples; report.html
 */
#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/process.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/sample.h"
#include "data/build/build.h"
#include "train/loop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char DIR[] = "runs/demo";
static const char EOT[] = "<|endoftext|>";
enum { VOCAB = 4096, CALIBRATION_STEPS = 4 };
static const double VAL_FRACTION = 0.05;
static const char *const PROMPTS[] = {"And God said", "The LORD is my", "In those days"};

struct demo {
    const char *text; /* user's text, or NULL */
    double minutes;
    struct tokenizer *tokenizer;
    double gzip_bpb, xz_bpb;
};

/* The whole corpus in memory: the user's file, or the Bible without its verse references ("Gen1:1 In the
 * beginning..."). */
static status read_corpus(const struct demo *d, char **text, size_t *bytes)
{
    const size_t limit = (size_t)1 << 31;
    if (d->text) return io_read_file(d->text, limit, text, bytes);
    const char *path = "runs/demo/data/bible.txt";
    const char *const argv[] = {"bible", "-f", "Gen1:1-Rev22:21", NULL};
    status st = process_run(argv, NULL, path);
    if (st == STATUS_CONFIG)
        return status_wrap(st, "no corpus (apt-get install bible-kjv bible-kjv-text, or give --text FILE)");
    TRY(st);
    TRY(io_read_file(path, limit, text, bytes));
    char *to = *text, *end = *text + *bytes;
    for (char *line = *text; line < end;) {
        char *stop = memchr(line, '\n', (size_t)(end - line)),
             *space = memchr(line, ' ', (size_t)(end - line));
        if (stop == NULL) stop = end - 1;
        char *from = space && space < stop ? space + 1 : line;
        memmove(to, from, (size_t)(stop + 1 - from));
        to += stop + 1 - from;
        line = stop + 1;
    }
    *bytes = (size_t)(to - *text);
    return STATUS_OK;
}

static status write_split(const struct demo *d)
{
    char *text = NULL;
    size_t bytes = 0;
    TRY(read_corpus(d, &text, &bytes));
    size_t cut = (size_t)((double)bytes * (1 - VAL_FRACTION));
    while (cut < bytes && text[cut - 1] != '\n') cut++;
    status st = cut > 0 && cut < bytes
                    ? STATUS_OK
                    : FAIL(STATUS_DATA, "the corpus of %zu bytes has no line to split at", bytes);
    if (st == STATUS_OK) st = io_write_file("runs/demo/data/train.txt", text, cut);
    if (st == STATUS_OK) st = io_write_file("runs/demo/data/val.txt", text + cut, bytes - cut);
    free(text);
    return st;
}

static status train_tokenizer(void)
{
    char *text;
    size_t bytes;
    struct tokenizer *t;
    double begin = clock_s();
    TRY(io_read_file("runs/demo/data/train.txt", (size_t)1 << 31, &text, &bytes));
    const char *specials[] = {EOT};
    status st = tokenizer_train(
        &t,
        &(struct tokenizer_train_config){
            .pretokenizer = "llama3", .vocab_size = VOCAB, .specials = specials, .special_count = 1},
        &(struct text){text, bytes}, 1);
    free(text);
    TRY(st);
    st = tokenizer_save(t, "runs/demo/tokenizer");
    log_info("tokenizer %d entries, trained in %.1f s", tokenizer_vocab_size(t), clock_s() - begin);
    tokenizer_free(t);
    return st;
}

/* Two documents, of which every second one is held out: the split is the one of the text files. */
static status build_shards(void)
{
    static const char *const inputs[] = {"runs/demo/data/train.txt", "runs/demo/data/val.txt"};
    struct build_report report;
    TRY(build_run(&(struct build_config){.inputs = inputs,
                                         .input_count = 2,
                                         .prefix = "runs/demo/data/corpus",
                                         .tokenizer_dir = "runs/demo/tokenizer",
                                         .reader = {.key = "text"},
                                         .val = BUILD_VAL_EVERY,
                                         .val_every = 2,
                                         .eod = EOD_AFTER,
                                         .shard_tokens = 100000000,
                                         .force = true},
                  &report));
    log_info("shards    %lld tokens to train on, %lld held out", (long long)report.train.tokens,
             (long long)report.val.tokens);
    return STATUS_OK;
}

static status prepare(struct demo *d)
{
    if (!io_exists("runs/demo/data/corpus_manifest.json")) {
        TRY(io_make_dirs("runs/demo/data"));
        TRY(write_split(d));
        TRY(train_tokenizer());
        TRY(build_shards());
    }
    return tokenizer_load(&d->tokenizer, "runs/demo/tokenizer");
}

/* Bits per byte that a program reaches on the validation text. */
static status packed_bpb(const char *program, double *bpb)
{
    struct stat in, out;
    const char *const argv[] = {program, "-9", "-c", NULL};
    TRY(process_run(argv, "runs/demo/data/val.txt", "runs/demo/data/val.packed"));
    if (stat("runs/demo/data/val.txt", &in) != 0 || stat("runs/demo/data/val.packed", &out) != 0 ||
        in.st_size == 0)
        return FAIL(STATUS_IO, "the packed validation text is missing");
    *bpb = 8 * (double)out.st_size / (double)in.st_size;
    return STATUS_OK;
}

/* The run: nano, and what it learns from. Steps are filled in by calibrate(). */
static status demo_spec(struct spec *s)
{
    char *keys[] = {
        "model.preset=nano",
        "run.name=demo",
        "run.dir=runs/demo",
        "data.train=runs/demo/data/corpus_train_*.bin",
        "data.val=runs/demo/data/corpus_val_*.bin",
        "data.tokenizer=runs/demo/tokenizer",
        "train.micro_batch=8",
        "train.batch_tokens=2048",
        "train.steps=1000",
        "optim.lr=2e-3",
        "optim.warmup_steps=20",
        "optim.schedule=cosine",
        "optim.min_ratio=0.05",
        "ckpt.every=200",
        "ckpt.keep=2",
    };
    TRY(spec_load(s, NULL, sizeof keys / sizeof keys[0], keys, NULL));
    struct data_sources data;
    TRY(data_sources_open(&data, &s->run));
    status st = loop_resolve_vocab(s, &data);
    data_sources_close(&data);
    return st;
}

/* Steps that fit in `minutes` on this machine: the median of a few timed steps on real data, after one that
 * warms up. */
static status calibrate(struct spec *s, double minutes)
{
    struct trainer t;
    struct data_sources data;
    struct loader *l = NULL;
    struct loader_config c;
    double seconds[CALIBRATION_STEPS];
    TRY(data_sources_open(&data, &s->run));
    status st = data_sources_mix(&data, s);
    if (st == STATUS_OK) st = data_sources_loader(s, NULL, NULL, &c);
    if (st == STATUS_OK) st = trainer_open(&t, s, NULL, NULL);
    if (st != STATUS_OK) goto close_data;
    TRY_OUT(trainer_init_weights(&t));
    TRY_OUT(loader_open(&l, data.samples, &c, 0));
    for (int i = -1; i < CALIBRATION_STEPS; i++) {
        const struct step_batch *b;
        struct step_result r;
        TRY_OUT(loader_next(l, &b));
        double begin = clock_s();
        TRY_OUT(train_step(&t, b, &r));
        if (i >= 0) seconds[i] = clock_s() - begin;
    }
    double best = seconds[0];
    for (int i = 1; i < CALIBRATION_STEPS; i++) best = fmin(best, seconds[i]);
    s->run.train_steps = (int64_t)fmax(20, minutes * 60 * 0.93 / best); /* the rest is for evaluation */
    s->run.optim_warmup_steps = s->run.train_steps / 20 + 1;
    s->run.eval_every = s->run.train_steps / 6 + 1;
    s->run.log_every = s->run.train_steps / 200 + 1;
out:
    loader_close(l);
    trainer_close(&t);
close_data:
    data_sources_close(&data);
    return st;
}

static status sample(void *ctx, struct trainer *t, struct observe *o)
{
    struct demo *d = ctx;
    bool last = t->step >= t->steps_total;
    for (size_t i = 0; i < (last ? sizeof PROMPTS / sizeof PROMPTS[0] : 1); i++) {
        char *text;
        TRY(sample_text(
            t, d->tokenizer,
            &(struct sample_config){.prompt = PROMPTS[i],
                                    .tokens = last ? 60 : 24,
                                    .sampling = {.temperature = 0.8, .top_p = 0.95, .seed = (uint64_t)i}},
            &text));
        observe_sample(o, t->step, PROMPTS[i], text);
        if (last)
            printf("sample %zu: %s%s\n\n", i + 1, PROMPTS[i], text);
        else
            log_info("sample    %s%s", PROMPTS[i], text);
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

/* A run that was begun goes on as it was configured; else a new one is measured out. */
static status configure(struct spec *s, const struct demo *d, bool *resume)
{
    *resume = io_exists("runs/demo/config.yaml");
    if (*resume) return spec_load(s, "runs/demo/config.yaml", 0, NULL, NULL);
    TRY(demo_spec(s));
    TRY(calibrate(s, d->minutes));
    return spec_check(s);
}

static status run(struct demo *d)
{
    struct spec spec;
    struct loop_result r;
    bool resume;
    TRY(prepare(d));
    TRY(packed_bpb("gzip", &d->gzip_bpb));
    TRY(packed_bpb("xz", &d->xz_bpb));
    TRY(configure(&spec, d, &resume));
    TRY(loop_run(&spec,
                 &(struct loop_options){.resume = resume,
                                        .again = "the same command resumes it",
                                        .hooks = {.ctx = d, .sample = sample, .finish = facts}},
                 &r));
    printf("held-out text, bits per byte:   gzip -9  %.3f    xz -9  %.3f    this model  %.3f\n", d->gzip_bpb,
           d->xz_bpb, r.eval.bits_per_byte);
    printf("report: %s/report.html\n", DIR);
    printf("more:   ingot generate %s --prompt \"And it came to pass\"\n", DIR);
    return STATUS_OK;
}

status cmd_demo(struct args *a)
{
    struct demo d = {.minutes = 2};
    bool fresh = false;
    const struct flag flags[] = {FLAG("minutes", &d.minutes), FLAG("text", &d.text), FLAG("fresh", &fresh)};
    TRY(args_parse(a, flags, 3));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 0, 0));
    if (!(d.minutes > 0 && d.minutes < 1e5)) return FAIL(STATUS_CONFIG, "--minutes is above 0");
    if (fresh) TRY(io_remove_tree(DIR));
    status st = run(&d);
    tokenizer_free(d.tokenizer);
    return st;
}
