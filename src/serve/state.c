/* What is shown. One thread looks at the runs' files once a second and reads those that have changed; curves and tables are
 * made when somebody asks for them, every FRESH_S at most. So requests cost what a copy costs, however many there are. */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "observe/monitor.h"
#include "observe/history.h"
#include "observe/live.h"
#include "observe/runs.h"
#include "serve/serve_int.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { RUNS_MAX = 64 };
#define LOOK_S  1.0
#define FIND_S  30.0
#define FRESH_S 3.0
#define NEWS_S  5.0 /* a run that stands still is news, too */

struct shown_run {
    char path[1024];
    uint64_t stamp;
};
struct serve_state {
    struct serve_options o;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    bool stop, started;
    int64_t version;
    char *text[SERVE_TEXTS];
    int64_t text_version[SERVE_TEXTS];
    json_t *objects; /* of the runs, in their order */
    struct shown_run run[RUNS_MAX];
    int count, running;
    pthread_mutex_t making; /* curves and tables: one at a time */
    double made_s;
    /* the thread's own */
    struct monitor *seen; /* [RUNS_MAX] */
};

/* ---- which runs */

static void add_run(struct serve_state *s, const char *path)
{
    for (int i = 0; i < s->count; i++)
        if (strcmp(s->run[i].path, path) == 0) return;
    if (s->count == RUNS_MAX) return;
    pthread_mutex_lock(&s->lock);
    snprintf(s->run[s->count++].path, sizeof s->run[0].path, "%s", path);
    pthread_mutex_unlock(&s->lock);
}

/* The runs of the given paths; a number once given to a run stays its own. */
static status find_runs(struct serve_state *s)
{
    for (int i = 0; i < s->o.path_count; i++) {
        struct run_summary *list;
        int count;
        TRY(runs_find(s->o.paths[i], &list, &count));
        for (int k = 0; k < count; k++)
            if (!list[k].other) add_run(s, list[k].path);
        free(list);
    }
    return STATUS_OK;
}

static uint64_t stamp_of(const char *run)
{
    static const char *const names[] = {"metrics.jsonl", "alerts.jsonl", "exit.json", "evals.jsonl",
                                        "config.yaml"};
    char path[1100];
    struct stat info;
    uint64_t stamp = 14695981039346656037u + run_is_locked(run);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", run, names[i]);
        const bool there = stat(path, &info) == 0;
        const uint64_t parts[] = {there ? (uint64_t)info.st_size : 0,
                                  there ? (uint64_t)info.st_mtim.tv_nsec : 0,
                                  there ? (uint64_t)info.st_mtim.tv_sec : 1};
        for (int k = 0; k < 3; k++) stamp = (stamp ^ parts[k]) * 1099511628211u;
    }
    return stamp;
}

/* ---- texts */

static void set_text(struct serve_state *s, enum serve_text which, char *text, int64_t version)
{
    free(s->text[which]);
    s->text[which] = text;
    s->text_version[which] = version;
}

static void names_apart(struct serve_state *s)
{
    for (int i = 0; i < s->count; i++)
        for (int k = 0; k < i; k++)
            if (strcmp(s->seen[i].name, s->seen[k].name) == 0) {
                snprintf(s->seen[i].name, sizeof s->seen[i].name, "%.255s", s->run[i].path);
                snprintf(s->seen[k].name, sizeof s->seen[k].name, "%.255s", s->run[k].path);
            }
}

static void publish(struct serve_state *s)
{
    json_t *list = json_array();
    int running = 0;
    names_apart(s);
    for (int i = 0; i < s->count; i++) {
        running += s->seen[i].running;
        json_array_append_new(list, monitor_json(&s->seen[i]));
    }
    char *metrics = serve_openmetrics(s->seen, s->count);
    json_t *all = json_pack("{s:I, s:O}", "version", (json_int_t)s->version + 1, "runs", list);
    char *text = all ? json_dumps(all, JSON_COMPACT) : NULL;
    MEMORY_CHECK(text != NULL, "no memory for the state of %d runs", s->count);
    json_decref(all);
    pthread_mutex_lock(&s->lock);
    s->version++;
    s->running = running;
    json_decref(s->objects);
    s->objects = list;
    set_text(s, SERVE_RUNS, text, s->version);
    set_text(s, SERVE_METRICS, metrics, s->version);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void look(struct serve_state *s, bool news)
{
    bool any = false;
    for (int i = 0; i < s->count; i++) {
        const uint64_t stamp = stamp_of(s->run[i].path);
        const bool quiet = stamp == s->run[i].stamp && !(news && s->seen[i].running);
        if (quiet) continue;
        struct monitor next;
        if (monitor_read(&next, s->run[i].path, clock_wall_s()) != STATUS_OK) {
            log_debug("%s", status_message());
            continue;
        }
        s->run[i].stamp = stamp;
        monitor_free(&s->seen[i]);
        s->seen[i] = next;
        any = true;
    }
    if (any || s->version == 0) publish(s);
}

/* False: the end. */
static bool rest(struct serve_state *s)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)LOOK_S;
    pthread_mutex_lock(&s->lock);
    while (!s->stop && pthread_cond_timedwait(&s->changed, &s->lock, &until) != ETIMEDOUT) {}
    const bool stop = s->stop;
    pthread_mutex_unlock(&s->lock);
    return !stop;
}

