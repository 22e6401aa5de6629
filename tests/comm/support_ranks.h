/* A job of a few processes for tests of comm/. */
#ifndef TESTS_COMM_SUPPORT_RANKS_H
#define TESTS_COMM_SUPPORT_RANKS_H
#include "comm/comm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <cmocka.h>

enum { JOB_RANKS = 16, OPEN_FAILED = 90 };

/* What a rank does; it ends with the number that this returns. */
typedef int rank_fn(struct comm *c, const void *arg);

struct job {
    int ranks;
    rank_fn *run;
    const void *arg;
    void (*meddle)(const pid_t *pids); /* in the parent, while the ranks run */
};
/* Starts the processes, waits, and stores their exit status as waitpid returns it. */
void run_job(const struct job *j, int codes[JOB_RANKS]);
/* Each rank must end with `code`. */
void expect_all(const struct job *j, int code);
/* Is the text part of this thread's last error? Shows the error when not. */
bool said(const char *text);
#endif
