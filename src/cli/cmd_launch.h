/* What a job of `ingot launch` says, kept where a closed terminal, a closed pipe or a full disk cannot take it.
 *
 * Ranks above 0 write stderr to a spool in memory; the launcher copies it to its own stderr and, once rank 0 holds the
 * run, to RUN/log.txt. There its own log lines go, too. Rank 0 writes to the launcher's stderr and to RUN/log.txt. */
#ifndef INGOT_CLI_CMD_LAUNCH_H
#define INGOT_CLI_CMD_LAUNCH_H
#include "spec/spec.h"

#include <stdbool.h>
#include <sys/types.h>

struct launch_output {
    char run_dir[SPEC_TEXT]; /* "": none is known */
    pid_t lead;              /* the process of rank 0, set by the launcher */
    int spool;               /* stderr of the other ranks */
    off_t shown;             /* bytes of it */
    off_t log_bytes;         /* of a RUN/log.txt that was there before */
    bool logged;             /* log_file_set to RUN/log.txt */
};
status launch_output_open(struct launch_output *o, const char *run_dir) WARN_UNUSED;
/* Shows what has come, up to the last whole line; all: to the end. */
void launch_output_show(struct launch_output *o, bool all);
void launch_output_close(struct launch_output *o);
#endif
