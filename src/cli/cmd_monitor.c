/* ingot monitor: a run on one screen. */
#include "base/clock.h"
#include "base/process.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/print_json.h"
#include "observe/monitor.h"
#include "observe/runs.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct order {
    bool once, json, alerts, ascii, strict;
    double interval;
    int64_t columns;
    const char *exec;
};
/* Alerts that were told: by name, place and step, since the same one is found again at each look. */
enum { TOLD_MAX = 1024 };
struct told {
    char keys[TOLD_MAX][256];
    int count;
};

/* The newest of runs/. */
static status newest_run(char path[1024])
{
    struct run_summary *runs;
    int count;
    if (runs_find("runs", &runs, &count) != STATUS_OK)
        return FAIL(STATUS_CONFIG, "monitor: no run is named, and there is no runs/ here: ingot monitor RUN");
    if (count > 0) snprintf(path, 1024, "%s", runs[0].path);
    free(runs);
    return count > 0 ? STATUS_OK : FAIL(STATUS_CONFIG, "monitor: no run in runs/: ingot monitor RUN");
}

static int screen_columns(const struct order *o)
{
    return o->columns > 0 ? (int)o->columns : text_columns(STDOUT_FILENO, 80);
}

/* The command gets the record on standard input, through a file in memory: a shell that it starts may read it as it likes. */
static status tell(const struct order *o, const json_t *record)
{
    char path[64];
    const char *const argv[] = {"sh", "-c", o->exec, NULL};
    const int fd = memfd_create("alert", MFD_CLOEXEC);
    if (fd < 0) return FAIL(status_of_errno(errno), "--alert-exec: no memory for an alert");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const bool whole = json_dumpfd(record, fd, JSON_COMPACT) == 0 && write(fd, "\n", 1) == 1;
    status st = whole ? process_run(argv, path, "/dev/null")
                      : FAIL(STATUS_OUT_OF_MEMORY, "--alert-exec: no memory for an alert");
    close(fd);
    return st;
}

/* Prints and tells the alerts that are new. */
static void tell_new(const struct order *o, struct told *told, const struct monitor *m)
{
    char key[256];
    for (int i = 0; i < m->alerts.count; i++) {
        const struct alert *a = &m->alerts.list[i];
        bool known = false;
        snprintf(key, sizeof key, "%s|%s|%lld", a->name, a->where, (long long)a->step);
        for (int k = 0; k < told->count && !known; k++) known = strcmp(told->keys[k], key) == 0;
        if (known || told->count == TOLD_MAX) continue;
        memcpy(told->keys[told->count++], key, sizeof key);
        json_t *record = alert_json(m->name, a);
        if (o->alerts) {
            json_dumpf(record, stdout, JSON_COMPACT);
            puts("");
        }
        if (o->exec && tell(o, record) != STATUS_OK) fprintf(stderr, "warning: %s\n", status_message());
        json_decref(record);
    }
    fflush(stdout);
}

static void show(const struct order *o, const struct monitor *m, bool redraw)
{
    if (o->alerts) return;
    if (o->json) {
        print_json(monitor_json(m));
        return;
    }
    if (redraw) fputs("\033[H\033[2J", stdout);
    monitor_draw(m, stdout, screen_columns(o), o->ascii);
    fflush(stdout);
}

static status watch(const struct order *o, const char *run)
{
    struct monitor m;
    struct told *told = calloc(1, sizeof *told);
    if (told == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the monitor");
    status st, worst = STATUS_OK;
    for (;;) {
        st = monitor_read(&m, run, clock_wall_s());
        if (st != STATUS_OK) break;
        show(o, &m, !o->once);
        tell_new(o, told, &m);
        worst = monitor_exit(&m);
        const bool over = !m.running;
        monitor_free(&m);
        if (o->once || over) break; /* a run that has ended says nothing new */
        nanosleep(&(struct timespec){(time_t)o->interval, (long)((o->interval - floor(o->interval)) * 1e9)},
                  NULL);
    }
    free(told);
    if (st == STATUS_DATA) return FAIL(STATUS_CONFIG, "monitor: %s: no such run", run);
    if (st == STATUS_OK && o->strict && worst != STATUS_OK)
        return FAIL(worst, "monitor: an alert says that %s needs a look", run);
    return st;
}

status cmd_monitor(struct args *a)
{
    struct order o = {.interval = 1};
    char newest[1024];
    const struct flag flags[] = {FLAG("once", &o.once),         FLAG("json", &o.json),
                                 FLAG("interval", &o.interval), FLAG("alerts", &o.alerts),
                                 FLAG("alert-exec", &o.exec),   FLAG("columns", &o.columns),
                                 FLAG("ascii", &o.ascii),       FLAG("strict", &o.strict)};
    TRY(args_parse(a, flags, sizeof flags / sizeof flags[0]));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 0, 1));
    if (!(o.interval >= 0.1 && o.interval <= 3600))
        return FAIL(STATUS_CONFIG, "monitor: --interval %g: from 0.1 to 3600 seconds", o.interval);
    if (o.columns < 0 || o.columns > 1000 || (o.columns > 0 && o.columns < 40))
        return FAIL(STATUS_CONFIG, "monitor: --columns %lld: from 40 to 1000", (long long)o.columns);
    if (o.json && o.alerts) return FAIL(STATUS_CONFIG, "monitor: --alerts are JSON already; not with --json");
    if (o.strict && !o.once) return FAIL(STATUS_CONFIG, "monitor: --strict goes with --once");
    if (o.json || (!isatty(STDOUT_FILENO) && !o.alerts && !o.exec)) o.once = true;
    if (a->word_count == 0) TRY(newest_run(newest));
    return watch(&o, a->word_count ? a->words[0] : newest);
}
