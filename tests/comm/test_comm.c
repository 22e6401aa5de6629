/* Ranks as processes over shared memory: what collectives give, and how waits end. */
#include "comm/support_ranks.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/* What rank `from` sends to rank `to` at byte i; to -1: to all. */
static unsigned char sent(int from, int to, size_t i)
{
    return (unsigned char)(from * 31 + to * 7 + (int)(i % 251));
}

static int pass_bytes(struct comm *c, const void *arg)
{
    const size_t bytes = *(const size_t *)arg, ranks = (size_t)comm_ranks(c);
    const int me = comm_rank(c);
    unsigned char *send = malloc(bytes * ranks + 1), *recv = malloc(bytes * ranks + 1);
    int bad = send == NULL || recv == NULL;
    for (int round = 0; round < 2 && !bad; round++) { /* the memory is reused */
        for (size_t to = 0; to < ranks; to++)
            for (size_t i = 0; i < bytes; i++) send[to * bytes + i] = sent(me + round, (int)to, i);
        bad |= comm_all_to_all(c, "all to all", send, recv, bytes, NULL) != STATUS_OK;
        for (size_t from = 0; from < ranks; from++)
            for (size_t i = 0; i < bytes; i++)
                bad |= recv[from * bytes + i] != sent((int)from + round, me, i);
        for (size_t i = 0; i < bytes; i++) recv[(size_t)me * bytes + i] = sent(me + round, -1, i);
        bad |= comm_all_gather(c, "gather", recv + (size_t)me * bytes, recv, bytes, NULL) !=
               STATUS_OK; /* in place */
        for (size_t from = 0; from < ranks; from++)
            for (size_t i = 0; i < bytes; i++)
                bad |= recv[from * bytes + i] != sent((int)from + round, -1, i);
        for (size_t i = 0; i < bytes; i++) recv[i] = me == 0 ? sent(round, -2, i) : 0;
        bad |= comm_broadcast(c, "from the first", recv, bytes, NULL) != STATUS_OK;
        for (size_t i = 0; i < bytes; i++) bad |= recv[i] != sent(round, -2, i);
        bad |= comm_barrier(c, "end") != STATUS_OK;
    }
    free(send);
    free(recv);
    return bad;
}

static void test_bytes(void **state)
{
    (void)state;
    const size_t sizes[] = {0,    1,       63,
                            4096, 1398101, 9 << 20}; /* above what a buffer holds, and no multiple of it */
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int ranks = 2; ranks <= 5; ranks += i > 3 ? 3 : 1)
            expect_all(&(struct job){.ranks = ranks, .run = pass_bytes, .arg = &sizes[i]}, 0);
}

/* ---- sums: eight vectors, dealt to 1, 2, 4 or 8 ranks, give the same bits. */

enum { PARTS = 8, COUNT = 1037 };
static float part_value(int part, int i)
{
    return (float)((part * 7919 + i * 104729) % 10007) / 977.0f - 5.0f;
}
/* Parts first, first + step, ...: even ones plus odd ones. */
static void own_sum(float *x, double *scalar, int first, int step)
{
    if (step == PARTS) {
        for (int i = 0; i < COUNT; i++) x[i] = part_value(first, i);
        *scalar = 1.0 / (first + 3);
        return;
    }
    float odd[COUNT];
    double odd_scalar;
    own_sum(x, scalar, first, 2 * step);
    own_sum(odd, &odd_scalar, first + step, 2 * step);
    for (int i = 0; i < COUNT; i++) x[i] += odd[i];
    *scalar += odd_scalar;
}
static int sum_parts(struct comm *c, const void *arg)
{
    (void)arg;
    float x[COUNT], whole[COUNT];
    double scalar, whole_scalar;
    void *scratch = malloc(comm_all_reduce_scratch(comm_ranks(c), COUNT, DTYPE_F32) + 1);
    own_sum(whole, &whole_scalar, 0, 1);
    own_sum(x, &scalar, comm_rank(c), comm_ranks(c));
    int bad = scratch == NULL || comm_all_reduce(c, "sum", x, COUNT, DTYPE_F32, scratch, NULL) != STATUS_OK;
    bad |= comm_all_reduce_f64(c, "scalar", &scalar, 1, NULL) != STATUS_OK;
    free(scratch);
    return bad || memcmp(x, whole, sizeof x) != 0 || scalar != whole_scalar;
}
static void test_sums(void **state)
{
    (void)state;
    assert_int_equal(sum_parts(NULL, NULL), 0);
    for (int ranks = 2; ranks <= PARTS; ranks *= 2)
        expect_all(&(struct job){.ranks = ranks, .run = sum_parts}, 0);
}
static int sum_ones(struct comm *c, const void *arg)
{
    (void)arg;
    double x[2] = {1, comm_rank(c)};
    if (comm_all_reduce_f64(c, "scalars", x, 2, NULL) != STATUS_OK) return 1;
    return x[0] != comm_ranks(c) || x[1] != comm_ranks(c) * (comm_ranks(c) - 1) / 2.0;
}
static void test_any_number(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 7; ranks++) expect_all(&(struct job){.ranks = ranks, .run = sum_ones}, 0);
}

