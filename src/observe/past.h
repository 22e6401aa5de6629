/* past: the one reader of earlier forecasts: what steps were predicted to take beside what they took. They stand in
 * RUN/forecast.jsonl (forecasts.h), a line for each process of a run. Of a run from before that file, the facts
 * predicted_step_s and measured_step_s of its metrics.jsonl are read. */
#ifndef INGOT_OBSERVE_PAST_H
#define INGOT_OBSERVE_PAST_H
#include "base/status.h"
#include <stdbool.h>

enum { PAST_MAX = 4096 };
struct past_forecast {
    char machine[32];           /* row of machine.def; "": from before forecast.jsonl */
    char device[128];           /* as env.json has it; "": not read */
    bool row;                   /* predicted from the row's rates; false: from rates measured on the host then */
    double predicted, measured; /* seconds per step; NaN: not known */
    double bytes;               /* measured over predicted bytes of rank 0; NaN: not known */
};
/* The newest of one run, and its device. STATUS_DATA: no run directory. */
status past_of(const char *run_dir, struct past_forecast *f) WARN_UNUSED;
/* All that know both times: of a forecast.jsonl, a run directory, or a directory with runs down to three directories
 * deep; at most the last PAST_MAX in the order of names. Lines that a kill has torn are left out. The caller frees
 * *list. STATUS_CONFIG: nothing is at `path`. */
status past_find(const char *path, struct past_forecast **list, int *count) WARN_UNUSED;
#endif
