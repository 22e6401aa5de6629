/* The page of `ingot serve`: the report's style sheet, charts and tables, fed by a program that runs. All texts of runs are
 * escaped here. */
#ifndef INGOT_OBSERVE_LIVE_H
#define INGOT_OBSERVE_LIVE_H
#include "base/status.h"

/* The page without data, malloc'd, and its Content-Security-Policy, which allows its one script by its hash. */
char *report_live_page(char policy[512]);
/* What it shows of the runs, malloc'd: `curves` is the JSON of report.js, `view` is HTML: results, settings that differ,
 * alerts, ranks, GPUs, samples. STATUS_DATA: a run is gone. */
status report_live_read(const char *const *run_dirs, int count, char **curves, char **view) WARN_UNUSED;
#endif
