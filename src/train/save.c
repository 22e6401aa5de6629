#include "train/save.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/scope.h"
#include "base/text.h"
#include "train/algorithm_record.h"
#include "train/ckpt_manifest.h"
#include "train/signals.h"
#include "train/state.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

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
    if (meta && t->lineage.events) json_object_set_new(meta, "lineage", lineage_json(&t->lineage));
    free(config);
    return meta;
}

static bool no_signal(void)
{
    return signals_pending() == 0;
}

/* Says it once when a checkpoint is not sound, and again after sound ones. */
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

status trainer_save(struct trainer *t, const char *run_dir)
{
    SCOPE("train.save", t->step);
    struct state state;
    json_t *meta = NULL, *algorithms = NULL;
    TRY(state_open(&state, t, STATE_SAVE));
    status st = state_check(&state);
    if (st == STATUS_OK) {
        char *mine = choose_algorithms(t->exec.stream);
        st = algorithm_record_gather(t->mesh.world, mine, &algorithms);
        free(mine);
    }
    if (st == STATUS_OK && comm_rank(t->mesh.world) > 0) st = state_follow(&state);
    if (st == STATUS_OK && comm_rank(t->mesh.world) == 0) {
        meta = checkpoint_metadata(t, algorithms);
        st = meta ? checkpoint_save(run_dir, t->step, state.items, state.count, meta,
                                    (int)t->spec.run.ckpt_keep,
                                    t->spec.run.ckpt_on_full == ON_FULL_PAUSE ? no_signal : NULL)
                  : FAIL(STATUS_FIT, "no memory for the checkpoint's description");
        if (st == STATUS_OK) tell_health(t, run_dir);
    }
    json_decref(algorithms);
    json_decref(meta);
    state_close(&state);
    return st;
}

/* ---- while training goes on ---- */

struct save {
    struct arena memory; /* of the copies */
    bool refused;        /* they do not fit; said */
    bool running;        /* the thread is to be joined */
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    bool captured, done;
    status st; /* of the last save, until save_end has returned it */
    char message[1024];
    /* Of the save being written: constant while the thread runs. */
    struct state state;
    json_t *meta;
    char run_dir[SPEC_TEXT];
    int64_t step;
    save_flush_fn *flush;
    void *flush_ctx;
    double stall_s; /* the trainer's; NaN: no save since it was asked */
};

enum { WAIT_SAID_S = 1 }; /* a shorter wait for the save before is not worth a line */

static void stalled(struct save *s, double begin)
{
    s->stall_s = (isnan(s->stall_s) ? 0 : s->stall_s) + clock_s() - begin;
}

/* The writer has few threads: the disk is slower than they are, and training needs the others. */
static int writer_threads(void)
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

static status capture(struct save *s)
{
    status st = state_capture(&s->state);
    if (st == STATUS_OK) st = state_check(&s->state);
    return st;
}

static status write_out(struct save *s)
{
    const struct run_spec *r = &s->state.t->spec.run;
    const double begin = clock_s();
    if (s->flush) s->flush(s->flush_ctx);
    TRY(checkpoint_save(s->run_dir, s->step, s->state.items, s->state.count, s->meta, (int)r->ckpt_keep,
                        r->ckpt_on_full == ON_FULL_PAUSE ? no_signal : NULL));
    say_rate(s, clock_s() - begin);
    return STATUS_OK;
}

