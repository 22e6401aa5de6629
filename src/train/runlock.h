/* One job per run directory: RUN/lock is locked while a job runs, and says whose it is. */
#ifndef INGOT_TRAIN_RUNLOCK_H
#define INGOT_TRAIN_RUNLOCK_H
#include "base/status.h"

/* Takes the lock; *fd holds it until runlock_release or the end of the process, however it ends.
 * STATUS_CONFIG when another job has it: the message names its process and host. A file system without locks
 * gives a warning and no protection. */
status runlock_take(const char *run_dir, int *fd) WARN_UNUSED;
void runlock_release(int *fd);
#endif
