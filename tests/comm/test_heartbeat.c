/* What ranks do together when something goes wrong: waits that none of them can end, more ranks than cores, steps that differ, and the
 * record of their last calls. */
#include "comm/health/heartbeat.h"
#include "comm/support_ranks.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- all wait */

/* Each rank is where it should be by its own program, and none can go on. */
static int wait_in_a_circle(struct comm *c, const void *arg)
{
    char x[8] = "", all[32];
    struct comm *pair;
    (void)arg;
    if (comm_split(c, "pair", comm_rank(c) / 2, 0, &pair) != STATUS_OK) return 1;
    if (comm_mailbox_open(c, sizeof x, 1, NULL) != STATUS_OK) return 1;
    const status st = comm_rank(c) == 3 ? comm_recv(c, "never sent", COMM_NEXT, x, sizeof x, NULL)
                                        : comm_all_gather(pair, "a pair's", x, all, sizeof x, NULL);
    if (comm_rank(c) < 2 && st == STATUS_OK) return comm_barrier(c, "end") == STATUS_COMM ? STATUS_COMM : 1;
    if (st != STATUS_COMM) return 1;
    return said("the ranks wait for each other") && said("rank 0 in collective 5, barrier 'end'") &&
                   said("rank 2 in collective 1 of 'pair', all-gather 'a pair's'") &&
                   said("rank 3 in message 1, receive 'never sent'")
               ? STATUS_COMM
               : 1;
}
static void test_circle(void **state)
{
    (void)state;
    expect_all(&(struct job){.ranks = 4, .run = wait_in_a_circle}, STATUS_COMM);
}
/* A rank that is busy is waited for: longer than all of them may wait together. */
static int wait_for_work(struct comm *c, const void *arg)
{
    (void)arg;
    if (comm_barrier(c, "before") != STATUS_OK) return 1;
    if (comm_rank(c) == 1) usleep((useconds_t)((COMM_STUCK_S + 1.5) * 1e6));
    return comm_barrier(c, "after") != STATUS_OK;
}
static void test_busy(void **state)
{
    (void)state;
    expect_all(&(struct job){.ranks = 3, .run = wait_for_work}, 0);
}

/* ---- spinning */

/* Two ranks on the cores given, and whether the first is crowded before and after the second has come. */
static void expect_crowded(int core0, int core1, bool crowded)
{
    const int cores[] = {core0, core1};
    struct rank_monitor *w[2];
    int fd;
    assert_int_equal(heartbeat_create(2, heartbeat_bytes(2), &fd), STATUS_OK);
    struct heartbeat *b = mmap(NULL, heartbeat_bytes(2), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(b != MAP_FAILED);
    for (int r = 0; r < 2; r++) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET((size_t)cores[r], &one);
        assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
        assert_int_equal(rank_monitor_open(&w[r], b, r), STATUS_OK);
        assert_int_equal(rank_monitor_crowded(w[0]), r == 1 && crowded);
    }
    assert_int_equal(rank_monitor_crowded(w[1]), crowded);
    for (int r = 0; r < 2; r++) rank_monitor_close(w[r], STATUS_OK);
    munmap(b, heartbeat_bytes(2));
    close(fd);
}
/* Two ranks of one core are crowded: the union of all ranks' cores counts, not each one's. */
static void test_crowded(void **state)
{
    (void)state;
    cpu_set_t all;
    int first = -1, last = -1;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    for (int k = 0; k < CPU_SETSIZE; k++)
        if (CPU_ISSET((size_t)k, &all)) first = first < 0 ? k : first, last = k;
    expect_crowded(first, first, true);
    if (last > first) expect_crowded(first, last, false);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

/* ---- steps */

enum fault { NONE, OTHER_NAME, ONE_MORE, ONE_LESS, LATE };
static const struct {
    enum fault fault;
    const char *text; /* of the error that both ranks see; NULL: none */
} faults[] = {
    {NONE, NULL},
    {OTHER_NAME, "call 2 of this step is barrier 'other' of 0 bytes in 'all ranks', in the first step it was "
                 "barrier 'b' of 0 bytes in 'all ranks'"},
    {ONE_MORE,
     "call 4 of this step is barrier 'more' of 0 bytes in 'all ranks', in the first step it was the end"},
    {ONE_LESS,
     "this step ends after 2 calls, in the first step send 'message' of 4 bytes in 'all ranks' came next"},
    {LATE, "call different collectives in the first step"},
};

static status step(struct comm *c, int number, enum fault fault)
{
    double x = 1;
    const bool wrong = number == 2;
    const bool late = fault == LATE && comm_rank(c) == 1; /* its list has one call less */
    if (!late) comm_step_begin(c, number == 0 ? COMM_STEP_FIRST : COMM_STEP_REPEAT);
    TRY(comm_all_reduce_f64(c, "a", &x, 1, NULL));
    if (late) comm_step_begin(c, number == 0 ? COMM_STEP_FIRST : COMM_STEP_REPEAT);
    TRY(comm_barrier(c, fault == OTHER_NAME && wrong ? "other" : "b"));
    if (fault != ONE_LESS || !wrong) TRY(comm_send(c, "message", COMM_NEXT, "abc", 4, NULL));
    if (fault == ONE_MORE && wrong) TRY(comm_barrier(c, "more"));
    TRY(comm_step_end(c));
    char got[4];
    return comm_recv(c, "message", COMM_NEXT, got, 4, NULL); /* outside of the list */
}
static int do_steps(struct comm *c, const void *arg)
{
    const size_t k = *(const size_t *)arg;
    status st = comm_mailbox_open(c, 4, 1, NULL);
    for (int number = 0; number < 5 && st == STATUS_OK; number++) {
        st = step(c, number, faults[k].fault);
        if (st == STATUS_OK) st = comm_barrier(c, "between steps");
        if (number == 3 && st == STATUS_OK) comm_step_begin(c, COMM_STEP_FIRST); /* another list */
        if (number == 3 && st == STATUS_OK) st = comm_barrier(c, "b");
        if (number == 3 && st == STATUS_OK) st = comm_step_end(c);
        if (number == 3) return st;
    }
    return faults[k].text && said(faults[k].text) ? (int)st : 1;
}
static void test_steps(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof faults / sizeof faults[0]; k++)
        expect_all(&(struct job){.ranks = 2, .run = do_steps, .arg = &k}, faults[k].text ? STATUS_COMM : 0);
}

