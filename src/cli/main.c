/* ingot: a table of verbs. */
#include "base/log.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/verbs.h"
#include "comm/comm.h"
#include "observe/env.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* OpenMP's waiting threads spin for milliseconds by default. On a machine that is shared, they then burn the core that the thread they wait
 * for needs (measured: 10 times slower training with 2 threads on 2 busy cores). A short spin costs a quiet machine nothing. The runtime
 * reads its settings before main, so they are set for a second start of the program; a user's own setting wins. */
static void wait_politely(char **argv)
{
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0) return;
    self[length] = 0; /* by its own path, so that ps and pkill still know it as ingot */
    setenv("GOMP_SPINCOUNT", "5000", 1);
    execv(self, argv); /* returns only on failure: then the program runs with the default */
}

/* What a verb prints is its result: a disk that took only a part of it is a failure. A reader that has gone (`| head`) is none. */
static status flush_results(void)
{
    errno = 0;
    if ((fflush(stdout) == 0 && !ferror(stdout)) || errno == EPIPE) return STATUS_OK;
    return FAIL(STATUS_IO, "standard output was not written whole: %s",
                errno ? strerror(errno) : "an earlier write failed");
}

/* 0 alone, and where the environment makes no sense: `train` says so. */
static int rank_of(void)
{
    struct comm_env e;
    return comm_env_read(&e) == STATUS_OK ? e.rank : 0;
}

/* What all ranks of a job say alike, rank 0 says for them; who lost whom, the launcher knows best. */
static bool said_by_another(status st)
{
    return rank_of() > 0 && (st == STATUS_CONFIG || st == STATUS_COMM || st == STATUS_STOPPED);
}

/* For a line that says only what there was no memory for. */
enum { MESSAGE_ADVICE = 256 + 2 };
static const char *remedy(status st, char advice[MESSAGE_ADVICE])
{
    const char *said = status_message();
    if (st != STATUS_OUT_OF_MEMORY || strchr(said, ';') || !strstr(said, "memory")) return "";
    memcpy(advice, "; ", 3);
    memory_advice(advice + 2);
    return advice;
}

static int end(status st)
{
    char advice[MESSAGE_ADVICE];
    if (st == STATUS_OK) st = flush_results();
    if (st != STATUS_OK && status_message()[0] && !said_by_another(st)) {
        log_line(st == STATUS_STOPPED ? LOG_INFO : LOG_ERROR, "%s%s", status_message(), remedy(st, advice));
        log_debug("%s", status_where());
    }
    return (int)st;
}

#ifdef __x86_64__
/* This file alone is compiled for any x86-64, so that an old processor gets a line instead of an illegal instruction. */
static int processor_is_too_old(void)
{
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        return 0;
    fprintf(
        stderr,
        "error: this processor has no AVX2, FMA and BMI2 (x86-64-v3): ingot needs one of 2013 or later\n");
    return 1;
}
#else
static int processor_is_too_old(void)
{
    return 0; /* every 64-bit ARM has NEON */
}
#endif

/* --help and --version, where a verb stands. */
static char **spell_out(char **argv)
{
    static char help[] = "help", version[] = "version";
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) argv[1] = help;
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-v") == 0 || strcmp(argv[1], "-V") == 0)
        argv[1] = version;
    return argv + 1;
}

int main(int argc, char **argv)
{
    if (processor_is_too_old()) return STATUS_DEVICE;
    wait_politely(argv);
    memory_guard_runtime();
    json_set_alloc_funcs(memory_get,
                         free); /* else a refusal reads as bad JSON: a sound checkpoint would be skipped */
    parallel_threads_set(0);
    log_rank_set(rank_of());
    return end(verb_run(argc - 1, argc > 1 ? spell_out(argv) : argv));
}
