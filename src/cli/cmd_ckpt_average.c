/* ingot ckpt average: a run whose weights are the mean of several checkpoints', in float64.
 *
 * Every checkpoint is opened once, one after the other; memory: the weights in float64 and once more in fp32. */
#include "base/io.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/print_json.h"
#include "train/restore.h"
#include "train/runlock.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHECKPOINTS_MAX = 1024, PATH_BYTES = 1400 };

struct average {
    char (*paths)[PATH_BYTES]; /* oldest first */
    int count;
    double decay;         /* a checkpoint counts decay times as much as the next one */
    double *sum, weights; /* of the master weights; sum of what checkpoints count */
};

static status add_path(struct average *a, const char *dir, const char *name)
{
    if (a->count == CHECKPOINTS_MAX) return FAIL(STATUS_CONFIG, "more than %d checkpoints", CHECKPOINTS_MAX);
    if (snprintf(a->paths[a->count], PATH_BYTES, "%s%s%s", dir, name[0] ? "/ckpt/" : "", name) >= PATH_BYTES)
        return FAIL(STATUS_CONFIG, "the path %.40s... is too long", dir);
    a->count++;
    return STATUS_OK;
}

/* The last checkpoints of a run, or all (0). */
static status take_run(struct average *a, const char *run, int64_t last)
{
    char dir[PATH_BYTES];
    struct io_list names;
    snprintf(dir, sizeof dir, "%.1300s/ckpt", run);
    TRY(io_list(dir, &names));
    int steps = 0, seen = 0;
    for (int i = 0; i < names.count; i++) steps += strncmp(names.names[i], "step-", 5) == 0;
    status st = STATUS_OK;
    if (last > steps)
        st = FAIL(STATUS_CKPT,
                  "%s has %d checkpoints, --last %lld asks for more; ckpt.keep says how many stay", run,
                  steps, (long long)last);
    for (int i = 0; i < names.count && st == STATUS_OK; i++)
        if (strncmp(names.names[i], "step-", 5) == 0 && (last == 0 || seen++ >= steps - last))
            st = add_path(a, run, names.names[i]);
    io_list_free(&names);
    return st;
}

static status take_words(struct average *a, const struct args *args, int64_t last)
{
    char dir[PATH_BYTES];
    bool there;
    if (args->word_count == 1) {
        snprintf(dir, sizeof dir, "%.1300s/ckpt", args->words[0]);
        TRY(io_exists(dir, &there));
        if (there) TRY(take_run(a, args->words[0], last));
    } else if (last > 0) {
        return FAIL(STATUS_CONFIG, "--last is of one run; several words are the checkpoints themselves");
    }
    const bool listed = a->count > 0;
    for (int i = 0; !listed && i < args->word_count; i++) TRY(add_path(a, args->words[i], ""));
    if (a->count < 2)
        return FAIL(STATUS_CONFIG, "%s: one checkpoint has no mean; give two or more", args->words[0]);
    return STATUS_OK;
}

static status check_same(const struct params *p, const struct params *q, const char *path)
{
    bool same = p->count == q->count && p->total == q->total;
    for (int i = 0; same && i < p->count; i++)
        same = strcmp(p->rows[i].name, q->rows[i].name) == 0 && p->rows[i].shape[0] == q->rows[i].shape[0] &&
               p->rows[i].shape[1] == q->rows[i].shape[1];
    return same ? STATUS_OK : FAIL(STATUS_CKPT, "%s: another model than the last checkpoint's", path);
}

/* Adds the weights of checkpoint i. */
static void add_weights(struct average *a, const struct params *p, int i)
{
    const double weight = pow(a->decay, a->count - 1 - i);
    const float *master = p->master; /* as trainer_open_weights lays them out */
    for (int64_t k = 0; k < p->total; k++) a->sum[k] += weight * (double)master[k];
    a->weights += weight;
}