static void *watch(void *ctx)
{
    struct serve_state *s = ctx;
    double find_s = clock_s() + FIND_S, news_s = clock_s() + NEWS_S;
    while (rest(s)) {
        const bool news = clock_s() >= news_s;
        if (clock_s() >= find_s) {
            if (find_runs(s) != STATUS_OK) log_debug("%s", status_message());
            find_s = clock_s() + FIND_S;
        }
        look(s, news);
        if (news) news_s = clock_s() + NEWS_S;
    }
    return NULL;
}

status serve_state_open(struct serve_state **out, const struct serve_options *o)
{
    pthread_condattr_t how;
    struct serve_state *s = *out = calloc(1, sizeof *s);
    if (s) s->seen = calloc(RUNS_MAX, sizeof *s->seen);
    MEMORY_CHECK(s != NULL && s->seen != NULL, "no memory for the state of %d runs", (int)RUNS_MAX);
    s->o = *o;
    s->made_s = -FRESH_S;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->making, NULL);
    pthread_condattr_init(&how);
    pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &how);
    pthread_condattr_destroy(&how);
    TRY(find_runs(s));
    if (s->count == 0 && o->model == NULL)
        return FAIL(STATUS_DATA, "serve: no run in %s: ingot train makes one",
                    o->path_count ? o->paths[0] : "runs");
    look(s, true);
    const int err = pthread_create(&s->thread, NULL, watch, s);
    if (err) return FAIL(STATUS_IO, "serve: no thread to read the runs: %s", strerror(err));
    s->started = true;
    return STATUS_OK;
}

void serve_state_stop(struct serve_state *s)
{
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void serve_state_close(struct serve_state *s)
{
    if (s == NULL) return;
    serve_state_stop(s);
    if (s->started) pthread_join(s->thread, NULL);
    for (int i = 0; i < RUNS_MAX; i++) monitor_free(&s->seen[i]);
    for (int i = 0; i < SERVE_TEXTS; i++) free(s->text[i]);
    json_decref(s->objects);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->making);
    free(s->seen);
    free(s);
}

/* ---- what requests ask */

/* Curves and tables as they are now. */
static void make(struct serve_state *s)
{
    const char *paths[RUNS_MAX];
    char *curves, *view;
    pthread_mutex_lock(&s->making);
    pthread_mutex_lock(&s->lock);
    const int64_t version = s->version;
    const int count = s->count;
    const bool old = s->text_version[SERVE_CURVES] != version && clock_s() - s->made_s >= FRESH_S;
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < count; i++) paths[i] = s->run[i].path; /* written once, before count */
    if (old) {
        s->made_s = clock_s();
        if (report_live_read(paths, count, &curves, &view) == STATUS_OK) {
            pthread_mutex_lock(&s->lock);
            set_text(s, SERVE_CURVES, curves, version);
            set_text(s, SERVE_VIEW, view, version);
            pthread_mutex_unlock(&s->lock);
        } else
            log_debug("%s", status_message());
    }
    pthread_mutex_unlock(&s->making);
}

char *serve_state_text(struct serve_state *s, enum serve_text which, int64_t *version)
{
    if (which == SERVE_CURVES || which == SERVE_VIEW) make(s);
    pthread_mutex_lock(&s->lock);
    char *copy = memory_text(s->text[which] ? s->text[which] : which == SERVE_CURVES ? "{\"runs\":[]}" : "");
    *version = s->text_version[which];
    pthread_mutex_unlock(&s->lock);
    return copy;
}

char *serve_state_run(struct serve_state *s, int id)
{
    pthread_mutex_lock(&s->lock);
    json_t *o = id >= 0 ? json_array_get(s->objects, (size_t)id) : NULL;
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    pthread_mutex_unlock(&s->lock);
    return text;
}

char *serve_state_history(struct serve_state *s, int id, int64_t since)
{
    char path[sizeof s->run[0].path] = "", *text = NULL;
    json_t *o;
    pthread_mutex_lock(&s->lock);
    if (id >= 0 && id < s->count) snprintf(path, sizeof path, "%s", s->run[id].path);
    pthread_mutex_unlock(&s->lock);
    if (path[0] == 0 || history_read(path, since, &o) != STATUS_OK) return NULL;
    text = json_dumps(o, JSON_COMPACT);
    MEMORY_CHECK(text != NULL, "no memory for the records of a run");
    json_decref(o);
    return text;
}

bool serve_state_wait(struct serve_state *s, int64_t version, double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)seconds;
    pthread_mutex_lock(&s->lock);
    while (!s->stop && s->version == version &&
           pthread_cond_timedwait(&s->changed, &s->lock, &until) != ETIMEDOUT) {}
    const bool stop = s->stop;
    pthread_mutex_unlock(&s->lock);
    return !stop;
}

int serve_state_count(struct serve_state *s, int *running)
{
    pthread_mutex_lock(&s->lock);
    const int count = s->count;
    *running = s->running;
    pthread_mutex_unlock(&s->lock);
    return count;
}
