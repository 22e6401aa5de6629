#include "comm/support_ranks.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

void run_job(const struct job *j, int codes[JOB_RANKS])
{
    pid_t pids[JOB_RANKS];
    int fd;
    assert_int_equal(comm_job_create(j->ranks, &fd), STATUS_OK);
    for (int r = 0; r < j->ranks; r++) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] > 0) continue;
        struct comm *c;
        if (comm_open(&c, &(struct comm_env){.rank = r, .ranks = j->ranks, .by = COMM_BY_LAUNCH, .fd = fd}) !=
            STATUS_OK)
            _exit(OPEN_FAILED);
        int code = j->run(c, j->arg);
        comm_close(c, (status)code);
        _exit(code);
    }
    if (j->meddle) j->meddle(pids);
    for (int r = 0; r < j->ranks; r++) assert_int_equal(waitpid(pids[r], &codes[r], 0), pids[r]);
    close(fd);
}

void expect_all(const struct job *j, int code)
{
    int codes[JOB_RANKS];
    run_job(j, codes);
    for (int r = 0; r < j->ranks; r++) {
        assert_true(WIFEXITED(codes[r]));
        assert_int_equal(WEXITSTATUS(codes[r]), code);
    }
}

bool said(const char *text)
{
    if (strstr(status_message(), text)) return true;
    fprintf(stderr, "not said: '%s' in '%s'\n", text, status_message());
    return false;
}