static status add_older(struct average *a, const struct params *newest)
{
    for (int i = 0; i < a->count - 1; i++) {
        struct trainer t;
        TRY(restore_open(&t, a->paths[i], &(struct restore_options){0}));
        status st = check_same(newest, &t.decoder.params, a->paths[i]);
        if (st == STATUS_OK) add_weights(a, &t.decoder.params, i);
        trainer_close(&t);
        TRY(st);
    }
    return STATUS_OK;
}

/* A run of its own, as an import is: weights alone, at step 0. */
static status write_run(struct trainer *t, const char *run)
{
    int lock = -1;
    bool held;
    TRY(io_make_dirs(run));
    TRY(runlock_take(run, &lock));
    status st = restore_holds_run(run, &held);
    if (st == STATUS_OK && held)
        st = FAIL(STATUS_CKPT, "%s already holds a run; name another directory with -o", run);
    t->step = t->tokens = 0;
    lineage_free(&t->lineage);
    snprintf(t->spec.run.run_dir, sizeof t->spec.run.run_dir, "%s", run);
    if (st == STATUS_OK) st = trainer_write_config(&t->spec, run);
    if (st == STATUS_OK) st = trainer_save(t, run);
    runlock_release(&lock);
    return st;
}

static status average(struct average *a, const char *run, bool json)
{
    struct trainer t;
    TRY(restore_open(&t, a->paths[a->count - 1], &(struct restore_options){0}));
    const struct params *p = &t.decoder.params;
    const int64_t step = t.step;
    status st = STATUS_OK;
    a->sum = calloc((size_t)p->total, sizeof *a->sum);
    if (!a->sum)
        st = FAIL(STATUS_OUT_OF_MEMORY, "no memory for %lld weights in float64", (long long)p->total);
    if (st == STATUS_OK) st = add_older(a, p);
    if (st == STATUS_OK) add_weights(a, p, a->count - 1);
    float *master = p->master;
    for (int64_t k = 0; k < p->total && st == STATUS_OK; k++) master[k] = (float)(a->sum[k] / a->weights);
    if (st == STATUS_OK) st = write_run(&t, run);
    if (st == STATUS_OK && json)
        print_json(json_pack("{s:s, s:i, s:I, s:f, s:I}", "run", run, "checkpoints", a->count, "last_step",
                             (json_int_t)step, "decay", a->decay, "parameters", (json_int_t)p->param_count));
    else if (st == STATUS_OK)
        printf("run=%s checkpoints=%d last_step=%lld decay=%g parameters=%lld\n", run, a->count,
               (long long)step, a->decay, (long long)p->param_count);
    free(a->sum);
    trainer_close(&t);
    return st;
}

status cmd_ckpt_average(struct args *args)
{
    struct average a = {.decay = 1};
    const char *run = NULL;
    int64_t last = 0;
    bool json = false;
    const struct flag flags[] = {FLAG("out", &run), FLAG("last", &last), FLAG("decay", &a.decay),
                                 FLAG("json", &json)};
    TRY(args_parse(args, flags, 4));
    if (args->help) return STATUS_OK;
    TRY(args_words(args, run ? 1 : args->word_count + 1, CHECKPOINTS_MAX));
    if (last < 0 || last == 1)
        return FAIL(STATUS_CONFIG, "--last %lld: 2 or more is expected", (long long)last);
    if (!(a.decay > 0 && a.decay <= 1)) return FAIL(STATUS_CONFIG, "--decay %g: in (0, 1]", a.decay);
    if (strlen(run) > SPEC_TEXT - 32) return FAIL(STATUS_CONFIG, "the path %.40s... is too long", run);
    a.paths = calloc(CHECKPOINTS_MAX, sizeof *a.paths);
    if (!a.paths) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for paths");
    status st = take_words(&a, args, last);
    if (st == STATUS_OK) st = average(&a, run, json);
    free(a.paths);
    return st;
}
