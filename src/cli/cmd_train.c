/* ingot train. */
#include "base/io.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/cmd_train_lr.h"
#include "cli/print_json.h"
#include "cli/sample.h"
#include "cli/verbs.h"
#include "train/loop.h"
#include "train/restore.h"
#include "train/signals.h"

#include <errno.h>
#include <math.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The value of a key that the command line sets, the last one; NULL: none. */
static const char *key_of(const struct args *a, const char *name)
{
    const size_t n = strlen(name);
    const char *value = NULL;
    for (int i = 0; i < a->key_count; i++)
        if (strncmp(a->keys[i] + 2, name, n) == 0 && a->keys[i][2 + n] == '=') value = a->keys[i] + 3 + n;
    return value;
}

/* The directory of a run that the words or keys name instead of a file: "" when they do not. */
static void run_of_words(const struct args *a, bool resume, char dir[SPEC_TEXT])
{
    const char *word = a->word_count ? a->words[0] : NULL;
    const char *named = key_of(a, "run.name"), *given = key_of(a, "run.dir");
    struct stat found;
    dir[0] = 0;
    if (word)
        snprintf(dir, SPEC_TEXT, "%s", word);
    else if (resume && given)
        snprintf(dir, SPEC_TEXT, "%s", given);
    else if (resume && named)
        snprintf(dir, SPEC_TEXT, "runs/%s", named);
    if (stat(dir, &found) != 0 || !S_ISDIR(found.st_mode)) dir[0] = 0;
    for (size_t n = strlen(dir); n > 1 && dir[n - 1] == '/';) dir[--n] = 0;
}

static status load(const char *path, int count, char **keys, enum cmd_load how, struct spec *spec,
                   struct spec_origin **origin)
{
    return how == LOAD_PLAN ? spec_load_open(spec, path, count, keys, origin)
                            : spec_load(spec, path, count, keys, origin);
}

/* RUN/config.yaml with the keys of the command line. The run is where it is found, not where it was begun. */
static status load_run(const struct args *a, const char *dir, const char *config, enum cmd_load how,
                       struct spec *spec, struct spec_origin **origin)
{
    bool there;
    TRY(io_exists(config, &there));
    char place[SPEC_TEXT + 16], **keys = calloc((size_t)a->key_count + 1, sizeof *keys);
    if (!keys) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the command line");
    snprintf(place, sizeof place, "--run.dir=%s", dir);
    keys[0] = place;
    for (int i = 0; i < a->key_count; i++) keys[i + 1] = a->keys[i];
    status st =
        there ? load(config, a->key_count + 1, keys, how, spec, origin)
              : FAIL(STATUS_CONFIG,
                     "%s is a directory without config.yaml: ingot %s takes a RUN.yaml or the directory "
                     "of a run",
                     dir, a->verb->name);
    free(keys);
    return st;
}

status cmd_load_spec(const struct args *a, enum cmd_load how, struct spec *spec, struct spec_origin **origin)
{
    char dir[SPEC_TEXT], config[SPEC_TEXT + 16];
    TRY(args_words(a, 0, 1));
    if (a->word_count == 0 && a->key_count == 0)
        return FAIL(STATUS_CONFIG,
                    "ingot %s needs a RUN.yaml, or --model.preset=NAME and other keys; examples/ has some",
                    a->verb->name);
    run_of_words(a, how == LOAD_RESUME, dir);
    snprintf(config, sizeof config, "%s/config.yaml", dir);
    bool run = dir[0] && a->word_count;
    if (dir[0] && !run) TRY(io_exists(config, &run));
    if (run) return load_run(a, dir, config, how, spec, origin);
    return load(a->word_count ? a->words[0] : NULL, a->key_count, a->keys, how, spec, origin);
}

struct sampler {
    struct tokenizer *tokenizer;
    const struct run_spec *spec;
};

