/* ckpt_leftovers: what a run directory has besides its checkpoints: what killed saves left, and that there was a save.
 *
 *   RUN/ckpt/.tmp-STEP-PID, .trash-STEP-PID   a checkpoint that PID writes, or deletes; left when it was killed
 *   RUN/saved                                 a checkpoint was committed once; outside ckpt/, so it outlives that */
#ifndef INGOT_TRAIN_CKPT_LEFTOVERS_H
#define INGOT_TRAIN_CKPT_LEFTOVERS_H
#include "base/status.h"
#include <stdbool.h>

/* Before a save: removes what is left below RUN/ckpt; a log line names each. What a process wrote that runs stays,
 * unless it is this one. A directory that does not exist has none. */
status ckpt_leftovers_remove(const char *run_dir) WARN_UNUSED;
/* At the start of a run, before anything writes there: temporary files in RUN, too. `locked`: this process holds the
 * run's lock, so that whatever is in RUN/ckpt was left, even if another process has got its number. */
status ckpt_leftovers_start(const char *run_dir, bool locked) WARN_UNUSED;

/* Records that the run has a checkpoint, when that is not recorded yet. After it was committed. */
status ckpt_saved_mark(const char *run_dir) WARN_UNUSED;
/* A new run begins in this directory: forgets a mark of an earlier one. */
status ckpt_saved_forget(const char *run_dir) WARN_UNUSED;
/* A run that is to be resumed has no checkpoint. STATUS_CKPT if it had one. */
status ckpt_saved_none(const char *run_dir) WARN_UNUSED;
#endif
