/* forks.jsonl: what a run had recorded behind a step that it went back to. Resuming cuts these records off
 * metrics.jsonl; here they stay, and the report draws them. docs/FORMATS.md. */
#ifndef INGOT_OBSERVE_FORKS_H
#define INGOT_OBSERVE_FORKS_H
#include "base/status.h"
#include <jansson.h>
#include <stdint.h>

struct fork_place {
    int64_t step;               /* that the run goes on from */
    int64_t skip_from, skip_to; /* steps whose data are left out, both ends too; 0: none */
    const char *why;
};
/* Before metrics.jsonl is cut: appends its losses behind the step to RUN/forks.jsonl. None: writes nothing. */
status forks_record(const char *run_dir, const struct fork_place *f) WARN_UNUSED;
/* The step of the last loss of metrics.jsonl; -1: none. */
int64_t forks_last_step(const char *run_dir);
/* All forks of a run as [{"step": S, "skip": [A, B], "why": "..", "time": T, "loss": [[steps], [values]]}]; without any,
 * or without the file, an empty array. The caller owns it. */
json_t *forks_read(const char *run_dir);
#endif
