/* runlock: one job per run directory. A job holds a lock on RUN/lock, which names its process and host. */
#ifndef INGOT_TRAIN_RUNLOCK_H
#define INGOT_TRAIN_RUNLOCK_H
#include "base/status.h"

/* Acquires the lock; *fd holds it until runlock_release or the end of the process, also by a crash. STATUS_CONFIG when
 * another job holds it: the message names its process and host. On a file system without locks: a warning, no
 * protection. */
status runlock_take(const char *run_dir, int *fd) WARN_UNUSED;
void runlock_release(int *fd);
/* What is written below ckpt/ and trace/ must stay in the run: STATUS_IO when one of them is a link. */
status runlock_directories(const char *dir) WARN_UNUSED;
#endif
