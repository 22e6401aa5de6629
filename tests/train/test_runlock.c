/* Goal: of two jobs on one run directory the second is turned away, and a dead job holds nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/io.h"
#include "train/runlock.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void the_second_job_is_told_who_has_the_run(void **state)
{
    (void)state;
    char root[] = "/tmp/ingot-lock-XXXXXX", run[64], pid[32];
    assert_non_null(mkdtemp(root));
    snprintf(run, sizeof run, "%s/run", root);
    snprintf(pid, sizeof pid, "process %d on", (int)getpid());
    int first, second;
    assert_int_equal(runlock_take(run, &first), STATUS_OK);
    assert_int_equal(runlock_take(run, &second), STATUS_CONFIG);
    assert_int_equal(second, -1);
    assert_non_null(strstr(status_message(), pid));
    runlock_release(&first);
    assert_int_equal(runlock_take(run, &second), STATUS_OK);
    runlock_release(&second);
    assert_int_equal(io_remove_tree(root), STATUS_OK);
}

static void a_killed_job_leaves_the_run_free(void **state)
{
    (void)state;
    char root[] = "/tmp/ingot-lock-XXXXXX", byte;
    int ready[2], fd;
    assert_non_null(mkdtemp(root));
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        if (runlock_take(root, &fd) != STATUS_OK || write(ready[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(runlock_take(root, &fd), STATUS_CONFIG);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_int_equal(runlock_take(root, &fd), STATUS_OK);
    runlock_release(&fd);
    close(ready[0]);
    close(ready[1]);
    assert_int_equal(io_remove_tree(root), STATUS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_second_job_is_told_who_has_the_run),
        cmocka_unit_test(a_killed_job_leaves_the_run_free),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
