/* An alert: one line that somebody should read, with rank, host, GPU, cause and price. Training finds them as it runs
 * (alert_watch.h) and writes them to RUN/alerts.jsonl; monitor, report and serve read them there. */
#ifndef INGOT_OBSERVE_ALERT_H
#define INGOT_OBSERVE_ALERT_H
#include "base/status.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct alert {
    char name[32];      /* loss_spike, stall, throttle, xid, ...: docs/GUIDE.md */
    status code;        /* exit code of `monitor --strict`: NUMERIC, DEVICE, COMM, IO; OK: a remark, or it is over */
    double time;        /* seconds since 1970; NaN: not known */
    int64_t step;       /* -1: none */
    char where[160];    /* "node07 gpu2", "rank 3"; "" */
    char text[480];
    int rank;           /* -1: none */
    double seconds;     /* what it has cost so far, in seconds of the run; NaN: not known */
    double share;       /* the same as a share of this process's time */
    bool over;
};
enum { ALERTS_MAX = 64 };
struct alert_list {
    struct alert list[ALERTS_MAX]; /* in the order of time; the newest count */
    int count;
};
/* Adds an alert and returns it; the oldest goes when the list is full. */
struct alert *alert_add(struct alert_list *l, const char *name, status code, double time, int64_t step,
                        const char *where, const char *fmt, ...) PRINTF_LIKE(7, 8);
/* One object (docs/FORMATS.md), which the caller owns. */
json_t *alert_json(const char *run, const struct alert *a);

/* Reads RUN/alerts.jsonl: each alert once, over or not; of one that came again, the last. False: the run has none. Lines
 * that cannot be read are left out. */
bool alert_lines_read(const char *run_dir, struct alert_list *l);
#endif
