/* Evaluations of a run's checkpoints by a process beside it: RUN/evals.jsonl, a line per checkpoint and task
 * (docs/FORMATS.md). A file of its own: the run cuts metrics.jsonl when it resumes. */
#ifndef INGOT_OBSERVE_EVALS_H
#define INGOT_OBSERVE_EVALS_H
#include "base/status.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Appends a record in one write. */
status evals_append(const char *run_dir, const json_t *record) WARN_UNUSED;
/* All records, sorted by step; lines that cannot be read are left out. An array, the caller's. */
json_t *evals_read(const char *run_dir);
/* Whether there is a record of this checkpoint, task and file. */
bool evals_have(const char *run_dir, int64_t step, const char *task, const char *file);
#endif
