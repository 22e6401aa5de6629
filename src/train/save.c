#include "train/save.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/scope.h"
#include "base/text.h"
#include "dev/copy_thread.h"
#include "train/algorithm_record.h"
#include "train/ckpt_manifest.h"
#include "train/signals.h"
#include "train/save_memory.h"
#include "train/save_parts.h"
#include "train/snapshot.h"
#include "train/state.h"
#include "train/verify.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static json_t *checkpoint_metadata(struct trainer *t, json_t *algorithms)
{
    char *config = spec_dump_text(&t->spec);
    json_t *meta = config ? json_pack("{s:I, s:I, s:s, s:b}", "step", (json_int_t)t->step, "tokens",
                                      (json_int_t)t->tokens, "config", config, "imported",
                                      t->decoder.params.grad == NULL)
                          : NULL;
    if (meta) json_object_update(meta, algorithms);
    if (meta && t->health.steps > 0) json_object_set_new(meta, "health", health_json(&t->health));
    if (meta && t->data) json_object_set(meta, "data", t->data);
    if (meta && t->spike.count > 0) json_object_set_new(meta, "spikes", spike_json(&t->spike));
    if (meta && t->lineage.events) json_object_set_new(meta, "lineage", lineage_json(&t->lineage));
    free(config);
    return meta;
}

status save_metadata(struct trainer *t, json_t **meta)
{
    json_t *algorithms = NULL;
    char *mine = choose_algorithms(t->exec.stream);
    status st = algorithm_record_gather(t->mesh.world, mine, &algorithms);
    free(mine);
    const bool lead = comm_rank(t->mesh.world) == 0;
    *meta = st == STATUS_OK && lead ? checkpoint_metadata(t, algorithms) : NULL;
    json_decref(algorithms);
    if (st == STATUS_OK && lead && *meta == NULL)
        st = FAIL(STATUS_OUT_OF_MEMORY, "no memory for the checkpoint's description");
    return st;
}

static bool no_signal(void)
{
    return signals_pending() == 0;
}

/* Warns that the checkpoint is not sound, unless the one before it was already unsound. */
static void tell_health(struct trainer *t, const char *run_dir)
{
    char why[HEALTH_WHY], stays[96] = "";
    int64_t step = -1;
    const bool sound = health_sound(&t->health, why), told = t->told_unsound;
    t->told_unsound = !sound;
    if (sound || told) return;
    if (checkpoint_newest_sound(run_dir, &step) == STATUS_OK && step >= 0)
        snprintf(stays, sizeof stays, "; that of step %lld is, and stays (--resume=%lld)", (long long)step,
                 (long long)step);
    log_warn("the checkpoint of step %lld is not sound: %s%s", (long long)t->step, why, stays);
}

/* What a save asks while the disk is full; NULL: it does not wait. */
static ckpt_may_wait_fn *may_wait(const struct trainer *t)
{
    return t->spec.run.ckpt_on_full == ON_FULL_PAUSE ? no_signal : NULL;
}

/* Writes the state of ranks that share memory, or of one. */
static status save_whole(struct trainer *t, struct state *state, const char *run_dir, const json_t *meta)
{
    if (comm_rank(t->mesh.world) > 0) return state_send_parts(state);
    return checkpoint_save(run_dir, t->step, state->items, state->count, meta, (int)t->spec.run.ckpt_keep,
                           may_wait(t));
}

/* Writes the state of ranks on several hosts. */
static status save_in_parts(struct trainer *t, struct state *state, const char *run_dir, const json_t *meta)
{
    struct save_parts parts;
    TRY(save_parts_begin(&parts, t, run_dir, may_wait(t)));
    const struct save_parts_args args = {run_dir, state_first_bad(state), meta};
    return save_parts_write(&parts, state, &args);
}

status trainer_save(struct trainer *t, const char *run_dir)
{
    SCOPE("train.save", t->step);
    struct state state;
    json_t *meta = NULL;
    TRY(state_open(&state, t, STATE_SAVE));
    status st = verify_copied(t);
    if (st == STATUS_OK) st = state_check(&state);
    if (st == STATUS_OK) st = save_metadata(t, &meta);
    if (st == STATUS_OK)
        st = state.in_parts ? save_in_parts(t, &state, run_dir, meta) : save_whole(t, &state, run_dir, meta);
    if (st == STATUS_OK && comm_rank(t->mesh.world) == 0) tell_health(t, run_dir);
    json_decref(meta);
    state_close(&state);
    return st;
}

/* ---- while training goes on ---- */

