/* ingot eval --watch: a second process judges the checkpoints of a run while it trains. */
#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "cli/cmd_eval.h"
#include "observe/evals.h"
#include "observe/observe.h"
#include "observe/runs.h"
#include "train/restore.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { POLL_MS = 200, BEGIN_S = 60 }; /* BEGIN_S: how long a run may take to begin */

struct watch {
    const struct eval_tasks *options;
    struct eval_session *session;
    int64_t after;  /* the last checkpoint that was looked at; -1: none */
    int64_t stride; /* steps that it divides are due; 0: none but the last; -1: not known yet */
};
struct checkpoint_at {
    int64_t step; /* -1: none */
    char path[1200];
};

static bool is_recorded(const struct watch *w, int64_t step)
{
    bool all = true;
    for (int i = 0; i < eval_session_count(w->session); i++)
        all = all && evals_have(w->options->run, step, eval_session_name(w->session, i),
                                eval_session_file(w->session, i));
    return all;
}

/* ckpt.every is what the checkpoint's config says. */
static status find_stride(struct watch *w, const char *path)
{
    struct spec spec;
    if (w->stride >= 0) return STATUS_OK;
    TRY(restore_spec(&spec, path,
                     &(struct restore_options){.override_count = w->options->override_count,
                                               .overrides = w->options->overrides}));
    w->stride = w->options->every > 1 ? w->options->every * spec.run.ckpt_every : 1;
    return STATUS_OK;
}

/* The first checkpoint after w->after that is due; the newest is, once nobody trains. *any: there are checkpoints. */
static status next_checkpoint(struct watch *w, bool running, struct checkpoint_at *next, bool *any)
{
    char dir[1100];
    struct io_list list;
    next->step = -1;
    *any = false;
    snprintf(dir, sizeof dir, "%.1000s/ckpt", w->options->run);
    TRY(io_list(dir, &list));
    status st = STATUS_OK;
    for (int i = 0; i < list.count && st == STATUS_OK && next->step < 0; i++) {
        if (strncmp(list.names[i], "step-", 5) != 0) continue;
        *any = true;
        const int64_t step = strtoll(list.names[i] + 5, NULL, 10);
        const bool last = i + 1 == list.count || strncmp(list.names[i + 1], "step-", 5) != 0;
        snprintf(next->path, sizeof next->path, "%s/%s", dir, list.names[i]);
        if (step <= w->after) continue;
        st = find_stride(w, next->path);
        const bool due = w->stride > 0 && step % w->stride == 0;
        if (due || (last && !running)) next->step = step;
    }
    io_list_free(&list);
    return st;
}

static status record(const struct watch *w, int64_t step)
{
    for (int i = 0; i < eval_session_count(w->session); i++) {
        json_t *o = eval_session_result(w->session, i);
        json_object_set_new(o, "kind", json_string("eval"));
        json_object_set_new(o, "step", json_integer(step));
        json_object_set_new(o, "time", json_real(clock_wall_s()));
        status st = evals_append(w->options->run, o);
        json_decref(o);
        TRY(st);
    }
    eval_session_print(w->session, step);
    return STATUS_OK;
}

/* The run deletes old checkpoints, maybe this one while it is read. */
static status judge(struct watch *w, const struct checkpoint_at *at)
{
    int64_t step;
    bool there;
    w->after = at->step;
    if (is_recorded(w, at->step)) return STATUS_OK;
    status st = eval_session_judge(w->session, at->path, &step);
    if (st == STATUS_OK) return record(w, step);
    TRY(io_exists(at->path, &there));
    if (there) return st;
    log_warn("checkpoint %lld was deleted before it was read: ckpt.keep is %s", (long long)at->step,
             "too small for the time that an evaluation takes; --every N leaves some out");
    return STATUS_OK;
}

static status watch_run(struct watch *w)
{
    const double begun = clock_s();
    if (!run_is_locked(w->options->run)) log_info("watching %s: nobody trains there now", w->options->run);
    for (bool any = false;;) {
        struct checkpoint_at next = {.step = -1};
        const bool running = run_is_locked(w->options->run); /* before the look: what it saves last is seen */
        status st = next_checkpoint(w, running, &next, &any);
        bool there = true;
        if (st != STATUS_OK && next.path[0]) TRY(io_exists(next.path, &there));
        if (st != STATUS_OK && there) return st;
        if (st == STATUS_OK && next.step >= 0) {
            TRY(judge(w, &next));
            continue;
        }
        if (!running && any) return STATUS_OK;
        if (!running && clock_s() - begun > BEGIN_S)
            return FAIL(STATUS_CKPT, "%s: nobody trains there, and there is no checkpoint", w->options->run);
        usleep(POLL_MS * 1000);
    }
}

status eval_watch(const struct eval_tasks *e)
{
    struct watch w = {.options = e, .after = -1, .stride = -1};
    if (e->tasks.count == 0) return FAIL(STATUS_CONFIG, "--watch needs --tasks NAME=FILE");
    if (e->json || e->samples || e->every < 0)
        return FAIL(STATUS_CONFIG,
                    "--watch writes RUN/evals.jsonl: without --json and --samples; --every is at least 1");
    status st = eval_session_open(&w.session, e);
    if (st == STATUS_OK) st = watch_run(&w);
    if (st == STATUS_OK) st = report_write(e->run, NULL);
    eval_session_close(w.session);
    return st;
}
