#include "observe/alert_watch.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "observe/alert_exec.h"
#include "observe/observe_int.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ALERTS_VERSION = 1, QUEUE = 4096, QUEUE_BYTES = 4 << 20, HOST_TAIL = 512 << 10 };
#define LOOK_S  1.0
#define HOSTS_S 10.0

struct alert_watch {
    struct alert_options o;
    char run_dir[1024], run_name[256], exec[1024];
    struct sink sink;
    struct alert_rules *rules;
    struct alert_exec hook;
    struct host_lines *hosts; /* [HOST_LINES_HOSTS] */
    pthread_t thread;
    atomic_bool loads;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake;
    bool stop;
    /* Steps that the thread has not seen: a ring; with more, the oldest are lost. */
    struct alert_step *steps; /* [room] */
    struct rank_time *ranks;  /* [room][ranks] */
    int64_t room, put, taken;
    /* the thread's own */
    struct alert_step step;
    struct rank_time *step_ranks; /* [ranks] */
};

static void append(struct alert_watch *w, json_t *record)
{
    char *text = json_dumps(record, JSON_COMPACT);
    MEMORY_CHECK(text != NULL, "no memory for an alert's record");
    const size_t n = strlen(text);
    text[n] = '\n'; /* over the terminating zero: one write() per line */
    sink_append(&w->sink, text, n + 1);
    free(text);
}

static void emit(void *ctx, const struct alert *a)
{
    struct alert_watch *w = ctx;
    json_t *o = alert_json(w->run_name, a), *line = json_pack("{s:s}", "kind", "alert");
    MEMORY_CHECK(line != NULL && json_object_update(line, o) == 0, "no memory for an alert's record");
    append(w, line);
    /* The end of the run and an Xid are on the screen already. */
    const bool seen =
        a->over || a->code == STATUS_OK || strcmp(a->name, "ended") == 0 || strcmp(a->name, "xid") == 0;
    if (seen)
        log_line_file(LOG_INFO, "alert     %s%s%s: %s", a->name, a->where[0] ? " " : "", a->where, a->text);
    else
        log_warn("%s%s%s: %s", a->name, a->where[0] ? " " : "", a->where, a->text);
    char *text = json_dumps(o, JSON_COMPACT);
    MEMORY_CHECK(text != NULL, "no memory for an alert's record");
    alert_exec_add(&w->hook, text);
    free(text);
    json_decref(line);
    json_decref(o);
}

/* ---- the thread */

static bool take(struct alert_watch *w)
{
    const int ranks = w->o.rules.ranks;
    pthread_mutex_lock(&w->lock);
    const bool any = w->taken < w->put;
    if (any) {
        const int64_t i = w->taken++ % w->room;
        w->step = w->steps[i];
        memcpy(w->step_ranks, w->ranks + i * ranks, sizeof *w->ranks * (size_t)ranks);
    }
    pthread_mutex_unlock(&w->lock);
    w->step.rank = w->step_ranks;
    return any;
}

static enum alert_work work_now(const struct alert_watch *w)
{
    switch (progress_left().kind) {
    case WORK_STEP: return atomic_load(&w->loads) ? ALERT_WORK_DATA : ALERT_WORK_STEP;
    case WORK_SAVE: return ALERT_WORK_SAVE;
    default: return ALERT_WORK_OTHER;
    }
}

static void look_at_hosts(struct alert_watch *w)
{
    const int64_t bytes = io_free_bytes(w->run_dir);
    memset(w->hosts, 0, sizeof *w->hosts * HOST_LINES_HOSTS);
    const int count = host_lines_tail(w->run_dir, HOST_TAIL, w->hosts);
    alert_rules_hosts(w->rules, clock_wall_s(), w->hosts, count, bytes >= 0 ? (double)bytes : (double)NAN);
}

static void look(struct alert_watch *w, double *hosts_s)
{
    while (take(w)) alert_rules_step(w->rules, &w->step);
    alert_rules_look(w->rules, clock_wall_s(), work_now(w));
    if (clock_s() >= *hosts_s) {
        look_at_hosts(w);
        *hosts_s = clock_s() + HOSTS_S;
    }
    alert_exec_look(&w->hook, clock_s());
}

/* False: it shall end. */
static bool rest(struct alert_watch *w)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)LOOK_S;
    pthread_mutex_lock(&w->lock);
    while (!w->stop && pthread_cond_timedwait(&w->wake, &w->lock, &until) != ETIMEDOUT) {}
    const bool stop = w->stop;
    pthread_mutex_unlock(&w->lock);
    return !stop;
}