struct save {
    struct save_memory memory; /* where the copies of the state are */
    int64_t number;            /* number of asynchronous saves begun so far */
    bool
        pending; /* save_wait_all_ranks has not yet been called for the last of them; the same on all ranks */
    bool running; /* the writer thread is still to be joined */
    pthread_t thread;
    pthread_mutex_t lock; /* guards the next five fields */
    pthread_cond_t changed;
    bool awaited; /* training waits for the copy, or for the thread */
    bool captured, done;
    status st; /* of the last save, until save_join_local has returned it */
    char message[1024];
    /* The save being written; constant while the thread runs. */
    struct state state;
    bool in_parts; /* ranks on several hosts; as the next, until the next save */
    struct save_parts parts;
    json_t *meta;
    char run_dir[SPEC_TEXT];
    int64_t step;
    save_flush_fn *flush;
    void *flush_ctx;
    double stall_s;  /* seconds that training has waited; NaN: no save since the last save_stall_ms */
    int64_t skipped; /* saves since the last save_skipped */
};

enum { WAIT_SAID_S = 1 }; /* a shorter wait for the save before is not worth a line */

static void stalled(struct save *s, double begin)
{
    s->stall_s = (isnan(s->stall_s) ? 0 : s->stall_s) + clock_s() - begin;
}

int save_threads(void)
{
    const int quarter = parallel_threads() / 4;
    return quarter < 1 ? 1 : quarter > 4 ? 4 : quarter;
}

static void say_rate(const struct save *s, double seconds)
{
    char a[32], b[32];
    double bytes = 0;
    for (int i = 0; i < s->state.count; i++) bytes += (double)ckpt_manifest_item_bytes(&s->state.items[i]);
    log_detail("checkpoint of step %lld: %s in %.3f s, %s/s", (long long)s->step, text_bytes(a, bytes),
               seconds, text_bytes(b, bytes / seconds));
}

static const char *delay_ms(void)
{
    return getenv("INGOT_SAVE_DELAY_MS");
}

void save_delay(void)
{
    int64_t n;
    if (delay_ms() && text_to_int(delay_ms(), &n) && n > 0 && n < 10000) usleep((useconds_t)n * 1000);
}

/* For tests: with INGOT_SAVE_DELAY_MS the copy begins that long after training has begun to wait for it. So it is late
 * on any machine, and an optimizer that does not wait changes what is copied. */
static void copy_late(struct save *s)
{
    if (delay_ms() == NULL) return;
    pthread_mutex_lock(&s->lock);
    while (!s->awaited) pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    save_delay();
}

/* For tests: a file that INGOT_SAVE_HOLD names holds back a rank that writes. So its save lasts on any machine. */
static void hold(void)
{
    const char *path = getenv("INGOT_SAVE_HOLD");
    while (path && access(path, F_OK) == 0) usleep(10000);
}

/* Copies the state of a GPU. Training continues meanwhile; its next update waits for the copies (snapshot.h). */
static status copy_gpu(struct save *s)
{
    struct trainer *t = s->state.t;
    struct stream *side = snapshot_stream(t);
    save_delay();
    status st = dev_use(&t->dev);
    if (st == STATUS_OK) st = state_queue(&s->state, side);
    TRY(snapshot_queued(t, st));
    TRY(dev_sync(side));
    return state_join(&s->state);
}

static status copy_host(struct save *s)
{
    copy_late(s);
    return state_capture(&s->state);
}

/* Copies this rank's state. *first: its first tensor that is not finite (state_first_bad). */
static status capture(struct save *s, int64_t *first)
{
    *first = -1;
    TRY(s->state.t->snapshot ? copy_gpu(s) : copy_host(s));
    TRY(verify_copied(s->state.t));
    *first = state_first_bad(&s->state);
    return STATUS_OK;
}

