#include "train/loop.h"
#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/scope.h"
#include "base/text.h"
#include "data/tokenizer/tokenizer.h"
#include "observe/env.h"
#include "observe/kernels.h"
#include "ops/precision.h"
#include "plan/machine.h"
#include "plan/mfu.h"
#include "train/forecast.h"
#include "train/restore.h"
#include "train/runlock.h"
#include "train/signals.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Time that steps waited for data since the last warning. */
enum { WAIT_AFTER = 3, WAIT_STEPS = 20 };
struct waiting {
    double seconds, waited;
    int64_t steps;
    int warnings;
};
/* State of a run. */
struct loop {
    struct spec spec;
    struct data_sources train;
    struct shard_set val;
    struct trainer trainer;
    struct comm *comm;
    bool lead; /* rank 0 */
    struct loader *loader;
    struct observe *observe;
    FILE *log;
    int lock;
    double start_s;          /* of this process's first step */
    struct eval_result eval; /* the latest; loss NaN before the first */
    int64_t eval_step;
    double loss, tokens_per_s;
    int64_t start_step, saved_step;
    struct waiting waiting;
    struct mixture_cursor cursor; /* of the step's samples */
    double peak;                  /* FLOP/s of the GPU, 0 when not known */
    struct breakdown breakdown;
    struct forecast forecast;
};

status loop_resolve_vocab(struct spec *spec, const struct data_sources *data)
{
    struct model_spec *m = &spec->model;
    const int64_t ids = data_sources_vocab_size(data);
    if (m->vocab_size == 0) {
        if (ids <= 0)
            return FAIL(STATUS_CONFIG, "model.vocab_size is 0, and the shards have no manifest to take it "
                                       "from; set model.vocab_size");
        m->vocab_size = (ids + 63) / 64 * 64;
    }
    if (ids > m->vocab_size)
        return FAIL(STATUS_CONFIG,
                    "the shards use %lld token ids, model.vocab_size is %lld: set it to at least that",
                    (long long)ids, (long long)m->vocab_size);
    return model_spec_check(m);
}

static status open_data(struct loop *l)
{
    struct run_spec *r = &l->spec.run;
    const struct shard_hints hints = shard_hints_of(r);
    TRY(data_sources_open(&l->train, r));
    if (r->data_val[0]) TRY(shard_set_open_as(&l->val, r->data_val, &hints));
    const char *trained = l->train.sets[0].tokenizer_hash;
    if (trained[0] && l->val.tokenizer_hash[0] && strcmp(trained, l->val.tokenizer_hash) != 0)
        return FAIL(STATUS_DATA,
                    "%s and %s were made with different tokenizers: a validation loss would mean nothing",
                    l->train.sources->list_of[0].path, r->data_val);
    if (r->data_packing != PACKING_STREAM && l->val.count > 0 && !l->val.bounded)
        return FAIL(
            STATUS_DATA,
            "%s: it would be evaluated with the run's data.packing, which needs to know where documents end, "
            "and these shards do not say it; give data.eot and data.eod, or other shards",
            r->data_val);
    return loop_resolve_vocab(&l->spec, &l->train);
}

static status open_run_dir(struct loop *l, const struct loop_options *o)
{
    const char *dir = l->spec.run.run_dir;
    char path[SPEC_TEXT + 32];
    CHECK(dir[0], "the spec has no run directory");
    TRY(io_make_dirs(dir));
    TRY(runlock_take(dir, &l->lock));
    bool held;
    TRY(restore_holds_run(dir, &held));
    if (!o->resume && held)
        return FAIL(
            STATUS_CONFIG,
            "%s already holds a run; add --resume to continue it, or --run.name=OTHER to start another", dir);
    snprintf(path, sizeof path, "%s/log.txt", dir);
    l->log = fopen(path, "a");
    if (l->log == NULL) return FAIL(STATUS_IO, "%s: %s", path, strerror(errno));
    log_file_set(l->log);
    return STATUS_OK;
}

static status fold_tokens(struct loop *l)
{
    char dir[SPEC_TEXT];
    struct tokenizer *tokenizer;
    if (l->trainer.decoder.token_map.data == NULL) return STATUS_OK;
    status st = restore_tokenizer_dir(&l->spec, dir, sizeof dir);
    if (st == STATUS_OK) st = tokenizer_load(&tokenizer, dir);
    if (st != STATUS_OK) return status_wrap(st, "model.engram_fold needs the tokenizer");
    st = trainer_fold(&l->trainer, tokenizer);
    tokenizer_free(tokenizer);
    return st;
}

