/* past: what runs were predicted to take per step, beside what they took (train/forecast.h). */
#ifndef INGOT_OBSERVE_PAST_H
#define INGOT_OBSERVE_PAST_H
#include "base/status.h"

struct past_forecast {
    char device[128];           /* as env.json has it */
    double predicted, measured; /* seconds per step; NaN: not known */
};
/* Of one run. STATUS_DATA: no run directory. */
status past_of(const char *run_dir, struct past_forecast *f) WARN_UNUSED;
/* Of the runs below a directory that know both; the caller frees *list. STATUS_IO when it is no directory. */
status past_find(const char *dir, struct past_forecast **list, int *count) WARN_UNUSED;
#endif