/* Reports that this rank's copy is complete: the optimizer may change the state. */
static void tell_captured(struct save *s, int64_t first)
{
    if (s->memory.ranks.world) save_ranks_put(&s->memory.ranks, s->number, first);
    pthread_mutex_lock(&s->lock);
    s->captured = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static status write_whole(struct save *s)
{
    const struct trainer *t = s->state.t;
    return checkpoint_save(s->run_dir, s->step, s->state.items, s->state.count, s->meta,
                           (int)t->spec.run.ckpt_keep, may_wait(t));
}

static status write_part(struct save *s, int64_t first)
{
    const struct save_parts_args args = {s->run_dir, first, s->meta};
    return save_parts_write(&s->parts, &s->state, &args);
}

/* After the copy. `first`: the first tensor that is not finite, of this rank. */
static status write_out(struct save *s, int64_t first)
{
    const struct save_ranks *ranks = &s->memory.ranks;
    const bool lead = comm_rank(s->state.t->mesh.world) == 0;
    const double begin = clock_s();
    if (!s->state.in_parts) {
        if (!lead) return STATUS_OK;
        if (ranks->world) TRY(save_ranks_wait(ranks, s->number, &first));
        TRY(state_judge(&s->state, first));
    }
    hold();
    if (lead && s->flush) s->flush(s->flush_ctx);
    TRY(s->state.in_parts ? write_part(s, first) : write_whole(s));
    if (lead) say_rate(s, clock_s() - begin);
    return STATUS_OK;
}

static void *writer(void *ctx)
{
    struct save *s = ctx;
    parallel_threads_set(save_threads());
    int64_t first;
    status st = capture(s, &first);
    tell_captured(s, first);
    if (st == STATUS_OK) st = write_out(s, first);
    pthread_mutex_lock(&s->lock);
    s->st = st;
    if (st != STATUS_OK) snprintf(s->message, sizeof s->message, "%s", status_message());
    s->done = true;
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* *on: whether the next save is asynchronous; the same on all ranks. */
static status use_async_save(struct trainer *t, bool *on)
{
    struct save_memory *m = &t->save->memory;
    const bool gpu = t->dev.kind == DEV_CUDA;
    *on = t->spec.run.ckpt_async && (!gpu || m->pin != PIN_NONE);
    if (!*on) return STATUS_OK;
    TRY(gpu ? save_memory_ready(m) : save_memory_open(m, t));
    *on = !m->refused;
    return STATUS_OK;
}

static status open_save(struct trainer *t)
{
    if (t->save) return STATUS_OK;
    t->save = calloc(1, sizeof *t->save);
    if (t->save == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the description of a save");
    t->save->stall_s = NAN;
    pthread_mutex_init(&t->save->lock, NULL);
    pthread_cond_init(&t->save->changed, NULL);
    return STATUS_OK;
}

status save_prepare(struct trainer *t)
{
    const struct run_spec *r = &t->spec.run;
    if (comm_rank(t->mesh.world) > 0 && !comm_job(t->mesh.world).shares_memory)
        TRY(checkpoint_parts_reached(r->run_dir));
    const bool saves = r->ckpt_every > 0 && t->step / r->ckpt_every < (t->steps_total - 1) / r->ckpt_every;
    if (t->dev.kind != DEV_CUDA || (!(saves && r->ckpt_async) && r->ckpt_memory_every == 0)) return STATUS_OK;
    TRY(snapshot_open(t));
    if (!saves || !r->ckpt_async) return STATUS_OK;
    TRY(open_save(t));
    return save_memory_pin(&t->save->memory, t);
}

status save_stalled(struct trainer *t, double begin)
{
    TRY(open_save(t));
    stalled(t->save, begin);
    return STATUS_OK;
}

/* Frees what is of one save. */
static void end(struct save *s)
{
    json_decref(s->meta);
    s->meta = NULL;
    state_close(&s->state);
}

static status start(struct trainer *t, const char *run_dir)
{
    struct save *s = t->save;
    s->number++;
    TRY(state_snapshot(&s->state, t, &s->memory.arena, s->memory.ranks.copies));
    s->in_parts = s->state.in_parts;
    status st = save_metadata(t, &s->meta);
    if (st == STATUS_OK && s->in_parts) st = save_parts_begin(&s->parts, t, run_dir, may_wait(t));
    s->step = t->step;
    snprintf(s->run_dir, sizeof s->run_dir, "%s", run_dir);
    s->awaited = s->captured = s->done = false;
    if (st == STATUS_OK) snapshot_begin(t);
    if (st == STATUS_OK && pthread_create(&s->thread, NULL, writer, s) != 0) {
        st = FAIL(STATUS_OUT_OF_MEMORY, "no thread to write a checkpoint: free memory, or ckpt.async=false");
        st = snapshot_queued(t, st);
    }
    s->running = s->pending = st == STATUS_OK;
    if (st != STATUS_OK) end(s);
    return st;
}

status save_begin(struct trainer *t, const char *run_dir, save_flush_fn *flush, void *ctx)
{
    SCOPE("train.save", t->step);
    const double begin = clock_s();
    TRY(open_save(t));
    struct save *s = t->save;
    TRY(save_wait_all_ranks(t));
    const double waited = clock_s() - begin;
    if (waited > WAIT_SAID_S && comm_rank(t->mesh.world) == 0)
        log_warn(
            "the checkpoint of step %lld was still being written at step %lld: training waited %.1f s; raise "
            "ckpt.every, write to a faster disk, or take ckpt.on_busy=skip",
            (long long)s->step, (long long)t->step, waited);
    s->flush = flush, s->flush_ctx = ctx;
    bool on;
    status st = use_async_save(t, &on);
    if (st == STATUS_OK && on) {
        st = start(t, run_dir);
        if (st == STATUS_OK && comm_rank(t->mesh.world) == 0) tell_health(t, run_dir);
    } else if (st == STATUS_OK) {
        if (flush) flush(ctx);
        st = trainer_save(t, run_dir);
    }
    stalled(s, begin);
    return st;
}

/* Collective. Whether the writer thread of any rank still runs. */
static status is_busy(struct trainer *t, bool *busy)
{
    struct save *s = t->save;
    int32_t all[COMM_RANKS_MAX];
    *busy = false;
    if (s == NULL || !s->pending) return STATUS_OK;
    pthread_mutex_lock(&s->lock);
    const int32_t mine = s->running && !s->done;
    pthread_mutex_unlock(&s->lock);
    TRY(comm_all_gather(t->mesh.world, "a save that is being written", &mine, all, sizeof mine, NULL));
    for (int r = 0; r < comm_ranks(t->mesh.world); r++) *busy = *busy || all[r];
    return STATUS_OK;
}

status save_skips(struct trainer *t, bool *skip)
{
    const double begin = clock_s();
    *skip = false;
    if (t->spec.run.ckpt_on_busy != ON_BUSY_SKIP || t->step >= t->steps_total) return STATUS_OK;
    TRY(is_busy(t, skip));
    if (!*skip) return STATUS_OK;
    t->save->skipped++;
    stalled(t->save, begin);
    if (comm_rank(t->mesh.world) == 0)
        log_info("skipped   the save of step %lld: that of step %lld is still being written (ckpt.on_busy)",
                 (long long)t->step, (long long)t->save->step);
    return STATUS_OK;
}

double save_skipped(struct trainer *t)
{
    const double count = t->save && t->save->skipped > 0 ? (double)t->save->skipped : NAN;
    if (t->save) t->save->skipped = 0;
    return count;
}

status save_wait_copies_queued(struct trainer *t)
{
    const double begin = clock_s();
    return snapshot_ready(t) ? save_stalled(t, begin) : STATUS_OK;
}

/* The caller holds the lock. */
static void tell_awaited(struct save *s)
{
    s->awaited = true;
    pthread_cond_broadcast(&s->changed);
}

status save_wait_before_update(struct trainer *t)
{
    struct save *s = t->save;
    TRY(save_wait_copies_queued(t));
    if (t->snapshot) return snapshot_hold(t);
    if (s == NULL || !s->running) return STATUS_OK;
    const double begin = clock_s();
    pthread_mutex_lock(&s->lock);
    const bool waits = !s->captured;
    tell_awaited(s);
    while (!s->captured) pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    if (waits) stalled(s, begin);
    return STATUS_OK;
}

status save_account_stall(struct trainer *t)
{
    bool beside;
    double seconds;
    TRY(snapshot_stall(t, &beside, &seconds));
    return beside ? save_stalled(t, clock_s() - seconds) : STATUS_OK;
}

status save_poll(struct trainer *t)
{
    struct save *s = t->save;
    if (s == NULL || !s->running) return STATUS_OK;
    pthread_mutex_lock(&s->lock);
    const bool done = s->done;
    pthread_mutex_unlock(&s->lock);
    return done ? save_join_local(t) : STATUS_OK;
}

status save_join_local(struct trainer *t)
{
    struct save *s = t->save;
    if (s == NULL || !s->running) return STATUS_OK;
    pthread_mutex_lock(&s->lock);
    tell_awaited(s);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    s->running = false;
    end(s);
    return s->st == STATUS_OK ? STATUS_OK : FAIL(s->st, "%s", s->message);
}

status save_wait_all_ranks(struct trainer *t)
{
    struct save *s = t->save;
    if (s == NULL || !s->pending) return STATUS_OK;
    const status mine = save_join_local(t);
    int32_t all[COMM_RANKS_MAX];
    s->pending = false;
    TRY(mine); /* returning the error aborts the other ranks' waits */
    const int32_t st = (int32_t)mine;
    return comm_all_gather(t->mesh.world, "end of a save", &st, all, sizeof st, NULL);
}

status save_end(struct trainer *t)
{
    struct save *s = t->save;
    TRY(save_join_local(t));
    /* Pending, though this rank's part may be written for long; where that failed there is nothing to commit. */
    if (s && s->pending && s->in_parts && s->st == STATUS_OK && comm_rank(t->mesh.world) > 0)
        save_parts_settle(&s->parts.begun, t->mesh.world, s->run_dir);
    return STATUS_OK;
}

double save_stall_ms(struct trainer *t)
{
    const double ms = t->save ? t->save->stall_s * 1000 : NAN;
    if (t->save) t->save->stall_s = NAN;
    return ms;
}

void save_close(struct trainer *t)
{
    if (t->save == NULL) return;
    if (save_join_local(t) != STATUS_OK) log_warn("%s", status_message());
    save_memory_close(&t->save->memory);
    pthread_cond_destroy(&t->save->changed);
    pthread_mutex_destroy(&t->save->lock);
    free(t->save);
    t->save = NULL;
}
