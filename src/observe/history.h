/* history: the records of metrics.jsonl from a step on, without reading those before: for who follows a run from
 * elsewhere (`ingot serve`, /api/runs/N?since=STEP). docs/FORMATS.md. */
#ifndef INGOT_OBSERVE_HISTORY_H
#define INGOT_OBSERVE_HISTORY_H
#include "base/status.h"
#include <jansson.h>
#include <stdint.h>

/* The records of step `since` and later, some MiB at most: {"schema", "since", "step", "more", "branch", "records"}.
 * The caller owns it. STATUS_DATA: the run has no metrics.jsonl. */
status history_read(const char *run_dir, int64_t since, json_t **out) WARN_UNUSED;
#endif