/* Weights from the newest checkpoint, or fresh ones. */
static status begin_or_go_on(struct loop *l, const struct loop_options *o)
{
    bool found = false;
    if (o->resume) TRY(trainer_restore(&l->trainer, l->spec.run.run_dir, &found));
    if (found) {
        l->saved_step = l->trainer.step;
        return STATUS_OK;
    }
    if (o->resume) log_info("%s has no checkpoint: the run begins at step 0", l->spec.run.run_dir);
    TRY(trainer_init_weights(&l->trainer));
    return fold_tokens(l);
}

static double rss_bytes(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    char text[128] = "";
    if (f == NULL) return NAN;
    char *got = fgets(text, sizeof text, f), *end;
    fclose(f);
    if (got == NULL) return NAN;
    (void)strtod(text, &end);
    return strtod(end, NULL) * (double)sysconf(_SC_PAGESIZE);
}

/* Bytes that arenas and communication buffers really got from the system; memory_peak is what the layout planned. */
static size_t communication_bytes(const struct trainer *t)
{
    const struct comm_memory taken = comm_memory_used(t->mesh.world);
    return t->dev.kind == DEV_CUDA ? taken.device : taken.host;
}
static size_t reserved_bytes(const struct trainer *t)
{
    size_t sum = communication_bytes(t);
#define X(field, category, text) sum += t->memory.field.size;
    MEMORY_LIST(X)
#undef X
    return sum;
}

static void print_banner(const struct loop *l)
{
    const struct trainer *t = &l->trainer;
    const struct run_spec *r = &l->spec.run;
    char a[32], b[32], c[32];
    size_t reserved = reserved_bytes(t);
    log_info("model     %s parameters, %lld layers, width %lld, vocabulary %lld",
             text_count(a, (double)t->decoder.params.unique), (long long)l->spec.model.layer_count,
             (long long)l->spec.model.hidden_size, (long long)l->spec.model.vocab_size);
    if (t->dev.kind == DEV_CPU)
        log_info("device    %s, %d threads, %s", t->ops.name, parallel_threads(),
                 precision_name((enum precision)r->train_precision));
    else
        log_info("device    %s (sm_%d, %s of %s free), %s%s", t->dev.name, t->dev.sm,
                 text_bytes(a, (double)t->dev.bytes_free), text_bytes(b, (double)t->dev.bytes_total),
                 precision_name((enum precision)r->train_precision),
                 r->train_graph ? ", step as a CUDA graph" : "");
    const struct mesh_shape *mesh = &t->mesh.shape;
    if (l->comm)
        log_info("ranks     %d = %d x %d x %d (parallel.pipeline x data x parallel.tensor)",
                 comm_ranks(l->comm), mesh->pp, mesh->dp, mesh->tp);
    if (mesh->zero > 0)
        log_info("zero      stage %d: %d data-parallel ranks shard one copy of the model's state", mesh->zero,
                 mesh->shard);
    log_info("step      %lld tokens = %lld x %lld sequences of %lld; %lld steps, %s tokens",
             (long long)r->train_batch_tokens, (long long)plan_micro_count(&l->spec),
             (long long)r->train_micro_batch, (long long)r->train_sequence_length, (long long)t->steps_total,
             text_count(a, (double)(t->steps_total * r->train_batch_tokens)));
    log_info("data      %s tokens to train on, %s to validate",
             text_count(a, (double)data_sources_tokens(&l->train)), text_count(b, (double)l->val.tokens));
    data_sources_log(&l->train);
    log_info("memory    planned %zu bytes, measured %zu (%s); process %s", memory_peak(&t->memory), reserved,
             text_bytes(b, (double)reserved), text_bytes(c, rss_bytes()));
    if (t->memory.host.peak > 0)
        log_info("host      planned %zu bytes, measured %zu (%s): master weights and moments; %s per step "
                 "each way",
                 t->memory.host.peak, t->memory.host.size, text_bytes(a, (double)t->memory.host.size),
                 text_bytes(b, offload_bytes(&t->rank.offload)));
    log_info("compute   %s FLOPs per token (3 x forward)",
             text_count(a, plan_model_flops(&l->spec.model, r->train_sequence_length)));
}