/* ---- how waits end */

static int differ(struct comm *c, const void *arg)
{
    char x[64] = "", all[256];
    (void)arg;
    const size_t bytes = comm_rank(c) == 1 ? 8 : 16;
    if (comm_barrier(c, "before") != STATUS_OK) return 1;
    if (comm_all_gather(c, "weights", x, all, bytes, NULL) != STATUS_COMM) return 1;
    return said("all-gather 'weights' of 8 bytes") && said("of 16 bytes") ? STATUS_COMM : 1;
}
static void test_different_calls(void **state)
{
    (void)state;
    expect_all(&(struct job){.ranks = 3, .run = differ}, STATUS_COMM);
}

/* Rank 2 dies, stops, ends early, or fails; the others say which rank it was, and in which collective they wait. */
struct end {
    int signal, code;
    const char *text;
};
static int lose_one(struct comm *c, const void *arg)
{
    const struct end *e = arg;
    if (comm_barrier(c, "one") != STATUS_OK) return 1;
    if (comm_rank(c) == 2) {
        if (e->signal) raise(e->signal);
        if (e->code) return (int)status_fail((status)e->code, __FILE__, __LINE__, "the disk is full");
        return 0;
    }
    if (comm_barrier(c, "two") != STATUS_COMM) return 1;
    return said("rank 2") && said(e->text) ? STATUS_COMM : 1;
}
static void wake_up(const pid_t *pids)
{
    for (int r = 0; r < 4; r++)
        if (r != 2) assert_int_equal(waitid(P_PID, (id_t)pids[r], &(siginfo_t){0}, WEXITED | WNOWAIT), 0);
    kill(pids[2], SIGKILL);
}
static void test_lost(void **state)
{
    (void)state;
    const struct end ends[] = {{SIGKILL, 0, "no sign of life"},
                               {SIGSTOP, 0, "no sign of life"},
                               {0, 0, "has ended before"},
                               {0, STATUS_IO, "the disk is full"}};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        int codes[16];
        run_job(&(struct job){.ranks = 4, .run = lose_one, .arg = &ends[i], .meddle = wake_up}, codes);
        for (int r = 0; r < 4; r++)
            if (r != 2) assert_int_equal(WEXITSTATUS(codes[r]), STATUS_COMM);
    }
}

/* ---- the environment */

static void set_all(const char *rank, const char *ranks, const char *how)
{
    const char *const values[] = {rank, ranks, how}, *const names[] = {"INGOT_RANK", "INGOT_RANKS",
                                                                       "INGOT_COMM"};
    for (int i = 0; i < 3; i++) {
        if (values[i])
            setenv(names[i], values[i], 1);
        else
            unsetenv(names[i]);
    }
}
static void test_environment(void **state)
{
    struct comm_env e;
    (void)state;
    const char *const bad[][3] = {{"1", NULL, NULL},     {"2", "2", "fd:3"},    {"x", "2", "fd:3"},
                                  {"0", "2", NULL},      {"0", "9999", "fd:3"}, {"-1", "2", "fd:3"},
                                  {"0", "2", "tcp:host"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        set_all(bad[i][0], bad[i][1], bad[i][2]);
        assert_int_equal(comm_env_read(&e), STATUS_CONFIG);
    }
    set_all("1", "2", "fd:0");
    struct comm *c;
    assert_int_equal(comm_env_read(&e), STATUS_OK);
    assert_int_equal(e.rank, 1);
    assert_int_equal(comm_open(&c, &e), STATUS_CONFIG); /* standard input is no job's memory */
    set_all(NULL, NULL, NULL);
    assert_int_equal(comm_env_read(&e), STATUS_OK);
    assert_int_equal(comm_open(&c, &e), STATUS_OK);
    assert_null(c);
    assert_int_equal(comm_ranks(c), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),      cmocka_unit_test(test_sums),
        cmocka_unit_test(test_any_number), cmocka_unit_test(test_different_calls),
        cmocka_unit_test(test_lost),       cmocka_unit_test(test_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
