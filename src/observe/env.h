/* env.json (where a run runs) and exit.json (how it ended), in the run directory. */
#ifndef INGOT_OBSERVE_ENV_H
#define INGOT_OBSERVE_ENV_H
#include "base/status.h"
#include <stdint.h>

struct env_run {           /* what only the caller knows; NULL and 0: not written */
    const char *device;    /* "cpu", "NVIDIA H200" */
    const char *isa;       /* name of the op table: "avx512+amx" */
    const char *precision; /* "bf16", "fp32" */
    int threads;
    int64_t parameters;
};
/* Adds ingot's version and git commit, host, processor, cores, memory, oneDNN, OpenMP settings, command and
 * start time. An exit.json of an earlier part of the run is removed: this part has not ended yet. */
status env_write(const char *run_dir, const struct env_run *run) WARN_UNUSED;
/* {code, status, reason, step}. code: what the process exits with; status: its text. */
status env_write_exit(const char *run_dir, int code, const char *reason, int64_t step) WARN_UNUSED;
/* "git describe" of the sources at configuration time; "" when they were no git checkout. */
const char *env_git(void);
#endif
