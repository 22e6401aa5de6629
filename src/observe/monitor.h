/* monitor: a run, its GPUs and hosts on one screen, read from the run's directory alone. Training does not know it. */
#ifndef INGOT_OBSERVE_MONITOR_H
#define INGOT_OBSERVE_MONITOR_H
#include "base/status.h"
#include "observe/alert.h"
#include "observe/host_lines.h"
#include "observe/observe.h"
#include <stdbool.h>
#include <stdio.h>

enum { SPARK = 512 };

struct monitor {
    char name[256], state[32];
    double now, last_s;             /* wall clock; of the last record, NaN: none */
    bool running;
    int64_t step, planned, tokens;  /* planned 0: not known */
    int ranks;
    double loss, loss_z, grad_norm, lr, val_loss, tokens_per_s, tokens_per_s_median, mfu, step_s, step_s_median;
    double data_wait;               /* share of the last steps' time */
    double eta_s, watts, mj_per_token, checkpoint_bytes; /* NaN: not known */
    double spark[SPARK];            /* loss, oldest first */
    int sparks;
    int rank_count;                  /* of `rank`: the ranks' last steps; 0: not known */
    int rank[RANK_TIMES_MAX];
    struct rank_time rank_time[RANK_TIMES_MAX];
    int slow_rank;                   /* index of the one that all others wait for; -1: none */
    struct host_lines *hosts;
    int host_count;
    /* Those of alerts.jsonl; of a run without it, found in its records: the same files give the same alerts. */
    struct alert_list alerts;
};
/* Reads the run at the wall clock `now`. STATUS_DATA: no run directory. */
status monitor_read(struct monitor *m, const char *run_dir, double now) WARN_UNUSED;
void monitor_free(struct monitor *m);
/* Draws it `columns` wide, from 40 on. */
void monitor_draw(const struct monitor *m, FILE *out, int columns, bool ascii);
json_t *monitor_json(const struct monitor *m); /* docs/FORMATS.md; the caller owns it */
/* Exit code by the alerts: the first of 11, 10, 74, 6. */
status monitor_exit(const struct monitor *m);
#endif
