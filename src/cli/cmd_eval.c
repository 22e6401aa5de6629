/* ingot eval: judges a RUN. */
#include "base/parallel.h"
#include "cli/cli.h"
#include "cli/cmd_eval.h"
#include "cli/print_json.h"
#include "observe/progress.h"
#include "train/data_identity.h"
#include "train/restore.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static status show_progress(void *ctx, int64_t done, int64_t parts)
{
    (void)ctx;
    progress_done(done, parts);
    return STATUS_OK;
}

/* The shards that a model is evaluated on must be of its tokenizer. A checkpoint says which that is; one of an older
 * ingot does not: then it is that of the training shards where they are still there. */
static status check_val(const struct trainer *t, const struct shard_set *val)
{
    const struct run_spec *r = &t->spec.run;
    struct data_sources train;
    TRY(data_sources_fit(val, t->spec.model.vocab_size));
    TRY(data_identity_check_val(t->data, val, r->data_val, t->accept_data));
    TRY(data_sources_tokenizer(val, r, t->accept_data));
    if (data_identity_tokenizer(t->data)[0] || !r->data_train[0]) return STATUS_OK;
    if (data_sources_open(&train, r) != STATUS_OK) return STATUS_OK;
    status st = data_sources_check(&train, val, r);
    data_sources_close(&train);
    return st;
}

static status evaluate(struct trainer *t, const struct shard_set *val, int64_t tokens, struct eval_result *r)
{
    TRY(check_val(t, val));
    TRY(data_sources_verify(val, 1, &t->spec.run, 0, 1));
    progress_start();
    progress_begin(WORK_OTHER, "evaluating", 0);
    t->pause.fn = show_progress;
    status st = train_eval(t, val, tokens, r);
    progress_end();
    progress_stop();
    return st;
}

/* On the run's validation shards. */
static status eval_shards(const struct args *a, int64_t tokens, bool accept, bool json)
{
    const char *run = a->words[0];
    struct trainer t;
    struct shard_set val;
    struct eval_result r;
    /* As many sequences at once as the run evaluates: then the sums are the run's, bit for bit. */
    TRY(restore_open(&t, run,
                     &(struct restore_options){.sequences = RESTORE_AS_RUN,
                                               .override_count = a->key_count,
                                               .overrides = a->keys,
                                               .accept_data = accept}));
    status st = t.spec.run.data_val[0]
                    ? data_sources_open_val(&val, &t.spec.run)
                    : FAIL(STATUS_CONFIG, "the run has no data.val; give --data.val=PATTERN");
    if (st == STATUS_OK) {
        st = evaluate(&t, &val, tokens >= 0 ? tokens : t.spec.run.eval_tokens, &r);
        shard_set_close(&val);
    }
    if (st == STATUS_OK && json) {
        json_t *j = json_pack("{s:s, s:I, s:I}", "run", run, "step", (json_int_t)t.step, "tokens",
                              (json_int_t)r.tokens);
        json_set_real(j, "loss", r.loss);
        json_set_real(j, "perplexity", exp(r.loss)); /* infinite for a model that diverged: left out */
        json_set_real(j, "accuracy", r.accuracy);
        json_set_real(j, "bits_per_byte", r.bits_per_byte);
        print_json(j);
    } else if (st == STATUS_OK) {
        printf("step=%lld loss=%.6f perplexity=%.3f accuracy=%.4f tokens=%lld", (long long)t.step, r.loss,
               exp(r.loss), r.accuracy, (long long)r.tokens);
        if (!isnan(r.bits_per_byte)) printf(" bits_per_byte=%.4f", r.bits_per_byte);
        printf("\n");
    }
    trainer_close(&t);
    return st;
}

status cmd_eval(struct args *a)
{
    int64_t tokens = -1;
    struct eval_tasks e = {.run = NULL};
    const struct flag flags[] = {
        FLAG("tokens", &tokens),     FLAG("tasks", &e.tasks),    FLAG("limit", &e.limit),
        FLAG("samples", &e.samples), FLAG("per-token", &e.each), FLAG("accept-data-change", &e.accept_data),
        FLAG("watch", &e.watch),     FLAG("every", &e.every),    FLAG("json", &e.json)};
    TRY(args_parse(a, flags, sizeof flags / sizeof flags[0]));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 1, 1));
    e.run = a->words[0];
    e.override_count = a->key_count;
    e.overrides = a->keys;
    if (e.tasks.count && tokens >= 0)
        return FAIL(STATUS_CONFIG, "--tokens is of the validation shards; --limit shortens --tasks");
    if (e.watch) return eval_watch(&e);
    if (e.every) return FAIL(STATUS_CONFIG, "--every goes with --watch");
    if (e.tasks.count) return eval_tasks(&e);
    if (e.limit || e.samples || e.each)
        return FAIL(STATUS_CONFIG, "--limit, --samples and --per-token go with --tasks NAME=FILE");
    return eval_shards(a, tokens, e.accept_data, e.json);
}
