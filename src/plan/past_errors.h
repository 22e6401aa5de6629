/* past_errors: how far earlier predictions were off: forecast.jsonl of runs (observe/forecasts.h), for
 * `ingot plan --past`. */
#ifndef INGOT_PLAN_PAST_ERRORS_H
#define INGOT_PLAN_PAST_ERRORS_H
#include "base/status.h"
#include <jansson.h>
#include <stdbool.h>

enum { PAST_RUNS_MAX = 4096 };
struct past_run {
    char machine[32];
    bool row;                   /* predicted from a row of machine.def */
    double step, bytes;         /* measured over predicted */
};
struct past_errors {
    char from[256];
    bool asked;                 /* --past: then it is also said that there is nothing */
    int count;
    struct past_run *runs;      /* [count], owned; at most the last PAST_RUNS_MAX, in the order of names */
};
/* `path`: a forecast.jsonl, a run directory, or a directory of run directories. NULL: runs, if there is such a
 * directory. Lines that a kill has torn are left out. STATUS_CONFIG: nothing is at `path`. */
status past_errors_read(const char *path, struct past_errors *p) WARN_UNUSED;
void past_errors_free(struct past_errors *p);

/* Prints one line about a step that is predicted now, if there were such runs on the machine, predicted from the same
 * rates (or --past was given). `p` NULL: nothing. */
void past_errors_print(const struct past_errors *p, const char *machine, bool row, double step);
/* {"runs", "step_ratio_low", "step_ratio_median", "step_ratio_high", "memory_exact", "step_seconds_low",
 * "step_seconds_high"}, or NULL if there were none. */
json_t *past_errors_json(const struct past_errors *p, const char *machine, bool row, double step);
#endif
