/* The files env.json (environment of a run) and exit.json (how the run ended) in the run directory. */
#ifndef INGOT_OBSERVE_ENV_H
#define INGOT_OBSERVE_ENV_H
#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

struct env_source { /* a source of the training data */
    const char *name, *path;
    int64_t tokens;
    double share; /* of the run's sequences */
};
struct json_t;         /* jansson's */
struct env_run {           /* values that only the caller knows; NULL and 0 are not written */
    const char *device;    /* "cpu", "NVIDIA H200" */
    const char *isa;       /* name of the op table: "avx512+amx" */
    const char *precision; /* "bf16", "fp32" */
    int threads, ranks;
    bool resumed;          /* command and start of the run's first process stay, as "first" */
    int64_t parameters;
    const struct env_source *sources;
    int source_count;
    const char *val;       /* the pattern of the validation shards */
    int64_t val_tokens;
    const struct json_t *data; /* what the data are, as checkpoints record it: train/data_identity.h */
    const char *tokenizer, *tokenizer_sha256; /* its directory; the hash of its tokenizer.json */
    int64_t vocab_size;
};
/* Writes env.json: `run`, and ingot's version and git commit, host, processor, cores, memory, oneDNN, the system
 * (env_host.h), settings of OpenMP, CUDA and NCCL, command, start time, and the git state of the work tree that holds the run directory (asked of `git`, for
 * two seconds at most; none: no such entry). Removes the exit.json of an earlier part of the run, because this part
 * has not ended yet. */
status env_write(const char *run_dir, const struct env_run *run) WARN_UNUSED;
/* Writes exit.json: {code, status, reason, step}. `code` is the exit code of the process, `status` its text. */
status env_write_exit(const char *run_dir, int code, const char *reason, int64_t step) WARN_UNUSED;
/* "git describe" of the sources at configuration time; "" when they were not a git checkout. */
const char *env_git(void);
/* The processor's name; "" when the system does not tell it. Returns buf. */
const char *env_processor(char buf[256]);
#endif