static status evaluate(struct loop *l, const struct loop_options *o)
{
    struct trainer *t = &l->trainer;
    if (l->val.tokens == 0 || l->eval_step == t->step) return STATUS_OK;
    TRY(train_eval(t, &l->val, l->spec.run.eval_tokens, &l->eval));
    l->eval_step = t->step;
    if (!l->lead) return STATUS_OK;
    struct metrics m = METRICS_NONE;
    m.step = t->step;
    m.tokens = t->tokens;
    m.val_loss = l->eval.loss;
    m.val_accuracy = l->eval.accuracy;
    m.val_bpb = l->eval.bits_per_byte;
    observe_metrics(l->observe, &m);
    if (o->hooks.sample) {
        status st = o->hooks.sample(o->hooks.ctx, t, l->observe);
        if (st != STATUS_OK) log_warn("no sample: %s", status_message());
    }
    return STATUS_OK;
}

static status save(struct loop *l)
{
    if (l->saved_step == l->trainer.step) return STATUS_OK;
    if (l->lead) observe_flush(l->observe);
    TRY(trainer_save(&l->trainer, l->spec.run.run_dir));
    l->saved_step = l->trainer.step;
    return STATUS_OK;
}

/* What a step cost. */
struct step_cost {
    double seconds, waited; /* waited: for its batch */
};

/* Warns when steps wait for data for more than 1 % of their time. The interval doubles after each warning. */
static void judge_waiting(struct loop *l, const struct step_cost *cost)
{
    struct waiting *w = &l->waiting;
    if (l->trainer.step - l->start_step <= WAIT_AFTER) return; /* prefetch has not started yet */
    w->seconds += cost->seconds;
    w->waited += cost->waited;
    if (++w->steps < (int64_t)WAIT_STEPS << w->warnings || w->seconds < 1) return;
    if (w->waited > 0.01 * w->seconds) {
        log_warn("%lld steps waited %.1f %% of their time for data: raise data.threads (%lld), or put the "
                 "shards where "
                 "they are read faster",
                 (long long)w->steps, 100 * w->waited / w->seconds, (long long)l->spec.run.data_threads);
        if (w->warnings < 30) w->warnings++;
    }
    *w = (struct waiting){.warnings = w->warnings};
}

/* Logs sources that start another epoch in this step. */
static void log_epochs(struct loop *l)
{
    const struct run_spec *r = &l->spec.run;
    double now[MIXTURE_SOURCES], before[MIXTURE_SOURCES];
    const int64_t per_step = r->train_batch_tokens / r->train_sequence_length;
    samples_epochs(l->train.samples, &l->cursor, (l->trainer.step - 1) * per_step, before);
    samples_epochs(l->train.samples, &l->cursor, l->trainer.step * per_step, now);
    for (int i = 0; i < samples_sources(l->train.samples); i++)
        if (floor(now[i]) > floor(before[i]))
            log_info("source    %s: epoch %.0f is over at step %lld", l->train.sources->list_of[i].name,
                     floor(now[i]), (long long)l->trainer.step);
}

static void epoch_facts(struct loop *l)
{
    const struct run_spec *r = &l->spec.run;
    double epochs[MIXTURE_SOURCES];
    char name[SOURCE_NAME + 16];
    if (l->train.samples == NULL) return;
    samples_epochs(l->train.samples, &l->cursor,
                   l->trainer.step * (r->train_batch_tokens / r->train_sequence_length), epochs);
    for (int i = 0; i < samples_sources(l->train.samples); i++) {
        snprintf(name, sizeof name, "epochs.%s", l->train.sources->list_of[i].name);
        observe_fact(l->observe, name, epochs[i]);
    }
}