/* ---- the flight recorder */

static char dir[] = "/tmp/ingot-flight-XXXXXX";

static int fly(struct comm *c, const void *arg)
{
    char x[8] = "", all[32];
    (void)arg;
    comm_flight_recorder_dir(c, dir);
    for (int i = 0; i < 70; i++)
        if (comm_all_gather(c, "many", x, all, sizeof x, NULL) != STATUS_OK) return 1;
    if (comm_rank(c) == 1) raise(SIGKILL);
    return comm_barrier(c, "last") == STATUS_COMM ? STATUS_COMM : 1;
}
static int lines_with(const char *path, const char *text)
{
    char line[512];
    int count = 0;
    FILE *f = fopen(path, "r");
    if (f == NULL) return -1;
    while (fgets(line, sizeof line, f)) count += strstr(line, text) != NULL;
    fclose(f);
    return count;
}
static void test_flight(void **state)
{
    char path[64];
    int fd;
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/comm-flight.txt", dir);
    assert_int_equal(comm_job_create(3, &fd), STATUS_OK);
    pid_t pids[3];
    for (int r = 0; r < 3; r++) {
        pids[r] = fork();
        if (pids[r] > 0) continue;
        struct comm *c;
        if (comm_open(&c, &(struct comm_env){.rank = r, .ranks = 3, .by = COMM_BY_LAUNCH, .fd = fd}) !=
            STATUS_OK)
            _exit(OPEN_FAILED);
        _exit(fly(c, NULL));
    }
    for (int r = 0; r < 3; r++) assert_int_equal(waitpid(pids[r], NULL, 0), pids[r]);
    comm_job_write_flight(fd, "rank 1 was ended");
    close(fd);
    assert_int_equal(lines_with(path, "# rank 1 was ended"), 1);
    assert_int_equal(lines_with(path, "rank=1 comm=all call=all-gather name='many' bytes=8 number="), 64);
    assert_int_equal(lines_with(path, "rank=1 comm=all call=barrier"), 0);
    assert_int_equal(lines_with(path, "rank=2 comm=all call=all-gather name='many' bytes=8 number="), 63);
    assert_int_equal(lines_with(path, "call=barrier name='last' bytes=0 number=72 begin="), 2);
    assert_int_equal(lines_with(path, "seconds=unfinished"), 2);
    unlink(path);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_circle), cmocka_unit_test(test_busy),   cmocka_unit_test(test_crowded),
        cmocka_unit_test(test_steps),  cmocka_unit_test(test_flight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
