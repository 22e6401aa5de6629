/* The runs below a directory, each in a line: what `ingot runs` lists. */
#ifndef INGOT_OBSERVE_RUNS_H
#define INGOT_OBSERVE_RUNS_H
#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

struct run_summary {            /* NAN, 0 and "": not known */
    char path[1024];            /* from the directory that was searched on */
    char name[256];
    char model[64];             /* "6 x 320": layers and width */
    char state[32];             /* finished, stopped, failed (exit 6), running, killed, another version */
    bool other;                 /* records of another version: nothing else is known */
    int exit_code;              /* -1: none */
    double parameters;
    int64_t steps, planned, tokens;
    double loss, val_loss, val_bpb; /* loss: mean of the last records */
    double tokens_per_s;        /* median of the last records */
    double last_s;              /* time of the last record, seconds since 1970 */
};
/* Whether a process has the run's lock (train/runlock.h): then it runs. */
bool run_is_locked(const char *run_dir);
/* Finds the runs below `dir` (itself, too), down to three directories deep; the one that wrote last is the first.
 * Reads only the end of each run's metrics. STATUS_IO when `dir` is no directory. The caller frees *list. */
status runs_find(const char *dir, struct run_summary **list, int *count) WARN_UNUSED;
#endif