static void record_step(struct loop *l, const struct step_result *s, const struct step_cost *cost)
{
    const struct trainer *t = &l->trainer;
    judge_waiting(l, cost);
    forecast_step(&l->forecast, cost->seconds - cost->waited);
    if (l->lead) log_epochs(l);
    double tokens = (double)l->spec.run.train_batch_tokens;
    l->loss = s->loss;
    l->tokens_per_s = tokens / cost->seconds;
    if (!l->lead) return;
    if (t->step % l->spec.run.log_every != 0 && t->step != t->steps_total) return;
    struct metrics m = METRICS_NONE;
    m.step = t->step;
    m.tokens = t->tokens;
    m.loss = s->loss;
    m.mtp_loss = s->mtp_loss;
    m.halt_loss = s->halt_loss;
    m.lr = s->lr;
    m.grad_norm = s->grad_norm;
    m.grad_norm_clipped = s->grad_norm_clipped;
    if (model_ffn_count(&l->spec.model, FFN_MOE) > 0)
        m.aux_loss = s->aux_loss, m.load_max = s->load_max, m.load_min = s->load_min;
    m.tokens_per_s = l->tokens_per_s;
    m.step_s = cost->seconds;
    m.bubble = s->bubble;
    m.data_wait_s = cost->waited;
    if (l->spec.run.data_packing != PACKING_STREAM) m.targets = (double)s->targets;
    if (l->spec.run.data_packing == PACKING_BEST_FIT || l->spec.run.data_packing == PACKING_PAD)
        m.padding = (double)s->padding / tokens;
    m.flops_per_s = l->tokens_per_s * plan_model_flops(&l->spec.model, l->spec.run.train_sequence_length);
    m.mfu = mfu_of(m.flops_per_s, l->peak);
    m.mfu_full =
        mfu_of(l->tokens_per_s * mfu_flops_full(&l->spec.model, l->spec.run.train_sequence_length), l->peak);
    m.rss_bytes = rss_bytes();
    observe_metrics(l->observe, &m);
}

/* Device times are recorded for some steps of a traced GPU run. Recording costs time and a hundred kilobytes
 * per step; the first steps load, measure and capture. */
enum { RECORD_AFTER = 3, RECORD_STEPS = 10 };

static void device_times_open(const struct loop *l)
{
    if (l->trainer.dev.kind != DEV_CUDA) return;
    if (kernels_open() != STATUS_OK) log_warn("%s", status_message());
}

static void device_times_before(const struct loop *l)
{
    if (l->trainer.step - l->start_step == RECORD_AFTER && kernels_record(true) != STATUS_OK) {
        log_warn("%s", status_message());
        kernels_close();
    }
    kernels_flush(0);
}

static void device_times_after(struct loop *l)
{
    kernels_flush(1);
    if (l->trainer.step - l->start_step != RECORD_AFTER + RECORD_STEPS) return;
    if (kernels_record(false) != STATUS_OK) log_warn("%s", status_message());
}

/* Writes the breakdown next to the trace, as JSON, and as facts for the report. */
static void device_times_close(struct loop *l, const char *path)
{
    kernels_breakdown(&l->breakdown);
    l->breakdown.link_rate = machine_host_both(machine_of_gpu(l->trainer.dev.name));
    kernels_close();
    if (l->breakdown.steps == 0) return;
    json_t *j = breakdown_json(&l->breakdown, 0);
    char *text = json_dumps(j, JSON_INDENT(1)), name[64];
    if (text && io_write_file(path, text, strlen(text)) != STATUS_OK) log_warn("%s", status_message());
    free(text);
    json_decref(j);
    for (int i = 0; i < KERNEL_PART_COUNT; i++) {
        snprintf(name, sizeof name, "step_percent.%s", kernel_part_key(i));
        observe_fact(l->observe, name, l->breakdown.parts[i].percent);
    }
}

/* *number: the signal that asked the run to stop, 0: none; *late: train.max_minutes have passed. All ranks
 * get the same answer and stop after the same step: the highest signal of any rank, and rank 0's clock. */
static status stop_asked(struct loop *l, int *number, bool *late)
{
    double limit = l->spec.run.train_max_minutes * 60;
    const int32_t mine[] = {signals_pending(), limit > 0 && clock_s() - l->start_s > limit};
    int32_t all[COMM_RANKS_MAX][2];
    TRY(comm_all_gather(l->comm, "stop", mine, all, sizeof mine, NULL));
    *number = 0;
    *late = all[0][1] != 0;
    for (int rank = 0; rank < comm_ranks(l->comm); rank++)
        if (all[rank][0] > *number) *number = all[rank][0];
    return STATUS_OK;
}

/* STATUS_STOPPED, with the reason, if the run was asked to stop. */
static status stop_reason(struct loop *l, const struct loop_options *o)
{
    const struct trainer *t = &l->trainer;
    int number;
    bool late;
    TRY(stop_asked(l, &number, &late));
    if (t->step >= t->steps_total || (!number && !late)) return STATUS_OK;
    return FAIL(STATUS_STOPPED, "%s: saved at step %lld of %lld; %s",
                number ? signals_name(number) : "train.max_minutes", (long long)t->step,
                (long long)t->steps_total, o->again);
}

