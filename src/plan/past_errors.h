/* past_errors: how far earlier predictions (observe/past.h) were off, for --past of `ingot plan` and `ingot cost`. */
#ifndef INGOT_PLAN_PAST_ERRORS_H
#define INGOT_PLAN_PAST_ERRORS_H
#include "observe/past.h"
#include <jansson.h>

struct past_errors {
    char from[256];
    bool asked; /* --past was given: past_errors_print then also reports that there are no runs */
    int count;
    struct past_forecast *runs; /* [count], owned; each with its machine */
};
/* `path`: as for past_find. NULL: the directory runs, if it exists. STATUS_CONFIG: `path` does not exist. */
status past_errors_read(const char *path, struct past_errors *p) WARN_UNUSED;
void past_errors_free(struct past_errors *p);
/* Ratios of measured to predicted seconds per step, ascending, of the runs on a machine. row: only runs predicted from
 * the machine's row of machine.def; false: only the others. malloc'd, the caller frees. */
double *past_errors_ratios(const struct past_errors *p, const char *machine, bool row, int *count);

/* Prints one line: by how much earlier predictions for this machine, from the same rates, were off, and what that means
 * for `step` seconds. Prints nothing without such runs (unless --past was given), or if p is NULL. */
void past_errors_print(const struct past_errors *p, const char *machine, bool row, double step);
/* {"runs", "step_ratio_low", "step_ratio_median", "step_ratio_high", "memory_exact", "step_seconds_low",
 * "step_seconds_high"}, or NULL if there were none. */
json_t *past_errors_json(const struct past_errors *p, const char *machine, bool row, double step);
#endif
