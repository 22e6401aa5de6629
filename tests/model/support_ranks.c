#include "model/support_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MAX = 16 };

void expect_ranks(int ranks, rank_part_fn *part, const void *arg)
{
    pid_t pids[RANKS_MAX];
    int fd, code;
    assert_in_range(ranks, 1, RANKS_MAX);
    assert_int_equal(comm_job_create(ranks, &fd), STATUS_OK);
    for (int r = 0; r < ranks; r++) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] > 0) continue;
        struct comm *c;
        if (comm_open(&c, &(struct comm_env){.rank = r, .ranks = ranks, .by = COMM_BY_LAUNCH, .fd = fd}) !=
            STATUS_OK)
            _exit(1);
        const bool good = part(c, arg);
        if (!good) fprintf(stderr, "rank %d of %d: %s\n", r, ranks, status_message());
        comm_close(c, good ? STATUS_OK : STATUS_COMM);
        _exit(!good);
    }
    for (int r = 0; r < ranks; r++) {
        assert_int_equal(waitpid(pids[r], &code, 0), pids[r]);
        assert_int_equal(code, 0);
    }
    close(fd);
}