static void *watch(void *ctx)
{
    struct alert_watch *w = ctx;
    double hosts_s = clock_s() + HOSTS_S;
    do look(w, &hosts_s);
    while (rest(w));
    hosts_s = 0;
    look(w, &hosts_s);
    return NULL;
}

/* ---- begin and end */

static void write_head(struct alert_watch *w)
{
    json_t *schema = json_pack("{s:s, s:s, s:i}", "kind", "schema", "format", "ingot alerts", "version",
                               (int)ALERTS_VERSION);
    json_t *start =
        json_pack("{s:s, s:f, s:I}", "kind", "start", "time", clock_wall_s(), "step", (json_int_t)w->o.step);
    MEMORY_CHECK(schema != NULL && start != NULL, "no memory for the head of alerts.jsonl");
    if (w->sink.good == 0) append(w, schema);
    append(w, start);
    json_decref(schema);
    json_decref(start);
}

static void give_up(struct alert_watch *w)
{
    sink_close(&w->sink);
    alert_rules_close(w->rules);
    free(w->hosts);
    free(w->steps);
    free(w->ranks);
    free(w->step_ranks);
    free(w);
}

static status thread_start(struct alert_watch *w)
{
    pthread_condattr_t how;
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&how);
    pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
    pthread_cond_init(&w->wake, &how);
    pthread_condattr_destroy(&how);
    const int err = pthread_create(&w->thread, NULL, watch, w);
    return err ? FAIL(STATUS_IO, "no thread to look for alerts: %s", strerror(err)) : STATUS_OK;
}

status alert_watch_open(struct alert_watch **out, const struct alert_options *o)
{
    char path[1200];
    const size_t ranks = (size_t)o->rules.ranks;
    struct alert_watch *w = calloc(1, sizeof *w);
    *out = NULL;
    if (w == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory to look for alerts");
    w->o = *o;
    snprintf(w->run_dir, sizeof w->run_dir, "%s", o->run_dir);
    snprintf(w->run_name, sizeof w->run_name, "%s", o->run_name);
    snprintf(w->exec, sizeof w->exec, "%s", o->exec);
    w->hook = (struct alert_exec){.command = w->exec, .limit_s = ALERT_EXEC_S};
    w->room = (int64_t)(QUEUE_BYTES / (sizeof *w->ranks * ranks));
    w->room = w->room < 16 ? 16 : w->room > QUEUE ? QUEUE : w->room;
    w->hosts = calloc(HOST_LINES_HOSTS, sizeof *w->hosts);
    w->steps = calloc((size_t)w->room, sizeof *w->steps);
    w->ranks = calloc((size_t)w->room * ranks, sizeof *w->ranks);
    w->step_ranks = calloc(ranks, sizeof *w->step_ranks);
    snprintf(path, sizeof path, "%s/alerts.jsonl", w->run_dir);
    status st = w->hosts && w->steps && w->ranks && w->step_ranks
                    ? sink_open(&w->sink, path, SINK_APPEND)
                    : FAIL(STATUS_OUT_OF_MEMORY, "no memory to look for alerts");
    if (st == STATUS_OK) {
        struct alert_setup rules = o->rules;
        rules.emit = emit;
        rules.emit_ctx = w;
        w->rules = alert_rules_open(&rules);
        write_head(w);
        st = thread_start(w);
    } else
        w->sink.file.fd = -1;
    if (st != STATUS_OK)
        give_up(w);
    else
        *out = w;
    return st;
}

void alert_watch_step(struct alert_watch *w, const struct alert_step *s)
{
    if (w == NULL) return;
    const int ranks = w->o.rules.ranks;
    pthread_mutex_lock(&w->lock);
    const int64_t i = w->put++ % w->room;
    if (w->put - w->taken > w->room) w->taken = w->put - w->room;
    w->steps[i] = *s;
    memcpy(w->ranks + i * ranks, s->rank, sizeof *w->ranks * (size_t)ranks);
    pthread_mutex_unlock(&w->lock);
}

void alert_watch_loads(struct alert_watch *w, bool loads)
{
    if (w) atomic_store(&w->loads, loads);
}

void alert_watch_close(struct alert_watch *w, status st, const char *message, int64_t lost_steps,
                       double lost_s)
{
    if (w == NULL) return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    alert_rules_end(w->rules, clock_wall_s(), st, message, lost_steps, lost_s);
    alert_exec_end(&w->hook);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    sink_sync(&w->sink);
    give_up(w);
}
