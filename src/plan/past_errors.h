/* past_errors: how far earlier predictions (observe/past.h) were off, for --past of `ingot plan` and `ingot cost`. */
#ifndef INGOT_PLAN_PAST_ERRORS_H
#define INGOT_PLAN_PAST_ERRORS_H
#include "observe/past.h"
#include <jansson.h>

struct past_errors {
    char from[256];
    bool asked; /* --past: then it is also said that there is nothing */
    int count;
    struct past_forecast *runs; /* [count], owned; each with its machine */
};
/* `path`: as past_find takes it. NULL: runs, if there is such a directory. STATUS_CONFIG: nothing is at `path`. */
status past_errors_read(const char *path, struct past_errors *p) WARN_UNUSED;
void past_errors_free(struct past_errors *p);
/* Measured over predicted seconds of the runs on a machine that were predicted from its row's rates, or not, ascending.
 * malloc'd. */
double *past_errors_ratios(const struct past_errors *p, const char *machine, bool row, int *count);

/* Prints one line about a step that is predicted now, if there were such runs on the machine, predicted from the same
 * rates (or --past was given). `p` NULL: nothing. */
void past_errors_print(const struct past_errors *p, const char *machine, bool row, double step);
/* {"runs", "step_ratio_low", "step_ratio_median", "step_ratio_high", "memory_exact", "step_seconds_low",
 * "step_seconds_high"}, or NULL if there were none. */
json_t *past_errors_json(const struct past_errors *p, const char *machine, bool row, double step);
#endif