static void *writer(void *ctx)
{
    struct save *s = ctx;
    parallel_threads_set(writer_threads());
    status st = capture(s);
    pthread_mutex_lock(&s->lock);
    s->captured = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (st == STATUS_OK) st = write_out(s);
    pthread_mutex_lock(&s->lock);
    s->st = st;
    if (st != STATUS_OK) snprintf(s->message, sizeof s->message, "%s", status_message());
    s->done = true;
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Host memory for the copies, once. False: they do not fit beside the run, which is said once. */
static bool has_memory(struct trainer *t)
{
    struct save *s = t->save;
    char a[32], b[32];
    if (s->memory.base || s->refused) return !s->refused;
    const size_t bytes = state_bytes(t);
    const double taken = (double)(t->dev.kind == DEV_CPU ? memory_peak(&t->memory) : t->memory.host.peak);
    s->refused = taken + (double)bytes > plan_host_bytes() ||
                 dev_pinned_arena(&t->dev, &s->memory, "checkpoint", bytes) != STATUS_OK;
    if (s->refused)
        log_warn("ckpt.async: a copy of the state, %s, does not fit in the host's %s beside the run: "
                 "training waits "
                 "while a checkpoint is written",
                 text_bytes(a, (double)bytes), text_bytes(b, plan_host_bytes()));
    return !s->refused;
}

static status open_save(struct trainer *t)
{
    if (t->save) return STATUS_OK;
    t->save = calloc(1, sizeof *t->save);
    if (t->save == NULL) return FAIL(STATUS_FIT, "no memory for the description of a save");
    t->save->stall_s = NAN;
    pthread_mutex_init(&t->save->lock, NULL);
    pthread_cond_init(&t->save->changed, NULL);
    return STATUS_OK;
}

static status start(struct trainer *t, const char *run_dir)
{
    struct save *s = t->save;
    json_t *algorithms = NULL;
    TRY(state_snapshot(&s->state, t, &s->memory));
    char *mine = choose_algorithms(t->exec.stream);
    status st = algorithm_record_gather(NULL, mine, &algorithms);
    free(mine);
    s->meta = st == STATUS_OK ? checkpoint_metadata(t, algorithms) : NULL;
    json_decref(algorithms);
    if (st == STATUS_OK && !s->meta) st = FAIL(STATUS_FIT, "no memory for the checkpoint's description");
    s->step = t->step;
    snprintf(s->run_dir, sizeof s->run_dir, "%s", run_dir);
    s->captured = s->done = false;
    if (st == STATUS_OK && pthread_create(&s->thread, NULL, writer, s) != 0)
        st = FAIL(STATUS_FIT, "no thread to write a checkpoint: free memory, or ckpt.async=false");
    s->running = st == STATUS_OK;
    if (st == STATUS_OK) return st;
    json_decref(s->meta);
    s->meta = NULL;
    state_close(&s->state);
    return st;
}

status save_begin(struct trainer *t, const char *run_dir, save_flush_fn *flush, void *ctx)
{
    SCOPE("train.save", t->step);
    const double begin = clock_s();
    TRY(open_save(t));
    struct save *s = t->save;
    TRY(save_end(t));
    const double waited = clock_s() - begin;
    if (waited > WAIT_SAID_S)
        log_warn(
            "the checkpoint of step %lld was still being written at step %lld: training waited %.1f s; raise "
            "ckpt.every, or write to a faster disk",
            (long long)s->step, (long long)t->step, waited);
    s->flush = flush, s->flush_ctx = ctx;
    status st;
    if (t->spec.run.ckpt_async && t->mesh.world == NULL && has_memory(t)) {
        st = start(t, run_dir);
        if (st == STATUS_OK) tell_health(t, run_dir);
    } else {
        if (flush) flush(ctx);
        st = trainer_save(t, run_dir);
    }
    stalled(s, begin);
    return st;
}

status save_captured(struct trainer *t)
{
    struct save *s = t->save;
    if (s == NULL || !s->running) return STATUS_OK;
    const double begin = clock_s();
    pthread_mutex_lock(&s->lock);
    const bool waits = !s->captured;
    while (!s->captured) pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    if (waits) stalled(s, begin);
    return STATUS_OK;
}

status save_look(struct trainer *t)
{
    struct save *s = t->save;
    if (s == NULL || !s->running) return STATUS_OK;
    pthread_mutex_lock(&s->lock);
    const bool done = s->done;
    pthread_mutex_unlock(&s->lock);
    return done ? save_end(t) : STATUS_OK;
}

status save_end(struct trainer *t)
{
    struct save *s = t->save;
    if (s == NULL || !s->running) return STATUS_OK;
    pthread_join(s->thread, NULL);
    s->running = false;
    json_decref(s->meta);
    s->meta = NULL;
    state_close(&s->state);
    return s->st == STATUS_OK ? STATUS_OK : FAIL(s->st, "%s", s->message);
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
    if (save_end(t) != STATUS_OK) log_warn("%s", status_message());
    arena_free(&t->save->memory);
    pthread_cond_destroy(&t->save->changed);
    pthread_mutex_destroy(&t->save->lock);
    free(t->save);
    t->save = NULL;
}