static status train_steps(struct loop *l, const struct loop_options *o)
{
    struct trainer *t = &l->trainer;
    const struct run_spec *r = &l->spec.run;
    while (t->step < t->steps_total) {
        device_times_before(l);
        double begin = clock_s(), waited = loader_wait_s(l->loader);
        const struct step_batch *b;
        struct step_result s;
        TRY(loader_next(l->loader, &b));
        TRY(train_step(t, b, &s));
        record_step(
            l, &s,
            &(struct step_cost){.seconds = clock_s() - begin, .waited = loader_wait_s(l->loader) - waited});
        device_times_after(l);
        if (r->eval_every && t->step % r->eval_every == 0) TRY(evaluate(l, o));
        if (r->ckpt_every && t->step % r->ckpt_every == 0) TRY(save(l));
        status stop = stop_reason(l, o);
        if (stop != STATUS_OK && stop != STATUS_STOPPED) return stop;
        if (stop != STATUS_OK) {
            char reason[512];
            snprintf(reason, sizeof reason, "%s", status_message());
            TRY(save(l));
            return FAIL(stop, "%s", reason);
        }
    }
    TRY(evaluate(l, o));
    return save(l);
}

static void memory_facts(struct loop *l)
{
    const struct memory *m = &l->trainer.memory;
    observe_fact(l->observe, "parameters", (double)l->trainer.decoder.params.unique);
    observe_fact(l->observe, "planned_bytes", (double)memory_peak(m));
    observe_fact(l->observe, "measured_bytes", (double)reserved_bytes(&l->trainer));
#define X(field, category, text)                                                                             \
    observe_fact(l->observe, "planned_bytes." category, (double)m->field.peak);                              \
    observe_fact(l->observe, "measured_bytes." category, (double)m->field.size);
    MEMORY_LIST(X)
#undef X
    if (l->comm) {
        observe_fact(l->observe, "planned_bytes.communication", (double)memory_communication(m));
        observe_fact(l->observe, "measured_bytes.communication", (double)communication_bytes(&l->trainer));
    }
    if (m->host.peak == 0) return;
    observe_fact(l->observe, "planned_bytes.host", (double)m->host.peak);
    observe_fact(l->observe, "measured_bytes.host", (double)m->host.size);
}

static void finish(struct loop *l, const struct loop_options *o, status st)
{
    const char *reason = st == STATUS_OK ? "finished" : status_message();
    char keep[1024];
    snprintf(keep, sizeof keep, "%s", reason);
    double seconds = clock_s() - l->start_s;
    if (l->observe) {
        if (l->trainer.step > l->start_step) {
            observe_stages(l->observe, seconds);
            if (st == STATUS_OK || st == STATUS_STOPPED) forecast_log(&l->forecast, &l->trainer, l->observe);
        }
        pipeline_log(&l->trainer.pipeline);
        memory_facts(l);
        epoch_facts(l);
        if (o->hooks.finish) o->hooks.finish(o->hooks.ctx, l->observe, &l->eval);
        observe_flush(l->observe);
        observe_close(l->observe);
        l->observe = NULL;
    }
    if (l->log) { /* this process holds the lock of the run directory */
        if (st != STATUS_OK) log_line_file(st == STATUS_STOPPED ? LOG_INFO : LOG_ERROR, "%s", keep);
        if (env_write_exit(l->spec.run.run_dir, (int)st, keep, l->trainer.step) != STATUS_OK)
            log_warn("%s", status_message());
        if (report_write(l->spec.run.run_dir) != STATUS_OK) log_warn("no report: %s", status_message());
    }
    if (st != STATUS_OK) status_fail(st, __FILE__, __LINE__, "%s", keep);
}

static void close_all(struct loop *l)
{
    loader_close(l->loader); /* before the device: its memory may be pinned */
    trainer_close(&l->trainer);
    data_sources_close(&l->train);
    shard_set_close(&l->val);
    log_file_set(NULL);
    if (l->log) fclose(l->log);
    runlock_release(&l->lock);
}