static status sample_after_eval(void *ctx, struct trainer *t, struct observe *o)
{
    const struct sampler *s = ctx;
    char *text;
    TRY(sample_text(
        t, s->tokenizer,
        &(struct sample_config){.prompt = s->spec->log_sample_prompt,
                                .tokens = s->spec->log_sample_tokens,
                                .sampling = {.temperature = 0.8, .top_p = 0.95, .seed = (uint64_t)t->step}},
        &text));
    observe_sample(o, t->step, s->spec->log_sample_prompt, text);
    log_info("sample    %s%s", s->spec->log_sample_prompt, text);
    free(text);
    return STATUS_OK;
}

/* As one of the ranks that `ingot launch` started, or alone. */
static status train_rank(const struct spec *spec, struct loop_options *o, const struct comm_env *env,
                         struct loop_result *r)
{
    TRY(comm_open(&o->comm, env));
    status st = loop_run(spec, o, r);
    comm_close(o->comm, st);
    return st;
}

static void print_result(const struct spec *spec, const struct loop_result *r, status st)
{
    char report[SPEC_TEXT + 16];
    snprintf(report, sizeof report, "%s/report.html", spec->run.run_dir);
    json_t *o = json_pack("{s:s, s:I, s:b, s:s}", "run", spec->run.run_dir, "step", (json_int_t)r->step,
                          "stopped", st == STATUS_STOPPED, "report", report);
    json_set_real(o, "loss", r->loss);
    json_set_real(o, "val_loss", r->eval.loss);
    json_set_real(o, "accuracy", r->eval.accuracy);
    json_set_real(o, "bits_per_byte", r->eval.bits_per_byte);
    json_set_real(o, "tokens_per_s", r->tokens_per_s);
    print_json(o);
}

enum { NOT_GIVEN = INT32_MIN };
struct train_options {
    struct flag_optional go_on; /* --resume */
    struct flag_optional lr_find;
    struct lr_find_options range; /* --lr-find */
    bool resume, accept_data, trace, json;
    int64_t step; /* to resume from; -1: the newest checkpoint's */
    const char *isa, *skip;
    int64_t rewind; /* -1: not given */
    struct lineage_order lineage;
};

/* --resume, --resume=STEP; --resume=true and =false, as for a switch. */
static status take_resume(struct train_options *f)
{
    const char *value = f->go_on.value;
    const bool word = f->go_on.given && (strcmp(value, "true") == 0 || strcmp(value, "false") == 0);
    f->resume = f->go_on.given && strcmp(value, "false") != 0;
    f->step = -1;
    if (!f->go_on.given || word || !value[0]) return STATUS_OK;
    if (!text_to_int(value, &f->step) || f->step < 0)
        return FAIL(STATUS_CONFIG,
                    "--resume=%s: the step of a checkpoint is a whole number, such as --resume=500", value);
    return STATUS_OK;
}

/* --rewind STEP, --skip A:B. */
static status take_lineage(struct train_options *f)
{
    struct lineage_order *o = &f->lineage;
    char from[32] = "";
    *o = (struct lineage_order){
        .rewinds = f->rewind != NOT_GIVEN, .rewind = f->rewind, .why = "the command line"};
    if (o->rewinds && f->rewind < 0)
        return FAIL(STATUS_CONFIG, "--rewind %lld: a step is a whole number, such as --rewind 500",
                    (long long)f->rewind);
    if (o->rewinds && !f->resume)
        return FAIL(STATUS_CONFIG, "--rewind goes back in a run that is there: add --resume");
    if (f->skip == NULL) return STATUS_OK;
    const char *colon = strchr(f->skip, ':');
    if (colon) snprintf(from, sizeof from, "%.*s", (int)(colon - f->skip), f->skip);
    if (colon && text_to_int(from, &o->skip_from) && text_to_int(colon + 1, &o->skip_to) &&
        o->skip_from >= 1 && o->skip_to >= o->skip_from && o->skip_to < INT64_MAX / 4)
        return STATUS_OK;
    return FAIL(STATUS_CONFIG,
                "--skip %s: the first and the last step whose data are left out, such as --skip 510:530",
                f->skip);
}

