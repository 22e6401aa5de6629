#include "train/loop.h"
#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/scope.h"
#include "base/text.h"
#include "observe/env.h"
#include "observe/host_record.h"
#include "observe/kernels.h"
#include "observe/ledger.h"
#include "observe/progress.h"
#include "ops/precision.h"
#include "plan/machine.h"
#include "plan/mfu.h"
#include "train/alerts.h"
#include "train/ckpt_leftovers.h"
#include "train/data_identity.h"
#include "train/epochs.h"
#include "train/footprint.h"
#include "train/forecast.h"
#include "train/memory_copy.h"
#include "train/rank_times.h"
#include "train/restore.h"
#include "train/rewind.h"
#include "train/runlock.h"
#include "train/device_times.h"
#include "train/save.h"
#include "train/signals.h"
#include "train/spike_act.h"
#include "train/stop.h"
#include "train/verify.h"
#include "train/waiting.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* State of a run. */
struct loop {
    struct spec spec;
    struct data_sources train;
    struct shard_set val;
    struct trainer trainer;
    struct comm *comm;
    bool is_rank0; /* rank 0 */
    struct loader *loader;
    struct observe *observe;
    struct host_record *host; /* NULL except on one rank of each host */
    struct alerts alerts;
    FILE *log;
    int lock;
    double start_s;          /* when this process's first step began */
    struct eval_result eval; /* the latest; loss NaN before the first */
    int64_t eval_step;
    double loss, tokens_per_s;
    int64_t start_step, saved_step;
    struct memory_copy *copy; /* NULL: ckpt.memory_every=0 */
    double restore_s;         /* how long the restore of the state took */
    struct rewind rewind;
    struct step_result last; /* results of the last step */
    struct spike_again again;
    struct ledger *ledger; /* rank 0's */
    double began;          /* wall-clock time at which this process began */
    struct waiting waiting;
    struct stop stop;
    struct rank_times ranks;
    _Atomic int64_t step_now; /* read by the display thread: the step in progress */
    atomic_bool drops;        /* read by the display thread: a step in progress may be dropped */
    bool answered;            /* used by the display thread: a signal was answered */
    double predicted_s;       /* predicted time of a step, the same on all ranks; NaN: not known */
    struct epochs epochs;
    double peak; /* FLOP/s of the GPU, 0 when not known */
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

static status open_data(struct loop *l, bool accept)
{
    struct run_spec *r = &l->spec.run;
    TRY(data_sources_open(&l->train, r));
    TRY(data_sources_open_val(&l->val, r));
    if (r->data_packing != PACKING_STREAM && l->val.count > 0 && !l->val.bounded)
        return FAIL(
            STATUS_DATA,
            "%s: it would be evaluated with the run's data.packing, which needs to know where documents end, "
            "and these shards do not say it; give data.eot and data.eod, or other shards",
            r->data_val);
    TRY(data_sources_check(&l->train, &l->val, r));
    TRY(data_sources_tokenizer(&l->train.sets[0], r, accept));
    TRY(loop_resolve_vocab(&l->spec, &l->train));
    return data_sources_fit(&l->val, l->spec.model.vocab_size);
}

static status verify_data(const struct loop *l)
{
    const struct run_spec *r = &l->spec.run;
    const int rank = comm_rank(l->comm), ranks = comm_ranks(l->comm);
    TRY(data_sources_verify(l->train.sets, l->train.sources->count, r, rank, ranks));
    return data_sources_verify(&l->val, 1, r, rank, ranks);
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
    TRY(runlock_directories(dir));
    snprintf(path, sizeof path, "%s/log.txt", dir);
    int fd;
    int64_t bytes;
    TRY(io_open_own(path, O_WRONLY | O_APPEND, &fd, &bytes));
    l->log = fdopen(fd, "a");
    if (l->log == NULL) io_close(&fd);
    if (l->log == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory to write %s", path);
    log_file_set(l->log);
    if (!o->resume) TRY(ckpt_saved_forget(dir));
    if (ckpt_leftovers_start(dir, l->lock >= 0) != STATUS_OK) log_warn("%s", status_message());
    return STATUS_OK;
}

/* Restores weights from the copy in memory or from the newest checkpoint, or initialises them. */
static status init_or_resume(struct loop *l, const struct loop_options *o)
{
    bool found = false;
    char path[SPEC_TEXT + 64];
    snprintf(path, sizeof path, "%s", l->spec.run.run_dir);
    const bool back = o->resume && l->rewind.go_to >= 0;
    if (back) TRY(checkpoint_at(l->spec.run.run_dir, l->rewind.go_to, path, sizeof path));
    if (o->resume && !back) TRY(memory_copy_restore(l->copy, &found, &l->saved_step));
    if (found) return STATUS_OK;
    if (o->resume) TRY(trainer_restore(&l->trainer, path, &found));
    if (found) {
        l->saved_step = l->trainer.step;
        return STATUS_OK;
    }
    if (o->resume) TRY(ckpt_saved_none(l->spec.run.run_dir));
    TRY(trainer_init_weights(&l->trainer));
    return restore_fold(&l->trainer);
}

static void print_banner(const struct loop *l)
{
    const struct trainer *t = &l->trainer;
    const struct run_spec *r = &l->spec.run;
    char a[32], b[32], c[32];
    size_t reserved = footprint_reserved(t);
    log_info("model     %s parameters, %lld layers, width %lld, vocabulary %lld",
             text_count(a, (double)t->decoder.params.param_count), (long long)l->spec.model.layer_count,
             (long long)l->spec.model.hidden_size, (long long)l->spec.model.vocab_size);
    if (t->dev.kind == DEV_CPU)
        log_info("device    %s, %d threads, %s", t->ops.name, parallel_threads(),
                 precision_name((enum precision)r->train_precision));
    else
        log_info("device    %s (sm_%d, %s of %s free), %s%s", t->dev.name, t->dev.sm,
                 text_bytes(a, (double)t->dev.bytes_free), text_bytes(b, (double)t->dev.bytes_total),
                 precision_name((enum precision)r->train_precision),
                 r->train_graph ? ", step as a CUDA graph" : "");
    fp8_run_log(t);
    const struct mesh_shape *mesh = &t->mesh.shape;
    if (l->comm)
        log_info("ranks     %d = %d x %d x %d (parallel.pipeline x data x parallel.tensor)",
                 comm_ranks(l->comm) / mesh_cp(mesh), mesh->pp, mesh->dp, mesh->tp);
    if (mesh_cp(mesh) > 1)
        log_info("context   %d ranks share each sequence: %d ranks in all", mesh->cp, comm_ranks(l->comm));
    if (mesh->ep > 1)
        log_info("experts   %d neighbouring data-parallel ranks shard %lld experts", mesh->ep,
                 (long long)l->spec.model.moe_experts);
    if (mesh->zero > 0)
        log_info("zero      stage %d: %d data-parallel ranks shard one copy of the model's state", mesh->zero,
                 mesh->shard);
    log_info("step      %lld tokens = %lld x %lld sequences of %lld; %lld steps, %s tokens",
             (long long)r->train_batch_tokens, (long long)plan_micro_count(&l->spec),
             (long long)r->train_micro_batch, (long long)r->train_sequence_length, (long long)t->steps_total,
             text_count(a, spec_token_count(&l->spec)));
    log_info("data      %s tokens to train on, %s to validate",
             text_count(a, (double)data_sources_tokens(&l->train)), text_count(b, (double)l->val.tokens));
    data_sources_log(&l->train);
    log_info("memory    %s", text_bytes(b, (double)reserved));
    log_detail("memory    planned %zu bytes, measured %zu (%s); process %s", memory_peak(&t->memory),
               reserved, text_bytes(b, (double)reserved), text_bytes(c, footprint_rss()));
    if (t->memory.host.peak > 0) {
        log_info("host      %s: master weights and moments; %s per step each way",
                 text_bytes(a, (double)t->memory.host.size), text_bytes(b, offload_bytes(&t->rank.offload)));
        log_detail("host      planned %zu bytes, measured %zu", t->memory.host.peak, t->memory.host.size);
    }
    char parent[SPEC_TEXT];
    log_info("watch     tensorboard --logdir %s", text_parent(parent, sizeof parent, r->run_dir));
    log_info("compute   %s FLOPs per token (3 x forward)",
             text_count(a, plan_model_flops(&l->spec.model, r->train_sequence_length)));
}

/* Number of validation tokens per evaluation; 0: all. */
static int64_t eval_tokens(const struct loop *l, bool last)
{
    const struct run_spec *r = &l->spec.run;
    return last && r->eval_final_tokens >= 0 ? r->eval_final_tokens : r->eval_tokens;
}

static double eval_batch_tokens(const struct loop *l)
{
    return (double)l->trainer.acts.layout.n * mesh_dp_cp(&l->trainer.mesh.shape);
}

/* A batch of an evaluation as part of a step: forward is a third of the compute. */
static double eval_part_steps(const struct loop *l)
{
    return eval_batch_tokens(l) / (double)l->spec.run.train_batch_tokens / 3;
}

static int64_t eval_parts(const struct loop *l, bool last)
{
    const int64_t asked = eval_tokens(l, last);
    const int64_t tokens = asked > 0 && asked < l->val.tokens ? asked : l->val.tokens;
    return (int64_t)ceil((double)tokens / eval_batch_tokens(l));
}

/* Makes the records durable before the checkpoint is. */
static void flush_records(void *ctx)
{
    const struct loop *l = ctx;
    if (l->is_rank0) observe_flush(l->observe);
}

static status save(struct loop *l)
{
    if (l->saved_step == l->trainer.step) return STATUS_OK;
    /* Times are recorded here, too: a kill loses no more of them than of the steps. */
    if (l->is_rank0) observe_stages(l->observe, clock_s() - l->start_s);
    const double begin = clock_s();
    progress_begin(WORK_SAVE, "saving", 0);
    status st = STATUS_OK;
    if (l->is_rank0) st = checkpoint_drop_later(l->spec.run.run_dir);
    if (st == STATUS_OK) st = save_begin(&l->trainer, l->spec.run.run_dir, flush_records, l);
    progress_end();
    TRY(st);
    ledger_add(l->ledger, LEDGER_CHECKPOINT, clock_s() - begin);
    ledger_saved(l->ledger, l->trainer.step);
    l->saved_step = l->trainer.step;
    return STATUS_OK;
}

/* A save of ckpt.every. */
static status save_due(struct loop *l)
{
    bool skip;
    TRY(save_skips(&l->trainer, &skip));
    return skip ? STATUS_OK : save(l);
}

/* Saves, and returns when the checkpoint is on disk. */
static status save_and_wait(struct loop *l)
{
    TRY(save(l));
    const double begin = clock_s();
    progress_begin(WORK_SAVE, "saving", 0);
    status st = save_wait_all_ranks(&l->trainer);
    progress_end();
    ledger_add(l->ledger, LEDGER_CHECKPOINT, clock_s() - begin);
    return st;
}

/* Saves, and returns STATUS_STOPPED with the reason why the run ends. `dropped` says what was not finished; "":
 * nothing. */
static status save_and_stop(struct loop *l, const struct loop_options *o, const char *dropped)
{
    const struct trainer *t = &l->trainer;
    TRY(save_and_wait(l));
    return FAIL(STATUS_STOPPED, "%s: saved at step %lld of %lld; %s%s",
                l->stop.number ? signals_name(l->stop.number) : "train.max_minutes", (long long)t->step,
                (long long)t->steps_total, dropped, o->again);
}

static status evaluate(struct loop *l, const struct loop_options *o)
{
    struct trainer *t = &l->trainer;
    if (l->val.tokens == 0 || l->eval_step == t->step) return STATUS_OK;
    const bool last = t->step >= t->steps_total;
    const double begin = clock_s();
    stop_begin(&l->stop, l->predicted_s * eval_part_steps(l), eval_parts(l, last));
    progress_begin(WORK_EVAL, "evaluating", eval_parts(l, last));
    status st = train_eval(t, &l->val, eval_tokens(l, last), &l->eval);
    progress_end();
    if (st == STATUS_STOPPED) return save_and_stop(l, o, "its evaluation is still to be made; ");
    TRY(st);
    l->eval_step = t->step;
    if (!l->is_rank0) return STATUS_OK;
    struct metrics m = METRICS_NONE;
    m.step = t->step;
    m.tokens = t->tokens;
    m.val_loss = l->eval.loss;
    m.val_accuracy = l->eval.accuracy;
    m.val_bpb = l->eval.bits_per_byte;
    observe_metrics(l->observe, &m);
    if (o->hooks.sample) {
        SCOPE("train.sample", t->step);
        progress_begin(WORK_SAMPLE, "sampling", 0);
        st = o->hooks.sample(o->hooks.ctx, t, l->observe);
        progress_end();
        if (st != STATUS_OK) log_warn("no sample: %s", status_message());
        TRY(fp8_run_forget(t));
    }
    ledger_add(l->ledger, LEDGER_EVALUATION, clock_s() - begin);
    return STATUS_OK;
}

/* Time that a step took. */
struct step_cost {
    double seconds, waited; /* waited: time spent waiting for the batch */
};

static void record_step(struct loop *l, const struct step_result *s, const struct step_cost *cost)
{
    const struct trainer *t = &l->trainer;
    if (t->step - l->start_step > WAITING_AFTER)
        waiting_step(&l->waiting, cost->seconds, cost->waited, &l->spec.run);
    forecast_step(&l->forecast, cost->seconds - cost->waited);
    if (l->is_rank0) epochs_log(&l->epochs, &l->train, t);
    const double tokens = (double)s->tokens;
    l->loss = s->loss;
    l->tokens_per_s = tokens / cost->seconds;
    alerts_note(&l->alerts, t->step, s, cost->seconds);
    if (!l->is_rank0) return;
    const bool measured = !isnan(s->fp8_saturated);
    if (t->step % l->spec.run.log_every != 0 && t->step != t->steps_total && !measured) return;
    struct metrics m = METRICS_NONE;
    m.step = t->step;
    m.tokens = t->tokens;
    m.loss = s->loss;
    m.mtp_loss = s->mtp_loss;
    m.halt_loss = s->halt_loss;
    m.z_loss = s->z_loss;
    m.lr = s->lr;
    m.grad_norm = s->grad_norm;
    m.grad_norm_clipped = s->grad_norm_clipped;
    if (model_ffn_count(&l->spec.model, FFN_MOE) > 0)
        m.aux_loss = s->aux_loss, m.load_max = s->load_max, m.load_min = s->load_min;
    m.moe_dropped = s->moe_dropped;
    m.tokens_per_s = l->tokens_per_s;
    m.step_s = cost->seconds;
    m.bubble = s->bubble;
    m.fp8_saturated = s->fp8_saturated;
    m.fp8_headroom_x = s->fp8_headroom_x;
    m.fp8_headroom_dy = s->fp8_headroom_dy;
    m.ckpt_stall_ms = l->alerts.save_ms = save_stall_ms(&l->trainer);
    m.ckpt_skipped = save_skipped(&l->trainer);
    m.data_wait_s = cost->waited;
    if (l->spec.run.data_packing != PACKING_STREAM) m.targets = (double)s->targets;
    if (l->spec.run.data_packing == PACKING_BEST_FIT || l->spec.run.data_packing == PACKING_PAD)
        m.padding = (double)s->padding / tokens;
    m.flops_per_s = l->tokens_per_s * plan_model_flops(&l->spec.model, l->spec.run.train_sequence_length);
    m.mfu = mfu_of(m.flops_per_s, l->peak);
    m.mfu_full =
        mfu_of(l->tokens_per_s * mfu_flops_full(&l->spec.model, l->spec.run.train_sequence_length), l->peak);
    m.rss_bytes = footprint_rss();
    host_record_metrics(l->host, &m);
    observe_metrics(l->observe, &m);
}

/* Gets a step's batch and computes the step. STATUS_STOPPED: the step was dropped. */
static status one_step(struct loop *l)
{
    struct trainer *t = &l->trainer;
    const struct step_batch *b;
    struct step_result s;
    const int64_t micros = t->feed.shape.micro_count; /* of this rank */
    double begin = clock_s(), waited = loader_wait_s(l->loader);
    const double others = comm_wait_s(l->comm);
    atomic_store(&l->step_now, t->step + 1);
    stop_begin(&l->stop, l->predicted_s / (double)micros, micros);
    progress_begin(WORK_STEP, "step", micros);
    alerts_step_begin(&l->alerts);
    status st = loader_next(l->loader, &b);
    alert_watch_loads(l->alerts.watch, false);
    if (st == STATUS_OK) st = train_step(t, b, &s);
    progress_end();
    TRY(st);
    progress_step(t->step);
    const struct step_cost cost = {clock_s() - begin, loader_wait_s(l->loader) - waited};
    const double wait_s = comm_wait_s(l->comm) - others;
    l->stop.mine = alerts_step_end(&l->alerts, cost.seconds, wait_s, cost.waited);
    record_step(l, &s, &cost);
    ledger_step(l->ledger, t->step, cost.seconds, cost.waited, wait_s);
    l->last = s;
    return STATUS_OK;
}

/* Makes up for an evaluation that was due at the checkpoint's step but was dropped when the run was stopped. */
static status make_up_evaluation(struct loop *l, const struct loop_options *o)
{
    const int64_t every = l->spec.run.eval_every, step = l->trainer.step;
    if (step == 0 || step >= l->trainer.steps_total || every == 0 || step % every != 0) return STATUS_OK;
    int64_t seen = l->is_rank0 ? observe_eval_step(l->observe) : 0;
    TRY(comm_broadcast(l->comm, "last evaluation", &seen, sizeof seen, NULL));
    return seen == step ? STATUS_OK : evaluate(l, o);
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

static status start_loader(struct loop *l)
{
    struct trainer *t = &l->trainer;
    struct loader_config loader;
    TRY(data_sources_loader(&l->spec, &t->mesh, &t->dev, &loader));
    loader.skips = &t->lineage.skips;
    loader_close(l->loader);
    l->loader = NULL;
    TRY(loader_open(&l->loader, l->train.samples, &loader, t->step));
    l->start_step = t->step;
    return STATUS_OK;
}

/* train.on_spike=rewind: resets weights, data and records to an earlier checkpoint. */
static status rewind_to_checkpoint(struct loop *l)
{
    struct trainer *t = &l->trainer;
    const struct lineage_order *order = &l->again.order;
    const char *dir = l->spec.run.run_dir;
    char path[SPEC_TEXT + 64];
    bool found;
    TRY(save_join_local(t));
    TRY(checkpoint_at(dir, order->rewind, path, sizeof path));
    TRY(trainer_restore(t, path, &found));
    TRY(same_step(l));
    TRY(rewind_apply(&(struct rewind){order->rewind, true}, t, order, l->is_rank0));
    if (l->is_rank0) {
        TRY(checkpoint_go_back(dir, order->rewind));
        ledger_back(l->ledger, t->step);
        observe_close(l->observe);
        l->observe = NULL;
        TRY(observe_open(&l->observe, dir, t->step, l->spec.run.log_every));
    }
    l->saved_step = l->eval_step = -1;
    TRY(memory_copy_forget(l->copy));
    TRY(start_loader(l));
    return save(l);
}

static status train_steps(struct loop *l, const struct loop_options *o)
{
    struct trainer *t = &l->trainer;
    const struct run_spec *r = &l->spec.run;
    char dropped[96];
    if (l->rewind.forks) { /* save now, so that a checkpoint records the skipped data */
        l->saved_step = -1;
        TRY(save(l));
    }
    TRY(make_up_evaluation(l, o));
    while (t->step < t->steps_total) {
        device_times_before(l->trainer.step - l->start_step);
        status st = one_step(l); /* loader_next, train_step, record_step */
        if (st == STATUS_STOPPED) {
            snprintf(dropped, sizeof dropped, "step %lld was dropped after %lld of %lld micro-batches; ",
                     (long long)t->step + 1, (long long)l->stop.done, (long long)l->stop.parts);
            return save_and_stop(l, o, dropped);
        }
        TRY(st);
        TRY(spike_act(t, &l->last, &l->again));
        if (l->again.order.rewinds) {
            TRY(rewind_to_checkpoint(l));
            continue;
        }
        TRY(save_poll(t));
        device_times_after(l->trainer.step - l->start_step);
        TRY(stop_look(&l->stop));
        rank_times_step(&l->ranks, &l->stop, l->observe, t->step);
        alerts_step(&l->alerts, &l->stop);
        if (stop_asked(&l->stop) && t->step < t->steps_total) return save_and_stop(l, o, "");
        if (r->eval_every && t->step % r->eval_every == 0) TRY(evaluate(l, o));
        if (r->ckpt_every && t->step % r->ckpt_every == 0) TRY(save_due(l));
        TRY(memory_copy_step(l->copy));
    }
    TRY(evaluate(l, o));
    return save_and_wait(l);
}

static void finish(struct loop *l, const struct loop_options *o, status st)
{
    const char *reason = st == STATUS_OK ? "finished" : status_message();
    char keep[1024];
    snprintf(keep, sizeof keep, "%s", reason);
    double seconds = clock_s() - l->start_s;
    if (save_end(&l->trainer) != STATUS_OK) log_warn("%s", status_message()); /* the last save failed */
    verify_end(&l->trainer);
    /* If --resume was refused for a config change, keep the earlier exit record. */
    const bool refused = st == STATUS_CONFIG && o->resume && l->observe == NULL;
    if (l->observe) {
        if (l->trainer.step > l->start_step) {
            rank_times_write(&l->ranks, l->observe, l->trainer.step);
            observe_stages(l->observe, seconds);
            if (st == STATUS_OK || st == STATUS_STOPPED) forecast_log(&l->forecast, &l->trainer, l->observe);
        }
        pipeline_log(&l->trainer.pipeline);
        verify_log(&l->trainer, seconds);
        footprint_facts(&l->trainer, l->observe);
        epochs_facts(&l->epochs, &l->train, &l->trainer, l->observe);
        if (o->hooks.finish) o->hooks.finish(o->hooks.ctx, l->observe, &l->eval);
        observe_flush(l->observe);
        observe_close(l->observe);
        l->observe = NULL;
    }
    if (l->log) { /* this process holds the lock of the run directory */
        if (st != STATUS_OK) log_line_file(st == STATUS_STOPPED ? LOG_INFO : LOG_ERROR, "%s", keep);
    }
    alerts_close(&l->alerts, st, keep, &l->trainer, l->saved_step, seconds, l->trainer.step - l->start_step);
    if (l->log && !refused) {
        if (env_write_exit(l->spec.run.run_dir, (int)st, keep, l->trainer.step) != STATUS_OK)
            log_warn("%s", status_message());
        if (report_write(l->spec.run.run_dir, NULL) != STATUS_OK) log_warn("no report: %s", status_message());
    }
    ledger_close(l->ledger, l->trainer.step, (int)st);
    if (st != STATUS_OK) status_fail(st, __FILE__, __LINE__, "%s", keep);
}

static void close_all(struct loop *l)
{
    loader_close(l->loader); /* before the device: its memory may be pinned */
    memory_copy_close(l->copy);
    trainer_close(&l->trainer);
    data_sources_close(&l->train);
    shard_set_close(&l->val);
    log_file_set(NULL);
    check_file_set("");
    if (l->log) fclose(l->log);
    runlock_release(&l->lock);
}

/* Opens the records that rank 0 writes about the run. */
static status open_records(struct loop *l)
{
    const struct trainer *t = &l->trainer;
    const char *dir = l->spec.run.run_dir;
    TRY(trainer_write_config(&l->spec, dir));
    struct env_source sources[SOURCES_MAX];
    const char *tokenizer = l->spec.run.data_tokenizer;
    if (tokenizer[0] == 0) tokenizer = l->train.sets[0].tokenizer_dir;
    data_sources_describe(&l->train, sources);
    TRY(env_write(dir,
                  &(struct env_run){.device = t->dev.kind == DEV_CPU ? "cpu" : t->dev.name,
                                    .isa = t->ops.name,
                                    .precision = precision_name((enum precision)l->spec.run.train_precision),
                                    .threads = parallel_threads(),
                                    .ranks = l->comm ? comm_ranks(l->comm) : 1,
                                    .resumed = t->step > 0,
                                    .data = t->data,
                                    .parameters = t->decoder.params.param_count,
                                    .sources = sources,
                                    .source_count = l->train.sources->count,
                                    .val = l->spec.run.data_val,
                                    .val_tokens = l->val.tokens,
                                    .tokenizer = tokenizer,
                                    .tokenizer_sha256 = l->train.sets[0].tokenizer_hash,
                                    .vocab_size = data_sources_vocab_size(&l->train)}));
    ledger_open(&l->ledger, dir, l->began, t->step);
    TRY(observe_open(&l->observe, dir, t->step, l->spec.run.log_every));
    const struct memory_copy_start copy = memory_copy_start(l->copy);
    if (t->step > 0) observe_fact(l->observe, "resume_seconds", l->restore_s);
    if (copy.wanted) observe_fact(l->observe, "resume_memory", copy.used);
    return STATUS_OK;
}

static status open_all(struct loop *l, const struct loop_options *o)
{
    struct trainer *t = &l->trainer;
    char bug[SPEC_TEXT + 32];
    TRY(memory_copy_check(&l->spec.run));
    TRY(open_data(l, o->accept_data));
    TRY(verify_data(l));
    TRY(data_sources_mix(&l->train, &l->spec));
    TRY(trainer_open_rank(t, &l->spec, o->isa, l->comm));
    TRY(data_identity_of(&l->train, &l->val, &l->spec.run, &t->data));
    t->accept_data = o->accept_data;
    t->pause = (struct trainer_pause){stop_between, &l->stop};
    l->spec = t->spec; /* train.micro_batch=auto is resolved now */
    if (l->is_rank0) TRY(open_run_dir(l, o));
    if (l->is_rank0) comm_flight_recorder_dir(l->comm, l->spec.run.run_dir);
    TRY(comm_barrier(l->comm, "run directory"));
    snprintf(bug, sizeof bug, "%s/bug.txt", l->spec.run.run_dir);
    check_file_set(bug);
    TRY(rewind_plan(&l->rewind, l->spec.run.run_dir, &o->lineage, o->resume, o->resume_step));
    const double begin = clock_s();
    TRY(memory_copy_open(&l->copy, t));
    TRY(init_or_resume(l, o));
    TRY(same_step(l));
    l->restore_s = clock_s() - begin;
    TRY(memory_copy_begin(l->copy));
    TRY(save_prepare(t));
    TRY(rewind_apply(&l->rewind, t, &o->lineage, l->is_rank0));
    if (l->is_rank0 && o->resume && l->rewind.go_to >= 0)
        TRY(checkpoint_go_back(l->spec.run.run_dir, l->rewind.go_to));
    const struct run_spec *r = &l->spec.run;
    if (t->step >= t->steps_total)
        log_info("all %lld steps are done; raise train.steps to continue", (long long)t->steps_total);
    TRY(start_loader(l));
    l->peak = mfu_peak(t->dev.name, (enum precision)r->train_precision);
    return l->is_rank0 ? open_records(l) : STATUS_OK;
}

/* Called on the display thread: answers the first signal. */
static void answer_signal(void *ctx)
{
    struct loop *l = ctx;
    const int number = signals_pending();
    if (number == 0 || l->answered) return;
    l->answered = true;
    stop_answer(number, atomic_load(&l->step_now), atomic_load(&l->drops));
}

enum { LONG_STEP_S = 60 };

static const char *step_time(char buf[32], double seconds)
{
    if (seconds >= 10) return text_duration(buf, seconds);
    snprintf(buf, 32, seconds < 1 ? "%.3g ms" : "%.2g s", seconds < 1 ? 1000 * seconds : seconds);
    return buf;
}

static void say_times(const struct loop *l, const struct progress_run *p, bool measured)
{
    const struct run_spec *r = &l->spec.run;
    const double step = l->predicted_s, steps = (double)(p->steps_total - p->step),
                 evals = r->eval_every > 0 ? floor(steps / (double)r->eval_every) : 0;
    char a[32], b[32];
    if (isnan(step) || steps <= 0) return;
    const double eval = step * p->eval_part_steps;
    log_info("time      about %s per step, %s for %lld steps%s: %s", step_time(a, step),
             text_duration(b, steps * step + evals * eval * (double)p->eval_parts +
                                  eval * (double)p->eval_parts_last),
             (long long)steps, p->eval_parts ? " and evaluations" : "", measured ? "measured" : "predicted");
    if (step < LONG_STEP_S) return;
    char waits[96] = "";
    if (trainer_pauses(&l->trainer))
        snprintf(waits, sizeof waits, "; Ctrl-C waits for one micro-batch: train.micro_batch (%lld)",
                 (long long)r->train_micro_batch);
    log_warn("a step takes minutes: lower train.batch_tokens (%lld) or the model's size (model.preset, "
             "model.layer_count, model.hidden_size)%s",
             (long long)r->train_batch_tokens, waits);
}

/* Sets up before the first step: the predicted step time, how often ranks check for signals, and the progress bar. */
static status look_ahead(struct loop *l, const struct loop_options *o)
{
    const struct run_spec *r = &l->spec.run;
    const struct trainer *t = &l->trainer;
    const bool evaluates = l->val.tokens > 0;
    atomic_store(&l->drops, trainer_pauses(t));
    const bool measured = o->step_s > 0;
    if (l->is_rank0) l->predicted_s = measured ? o->step_s : forecast_predict(t);
    TRY(comm_broadcast(l->comm, "forecast", &l->predicted_s, sizeof l->predicted_s, NULL));
    if (!l->is_rank0) return STATUS_OK;
    const struct progress_run p = {.step = t->step,
                                   .steps_total = t->steps_total,
                                   .eval_every = r->eval_every,
                                   .ckpt_every = r->ckpt_every,
                                   .eval_parts = evaluates ? eval_parts(l, false) : 0,
                                   .eval_parts_last = evaluates ? eval_parts(l, true) : 0,
                                   .layers = trainer_pauses(t) ? l->spec.model.layer_count : 0,
                                   .step_s = l->predicted_s,
                                   .eval_part_steps =
                                       measured ? o->eval_batch_s / o->step_s : eval_part_steps(l)};
    progress_run_set(&p);
    say_times(l, &p, measured);
    return STATUS_OK;
}

/* Opens the host's record. If that fails, the run continues without it. */
static void host_open(struct loop *l)
{
    const double every = l->spec.run.log_host_every;
    const int here = comm_job(l->comm).shares_memory ? comm_rank(l->comm) : comm_local_rank(l->comm);
    if (every <= 0 || here != 0) return;
    if (host_record_start(&l->host, l->spec.run.run_dir, every) != STATUS_OK)
        log_warn("%s", status_message());
}

/* Runs all steps, with trace and breakdown. */
static status run(struct loop *l, const struct loop_options *o)
{
    char path[SPEC_TEXT + 64];
    status st = STATUS_OK;
    const bool trace = o->trace && l->is_rank0;
    if (trace) {
        snprintf(path, sizeof path, "%s/trace", l->spec.run.run_dir);
        TRY(io_make_dirs(path));
        snprintf(path, sizeof path, "%s/trace/step-%08lld.json", l->spec.run.run_dir,
                 (long long)l->trainer.step);
        TRY(trace_start(path));
    }
    TRY(look_ahead(l, o));
    TRY(alerts_open(&l->alerts, &l->trainer, &l->stop)); /* before the first Xid */
    host_open(l);
    if (l->trainer.dev.kind == DEV_CPU && l->is_rank0) l->ranks.count = comm_ranks(l->comm);
    stages_start();
    if (trace) device_times_open(&l->trainer);
    l->start_s = l->stop.start_s = clock_s();
    st = train_steps(l, o);
    stages_stop();
    if (trace) {
        snprintf(path, sizeof path, "%s/trace/breakdown-%08lld.json", l->spec.run.run_dir,
                 (long long)l->start_step);
        device_times_close(&l->trainer, &l->breakdown, l->observe, path);
        trace_stop();
    }
    return st;
}

status loop_run(const struct spec *spec, const struct loop_options *o, struct loop_result *result)
{
    if (o->lineage.skip_from && spec->run.train_batch_schedule[0])
        return FAIL(STATUS_CONFIG,
                    "--skip leaves out batches, which train.batch_schedule makes of several sizes: "
                    "leave --skip away, or end the warm-up of the batch first");
    struct loop *l = calloc(1, sizeof *l);
    if (l == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the run's description");
    l->spec = *spec;
    l->lock = -1;
    l->comm = o->comm;
    l->is_rank0 = comm_rank(o->comm) == 0;
    l->eval = (struct eval_result){.loss = NAN, .accuracy = NAN, .bits_per_byte = NAN};
    l->loss = NAN;
    l->eval_step = l->saved_step = -1;
    parallel_threads_set((int)spec->run.machine_threads);
    signals_catch();
    l->start_s = clock_s();
    l->began = clock_wall_s();
    l->predicted_s = NAN;
    l->stop = (struct stop){.comm = l->comm, .limit_s = spec->run.train_max_minutes * 60};
    if (l->is_rank0) progress_start();
    progress_watch_set(answer_signal, l);
    progress_begin(WORK_OTHER, "preparing", 0);
    status st = open_all(l, o);
    progress_end();
    if (st == STATUS_OK) {
        if (l->is_rank0) print_banner(l);
        st = run(l, o);
        if (st == STATUS_NUMERIC) st = restore_advise(&l->spec.run, st);
    }
    progress_stop();
    host_record_stop(l->host);
    finish(l, o, st);
    if (l->breakdown.steps) breakdown_print(stdout, &l->breakdown, 0);
    *result = (struct loop_result){
        .step = l->trainer.step, .loss = l->loss, .eval = l->eval, .tokens_per_s = l->tokens_per_s};
    close_all(l);
    free(l);
    return st;
}