/* All ranks must resume from the same step: they read the same checkpoint. */
static status same_step(const struct loop *l)
{
    const int64_t mine = l->trainer.step;
    int64_t all[COMM_RANKS_MAX];
    TRY(comm_all_gather(l->comm, "first step", &mine, all, sizeof mine, NULL));
    for (int r = 0; r < comm_ranks(l->comm); r++)
        if (all[r] != mine)
            return FAIL(
                STATUS_COMM,
                "rank %d resumes from step %lld, rank %d from step %lld: all ranks must see the same %s",
                comm_rank(l->comm), (long long)mine, r, (long long)all[r], l->spec.run.run_dir);
    return STATUS_OK;
}

/* What rank 0 writes about the run. */
static status open_records(struct loop *l)
{
    const struct trainer *t = &l->trainer;
    const char *dir = l->spec.run.run_dir;
    TRY(trainer_write_config(&l->spec, dir));
    TRY(env_write(dir,
                  &(struct env_run){.device = t->dev.kind == DEV_CPU ? "cpu" : t->dev.name,
                                    .isa = t->ops.name,
                                    .precision = precision_name((enum precision)l->spec.run.train_precision),
                                    .threads = parallel_threads(),
                                    .parameters = t->decoder.params.unique}));
    return observe_open(&l->observe, dir, t->step, t->steps_total);
}

static status open_all(struct loop *l, const struct loop_options *o)
{
    struct trainer *t = &l->trainer;
    TRY(open_data(l));
    TRY(data_sources_mix(&l->train, &l->spec));
    TRY(trainer_open_rank(t, &l->spec, o->isa, l->comm));
    l->spec = t->spec; /* train.micro_batch=auto is resolved now */
    if (l->lead) TRY(open_run_dir(l, o));
    if (l->lead) comm_flight_recorder_dir(l->comm, l->spec.run.run_dir);
    TRY(comm_barrier(l->comm, "run directory"));
    TRY(begin_or_go_on(l, o));
    TRY(same_step(l));
    const struct run_spec *r = &l->spec.run;
    if (t->step >= t->steps_total)
        log_info("all %lld steps are done; raise train.steps to continue", (long long)t->steps_total);
    struct loader_config loader;
    TRY(data_sources_loader(&l->spec, &t->mesh, &t->dev, &loader));
    TRY(loader_open(&l->loader, l->train.samples, &loader, t->step));
    l->start_step = t->step;
    l->peak = mfu_peak(t->dev.name, (enum precision)r->train_precision);
    return l->lead ? open_records(l) : STATUS_OK;
}

/* All steps, with trace and breakdown. */
static status run(struct loop *l, const struct loop_options *o)
{
    char path[SPEC_TEXT + 64];
    status st = STATUS_OK;
    const bool trace = o->trace && l->lead;
    if (trace) {
        snprintf(path, sizeof path, "%s/trace", l->spec.run.run_dir);
        TRY(io_make_dirs(path));
        snprintf(path, sizeof path, "%s/trace/step-%08lld.json", l->spec.run.run_dir,
                 (long long)l->trainer.step);
        TRY(trace_start(path));
    }
    stages_start();
    if (trace) device_times_open(l);
    l->start_s = clock_s();
    st = train_steps(l, o);
    stages_stop();
    if (trace) {
        snprintf(path, sizeof path, "%s/trace/breakdown-%08lld.json", l->spec.run.run_dir,
                 (long long)l->start_step);
        device_times_close(l, path);
        trace_stop();
    }
    return st;
}

status loop_run(const struct spec *spec, const struct loop_options *o, struct loop_result *result)
{
    struct loop *l = calloc(1, sizeof *l);
    if (l == NULL) return FAIL(STATUS_FIT, "no memory for the run's description");
    l->spec = *spec;
    l->lock = -1;
    l->comm = o->comm;
    l->lead = comm_rank(o->comm) == 0;
    l->eval = (struct eval_result){.loss = NAN, .accuracy = NAN, .bits_per_byte = NAN};
    l->loss = NAN;
    l->eval_step = l->saved_step = -1;
    parallel_threads_set((int)spec->run.machine_threads);
    signals_catch();
    l->start_s = clock_s();
    status st = open_all(l, o);
    if (st == STATUS_OK) {
        if (l->lead) print_banner(l);
        st = run(l, o);
    }
    finish(l, o, st);
    if (l->breakdown.steps) breakdown_print(stdout, &l->breakdown, 0);
    *result = (struct loop_result){
        .step = l->trainer.step, .loss = l->loss, .eval = l->eval, .tokens_per_s = l->tokens_per_s};
    close_all(l);
    free(l);
    return st;
}