/* --lr-find, --lr-find=LOW:HIGH:STEPS. */
static status take_range(struct train_options *f)
{
    if (!f->lr_find.given) return STATUS_OK;
    if (f->skip || f->lineage.rewinds || f->trace)
        return FAIL(STATUS_CONFIG, "--lr-find leaves no run that --%s could be recorded in: leave it away",
                    f->skip    ? "skip"
                    : f->trace ? "trace"
                               : "rewind");
    f->range = (struct lr_find_options){
        .resume = f->resume, .resume_step = f->step, .accept_data = f->accept_data, .isa = f->isa};
    return lr_find_range(f->lr_find.value, &f->range);
}

static status parse(struct args *a, struct train_options *f)
{
    const struct flag flags[] = {FLAG("resume", &f->go_on), FLAG("accept-data-change", &f->accept_data),
                                 FLAG("trace", &f->trace),  FLAG("isa", &f->isa),
                                 FLAG("json", &f->json),    FLAG("rewind", &f->rewind),
                                 FLAG("skip", &f->skip),    FLAG("lr-find", &f->lr_find)};
    *f = (struct train_options){.rewind = NOT_GIVEN};
    TRY(args_parse(a, flags, sizeof flags / sizeof flags[0]));
    TRY(take_resume(f));
    TRY(take_lineage(f));
    return take_range(f);
}

status cmd_train_spec(int argc, char **argv, struct spec *spec)
{
    struct args a = {.verb = verb_find("train"), .argc = argc, .argv = argv};
    struct train_options f;
    status st = parse(&a, &f);
    if (st == STATUS_OK) st = cmd_load_spec(&a, f.resume ? LOAD_RESUME : LOAD_BEGIN, spec, NULL);
    args_free(&a);
    return st;
}

/* The line of results says nothing that the run directory does not: a pipe that is closed or a full disk drops it. */
static void flush_line(const char *run_dir)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return;
    log_warn("the result was not printed (%s); it is in %s/metrics.jsonl",
             errno ? strerror(errno) : "an earlier write failed", run_dir);
    __fpurge(stdout);
    clearerr(stdout);
}

status cmd_train(struct args *a)
{
    struct train_options f;
    TRY(parse(a, &f));
    if (a->help) return STATUS_OK;
    struct spec spec;
    signals_ignore();
    TRY(cmd_load_spec(a, f.resume ? LOAD_RESUME : LOAD_BEGIN, &spec, NULL));
    struct sampler sampler = {.spec = &spec.run};
    char again[SPEC_TEXT + 64] = "the same command with --resume resumes it";
    struct comm_env env;
    TRY(comm_env_read(&env));
    if (f.lr_find.given) return cmd_lr_find(&spec, &f.range, &env, f.json);
    if (env.ranks == 1)
        snprintf(again, sizeof again, "`ingot train %s --resume` resumes it", spec.run.run_dir);
    struct loop_options o = {.resume = f.resume,
                             .resume_step = f.step,
                             .lineage = f.lineage,
                             .accept_data = f.accept_data,
                             .trace = f.trace,
                             .isa = f.isa,
                             .again = again};
    if (spec.run.log_sample_prompt[0]) {
        struct tokenizer_place place;
        TRY(restore_tokenizer_place(&spec, &place));
        TRY(tokenizer_load(&sampler.tokenizer, place.dir));
        o.hooks.ctx = &sampler;
        o.hooks.sample = sample_after_eval;
    }
    struct loop_result r;
    status st = train_rank(&spec, &o, &env, &r);
    tokenizer_free(sampler.tokenizer);
    if (env.rank > 0) return st;
    if (f.json && (st == STATUS_OK || st == STATUS_STOPPED)) print_result(&spec, &r, st);
    if (st != STATUS_OK || f.json) return st;
    printf("step=%lld", (long long)r.step);
    if (!isnan(r.loss)) printf(" loss=%.6f", r.loss); /* a run that was over did no step */
    if (!isnan(r.eval.loss)) printf(" val_loss=%.6f", r.eval.loss);
    if (!isnan(r.eval.bits_per_byte)) printf(" bits_per_byte=%.4f", r.eval.bits_per_byte);
    printf(" report=%s/report.html\n", spec.run.run_dir);
    flush_line(spec.run.run_dir);
    return STATUS_OK;
}
