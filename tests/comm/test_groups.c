/* Groups of ranks, sums that are scattered, and messages along a ring; and how their waits end. Under mpirun (tests/comm/test_mpi.sh) this
 * program is a rank, and does what needs no second job. */
#include "comm/support_ranks.h"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NEED(cond)                                                                                           \
    do {                                                                                                     \
        if (!(cond)) {                                                                                       \
            fprintf(stderr, "rank %d, line %d: not so: %s (%s)\n", comm_rank(c), __LINE__, #cond,            \
                    status_message());                                                                       \
            return 1;                                                                                        \
        }                                                                                                    \
    } while (0)
#define OK(call) NEED((call) == STATUS_OK)

/* ---- sums that are scattered */

static double value(int rank, int64_t i)
{
    return (double)((rank * 7919 + i * 104729) % 10007) / 977.0 - 5.0;
}
static double stored(int rank, int64_t i, dtype dt)
{
    char one[8];
    dtype_store(one, 0, dt, value(rank, i));
    return dtype_load(one, 0, dt);
}
/* Ranks first, first + step, ...: even ones plus odd ones; in F32 unless the type is F64. */
static double tree(int first, int step, int ranks, int64_t i, dtype dt)
{
    if (ranks == 1) return stored(first, i, dt);
    const double even = tree(first, 2 * step, (ranks + 1) / 2, i, dt);
    const double odd = tree(first + step, 2 * step, ranks / 2, i, dt);
    return dt == DTYPE_F64 ? even + odd : (double)((float)even + (float)odd);
}

struct shape {
    int64_t count;
    dtype dt;
};
static int sum_scattered(struct comm *c, const void *arg)
{
    const struct shape *s = arg;
    const size_t each = dtype_bytes(s->dt), bytes = (size_t)s->count * each;
    const int ranks = comm_ranks(c), me = comm_rank(c);
    char *x = malloc((size_t)ranks * bytes), *y = malloc((size_t)ranks * bytes), *want = malloc(bytes);
    char *scratch = malloc(comm_all_reduce_scratch(comm_ranks(c), s->count * ranks, s->dt) +
                           comm_reduce_scatter_scratch(comm_ranks(c), s->count, s->dt) + 64);
    NEED(x && y && want && scratch);
    for (int64_t i = 0; i < ranks * s->count; i++) dtype_store(x, i, s->dt, value(me, i));
    for (int k = 1; k < ranks; k++) /* step by step */
        OK(comm_ring_shift(c, "shifted", k, x + (size_t)((me + k) % ranks) * bytes,
                           scratch + (size_t)((me + ranks - k) % ranks) * bytes, bytes, NULL));
    if (c) OK(comm_reduce_scatter_finish(c, scratch, x + (size_t)me * bytes, y, s->count, s->dt, NULL));
    for (int64_t i = 0; i < s->count; i++)
        dtype_store(want, i, s->dt, tree(0, 1, ranks, me * s->count + i, s->dt));
    NEED(c == NULL || memcmp(y, want, bytes) == 0);
    memcpy(y, x, (size_t)ranks * bytes);
    char *own = y + (size_t)me * bytes; /* in place */
    OK(comm_reduce_scatter(c, "scattered", y, own, s->count, s->dt, scratch, NULL));
    NEED(memcmp(own, want, bytes) == 0);
    /* A sum is what is scattered, gathered. */
    OK(comm_all_gather(c, "gathered", own, y, bytes, NULL));
    OK(comm_all_reduce(c, "sum", x, ranks * s->count, s->dt, scratch, NULL));
    NEED(memcmp(x, y, (size_t)ranks * bytes) == 0);
    memset(x, 0, (size_t)ranks * bytes);
    OK(comm_gather(c, "to the first", want, x, bytes));
    NEED(me > 0 || memcmp(x, y, (size_t)ranks * bytes) == 0);
    free(x);
    free(y);
    free(want);
    free(scratch);
    return 0;
}
static const struct shape shapes[] = {
    {1, DTYPE_F32}, {1037, DTYPE_F32}, {1037, DTYPE_BF16}, {1037, DTYPE_F64}, {150000, DTYPE_F32}};
static void test_scattered_sums(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        assert_int_equal(sum_scattered(NULL, &shapes[i]), 0);
        for (int ranks = 2; ranks <= 8; ranks += ranks == 4 ? 4 : 1)
            expect_all(&(struct job){.ranks = ranks, .run = sum_scattered, .arg = &shapes[i]}, 0);
    }
}

/* ---- rows of different numbers */

enum { ROUNDS = 6, ROWS_MOST = 3001 };
/* Rows from i to j in a round: none at all, of one pair alone, a few, and more than go through a buffer at once. */
static int64_t rows_of(int round, int ranks, int i, int j)
{
    switch (round) {
    case 0: return 0;
    case 1: return i == ranks - 1 && j == 0 ? 5 : 0;
    case 2: return i == j ? 3 : 0;
    case 3: return j == 0 ? ROWS_MOST : i == j;
    default: return (i * 31 + j * 17 + round * 7) % 23;
    }
}
static unsigned char row_byte(int round, int from, int to, int64_t row, size_t k)
{
    return (unsigned char)(round * 3 + from * 61 + to * 29 + row * 7 + (int64_t)(k % 241));
}
static int exchange_rows_of(struct comm *c, size_t bytes)
{
    const int ranks = comm_ranks(c), me = comm_rank(c);
    unsigned char *send = malloc((size_t)ranks * ROWS_MOST * bytes),
                  *recv = malloc((size_t)ranks * ROWS_MOST * bytes + 1);
    int64_t *counts = malloc((size_t)(ranks * ranks) * sizeof *counts);
    NEED(send && recv && counts);
    for (int round = 0; round < ROUNDS; round++) {
        size_t at = 0;
        for (int k = 0; k < ranks * ranks; k++) counts[k] = rows_of(round, ranks, k / ranks, k % ranks);
        for (int to = 0; to < ranks; to++)
            for (int64_t row = 0; row < counts[me * ranks + to]; row++)
                for (size_t k = 0; k < bytes; k++) send[at++] = row_byte(round, me, to, row, k);
        size_t all = 0;
        for (int from = 0; from < ranks; from++) all += (size_t)counts[from * ranks + me] * bytes;
        recv[all] = 77; /* behind the last row nothing is written */
        OK(comm_all_to_all_rows(c, "rows", counts, send, recv, bytes, NULL));
        NEED(recv[all] == 77);
        at = 0;
        for (int from = 0; from < ranks; from++)
            for (int64_t row = 0; row < counts[from * ranks + me]; row++)
                for (size_t k = 0; k < bytes; k++) NEED(recv[at++] == row_byte(round, from, me, row, k));
    }
    free(send);
    free(recv);
    free(counts);
    return 0;
}
static int exchange_rows(struct comm *c, const void *arg)
{
    (void)arg;
    return exchange_rows_of(c, 4) | exchange_rows_of(c, 1153) | exchange_rows_of(c, 640);
}
static int differ_in_rows(struct comm *c, const void *arg)
{
    const int64_t counts[4] = {1, 1, comm_rank(c), 1};
    char send[16] = "", recv[16];
    (void)arg;
    NEED(comm_all_to_all_rows(c, "rows", counts, send, recv, 4, NULL) == STATUS_COMM);
    return said("call all-to-all 'rows' (number 2) with other numbers of rows") ? STATUS_COMM : 1;
}
static void test_rows(void **state)
{
    (void)state;
    assert_int_equal(exchange_rows(NULL, NULL), 0);
    for (int ranks = 2; ranks <= 5; ranks++)
        expect_all(&(struct job){.ranks = ranks, .run = exchange_rows}, 0);
    expect_all(&(struct job){.ranks = 2, .run = differ_in_rows}, STATUS_COMM);
}

/* ---- groups */

/* A rank's groups in a mesh of 2 x 2 x 2 (or 2 x 2 x 1): along each axis, and in planes. */
static int use_mesh(struct comm *c, const void *arg)
{
    const int me = comm_rank(c), ranks = comm_ranks(c), at[3] = {me & 1, me >> 1 & 1, me >> 2};
    static const char *const names[] = {"tensor", "data", "pipe"};
    struct comm *axis[3], *plane, *alone, *part;
    (void)arg;
    for (int k = 0; k < 3; k++) {
        const int size = 1 << k < ranks ? 2 : 1;
        OK(comm_split(c, names[k], me - (at[k] << k), at[k], &axis[k]));
        NEED(size == 2 ? axis[k] != NULL : axis[k] == NULL);
        NEED(comm_ranks(axis[k]) == size && comm_rank(axis[k]) == at[k]);
    }
    OK(comm_split(c, "plane", at[2] - 7, -me, &plane)); /* a negative color; backwards */
    NEED(comm_ranks(plane) == 4 && comm_rank(plane) == 3 - me % 4);
    OK(comm_split(plane, "part of a plane", at[1], me, &part)); /* what the tensor axis is */
    NEED(comm_ranks(part) == 2 && comm_rank(part) == at[0]);
    OK(comm_split(c, "alone", me, 0, &alone));
    NEED(alone == NULL);
    for (int round = 0; round < 20; round++)
        for (int k = 0; k < 3; k++) { /* each axis independently, all of them alternating */
            int32_t mine[2] = {me, round}, both[4];
            const int other = me ^ 1 << k;
            for (int more = 0; more <= (me - (at[k] << k)) % 3; more++)
                OK(comm_all_gather(axis[k], "numbers", mine, both, sizeof mine, NULL));
            if (axis[k]) NEED(both[2 * !at[k]] == other && both[2 * !at[k] + 1] == round);
        }
    double x[2] = {1, me};
    OK(comm_all_reduce_f64(plane, "scalars", x, 2, NULL));
    NEED(x[0] == 4 && x[1] == 4 * (me / 4 * 4) + 6);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (sum_scattered(plane, &shapes[i]) || sum_scattered(axis[1], &shapes[i])) return 1;
    }
    OK(comm_barrier(part, "part"));
    OK(comm_barrier(c, "end"));
    return 0;
}
static void test_mesh(void **state)
{
    (void)state;
    expect_all(&(struct job){.ranks = 8, .run = use_mesh}, 0);
    expect_all(&(struct job){.ranks = 4, .run = use_mesh}, 0);
}

static int split_too_often(struct comm *c, const void *arg)
{
    struct comm *g;
    (void)arg;
    for (int i = 1; i < COMM_GROUPS; i++) OK(comm_split(c, "again", 0, 0, &g));
    NEED(comm_split(c, "one more", 0, 0, &g) == STATUS_CONFIG);
    return said("one more") ? STATUS_CONFIG : 1;
}
static void test_too_many(void **state)
{
    (void)state;
    expect_all(&(struct job){.ranks = 2, .run = split_too_often}, STATUS_CONFIG);
}

/* ---- messages */

enum { LONGEST = 100000, DEPTH = 3 };
static size_t length(int number)
{
    return (size_t)(number * 7919) % (LONGEST + 1);
}
static unsigned char letter(int from, enum comm_way way, int number, size_t i)
{
    return (unsigned char)(from * 31 + (int)way * 101 + number * 7 + (int)(i % 251));
}
static int send_one(struct comm *c, enum comm_way way, int number, unsigned char *data)
{
    const size_t bytes = length(number);
    for (size_t i = 0; i < bytes; i++) data[i] = letter(comm_rank(c), way, number, i);
    OK(comm_send(c, way == COMM_NEXT ? "forward" : "back", way, data, bytes, NULL));
    memset(data, 0, bytes);
    return 0;
}
static int take_one(struct comm *c, enum comm_way way, int number, unsigned char *data)
{
    const int ranks = comm_ranks(c);
    const int from = (comm_rank(c) + (way == COMM_NEXT ? ranks - 1 : 1)) % ranks;
    const size_t bytes = length(number);
    OK(comm_recv(c, way == COMM_NEXT ? "forward" : "back", way, data, bytes, NULL));
    for (size_t i = 0; i < bytes; i++) NEED(data[i] == letter(from, way, number, i));
    return 0;
}
static int send_around(struct comm *c)
{
    unsigned char *data = malloc(LONGEST);
    int bad = 0, number = 0;
    NEED(data);
    OK(comm_mailbox_open(c, LONGEST, DEPTH, NULL));
    for (int round = 0; round < 5; round++, number += DEPTH) {
        for (int k = 0; k < DEPTH; k++) /* no receiver yet: no sender may wait */
            bad |= send_one(c, COMM_NEXT, number + k, data) | send_one(c, COMM_PREV, number + k, data);
        for (int k = 0; k < DEPTH; k++) bad |= take_one(c, COMM_PREV, number + k, data);
        for (int k = 0; k < DEPTH; k++) bad |= take_one(c, COMM_NEXT, number + k, data);
    }
    for (int k = 0; k < 40; k++) { /* one rank is far behind: the others wait for space */
        bad |= send_one(c, COMM_NEXT, number + k, data);
        if (comm_rank(c) == comm_ranks(c) - 1 && k < 20 && k % 8 == 0) usleep(2000);
        bad |= take_one(c, COMM_NEXT, number + k, data);
    }
    free(data);
    return bad;
}
static int exchange_messages(struct comm *c, const void *arg)
{
    struct comm *half;
    (void)arg;
    OK(comm_split(c, "half", comm_rank(c) % 2, 0, &half));
    if (send_around(c)) return 1;
    if (half && send_around(half)) return 1;
    OK(comm_mailbox_open(NULL, 1, 1, NULL));
    OK(comm_barrier(c, "end"));
    return 0;
}
static void test_messages(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 8; ranks += ranks == 4 ? 4 : 1)
        expect_all(&(struct job){.ranks = ranks, .run = exchange_messages}, 0);
}

/* ---- how waits end */

static int differ_in_group(struct comm *c, const void *arg)
{
    struct comm *g;
    char x[32] = "", all[128];
    (void)arg;
    OK(comm_split(c, "tensor", comm_rank(c) / 2, 0, &g));
    const char *name = comm_rank(c) == 3 ? "queries" : "keys";
    const status st = comm_all_gather(g, name, x, all, 16, NULL);
    if (comm_rank(c) < 2 && st == STATUS_OK) /* there nothing differs: they may get through */
        NEED(comm_barrier(c, "end") == STATUS_COMM);
    else
        NEED(st == STATUS_COMM);
    return said("rank 2 (rank 0 of 'tensor') calls all-gather 'keys'") &&
                   said("rank 3 (rank 1 of 'tensor') calls all-gather 'queries'")
               ? STATUS_COMM
               : 1;
}
static int differ_in_message(struct comm *c, const void *arg)
{
    char x[32] = "";
    (void)arg;
    OK(comm_mailbox_open(c, 32, 2, NULL));
    OK(comm_send(c, "activations", COMM_NEXT, x, 8, NULL));
    const char *name = comm_rank(c) == 1 ? "gradients" : "activations";
    if (comm_recv(c, name, COMM_NEXT, x, 8, NULL) == STATUS_OK) NEED(comm_barrier(c, "end") == STATUS_COMM);
    return said("rank 0 sends 'activations' of 8 bytes to the next rank") &&
                   said("rank 1 asks for 'gradients' of 8 bytes")
               ? STATUS_COMM
               : 1;
}
static void test_different_calls(void **state)
{
    (void)state;
    expect_all(&(struct job){.ranks = 4, .run = differ_in_group}, STATUS_COMM);
    expect_all(&(struct job){.ranks = 3, .run = differ_in_message}, STATUS_COMM);
}

/* Rank 5 of 8 dies or stops; the others wait in a group of it, in a group that it is not in, for its message, or for its reading. */
static int lose_five(struct comm *c, const void *arg)
{
    const int me = comm_rank(c), signal = *(const int *)arg;
    struct comm *g;
    char x[8] = "", all[32];
    OK(comm_split(c, "data", me / 4, 0, &g));
    OK(comm_mailbox_open(c, sizeof x, 1, NULL));
    if (me == 5) raise(signal);
    status st = STATUS_OK;
    if (me == 6) st = comm_recv(c, "from five", COMM_NEXT, x, sizeof x, NULL);
    if (me == 4)
        while (st == STATUS_OK) st = comm_send(c, "to five", COMM_NEXT, x, sizeof x, NULL);
    if (me == 7) st = comm_all_gather(g, "with five", x, all, sizeof x, NULL);
    if (me < 4)
        while (st == STATUS_OK) st = comm_all_gather(g, "without five", x, all, sizeof x, NULL);
    NEED(st == STATUS_COMM);
    NEED(said("rank 5 (process ") && said("no sign of life"));
    return said(me == 6 ? "receive 'from five'" : " '") ? STATUS_COMM : 1;
}
static void end_five(const pid_t *pids)
{
    for (int r = 0; r < 8; r++)
        if (r != 5) assert_int_equal(waitid(P_PID, (id_t)pids[r], &(siginfo_t){0}, WEXITED | WNOWAIT), 0);
    kill(pids[5], SIGKILL);
}
static void test_lost(void **state)
{
    (void)state;
    const int signals[] = {SIGKILL, SIGSTOP};
    for (int i = 0; i < 2; i++) {
        int codes[JOB_RANKS];
        run_job(&(struct job){.ranks = 8, .run = lose_five, .arg = &signals[i], .meddle = end_five}, codes);
        for (int r = 0; r < 8; r++)
            if (r != 5) assert_int_equal(WEXITSTATUS(codes[r]), STATUS_COMM);
    }
}
/* A rank that has sent and left in good order has not failed; one that leaves before it sends has. */
static int leave_early(struct comm *c, const void *arg)
{
    char x[8] = "";
    (void)arg;
    OK(comm_mailbox_open(c, sizeof x, 1, NULL));
    if (comm_rank(c) == 0) {
        OK(comm_send(c, "last words", COMM_NEXT, x, sizeof x, NULL));
        return 0;
    }
    usleep(200000);
    OK(comm_recv(c, "last words", COMM_NEXT, x, sizeof x, NULL));
    NEED(comm_recv(c, "more", COMM_NEXT, x, sizeof x, NULL) == STATUS_COMM);
    return said("rank 0 (process ") && said("has ended before") ? 0 : 1;
}
static void test_leaving(void **state)
{
    (void)state;
    expect_all(&(struct job){.ranks = 2, .run = leave_early}, 0);
}

/* ---- memory of communication */

/* Bytes of the job's shared memory that this process has mapped. */
static size_t mapped(void)
{
    char line[512];
    size_t sum = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && fgets(line, sizeof line, f)) {
        char *end;
        const unsigned long begin = strtoul(line, &end, 16);
        if (strstr(line, "memfd:ingot") && *end == '-') sum += strtoul(end + 1, NULL, 16) - begin;
    }
    if (f) fclose(f);
    return sum;
}

/* Said before is what is taken; and with as many groups as there can be, all ranks' is what each of them maps. */
static int take_room(struct comm *c, const void *arg)
{
    (void)arg;
    const size_t bytes = 100000, whole = mapped();
    const int ranks = comm_ranks(c);
    struct comm_memory_args a = {.job = comm_job(c), .groups = 1};
    const int apart = comm_rank(c) == ranks - 1 ? 1 : ranks - 1; /* test_mpi.sh's machine of the last one */
    NEED(a.job.ranks == ranks && (a.job.here == ranks || (!a.job.shares_memory && a.job.here == apart)));
    NEED(comm_memory_used(c).host == comm_memory(&a).host && comm_memory_used(c).device == 0);
    a.groups = COMM_GROUPS;
    if (a.job.shares_memory) {
        const size_t all = (size_t)ranks * comm_memory(&a).host;
        NEED(all <= whole && all + (size_t)ranks > whole);
    }
    struct comm *pair;
    OK(comm_split(c, "pair", comm_rank(c) / 2, comm_rank(c), &pair));
    OK(comm_mailbox_open(pair, bytes, 3, NULL));
    a.groups = 2, a.mailbox_bytes = bytes, a.mailbox_depth = 3, a.mailbox_ranks = 2;
    const size_t room = comm_memory(&a).host;
    NEED(comm_memory_used(c).host == room);
    a.mailbox_depth = 0;
    const size_t mail = room - comm_memory(&a).host;
    NEED(mail >= (a.job.shares_memory ? 6 : 7) * bytes && mail < 8 * bytes);
    NEED(!a.job.shares_memory || 2 * mail == mapped() - whole);
    return 0;
}

static void test_room(void **state)
{
    (void)state;
    expect_all(&(struct job){.ranks = 4, .run = take_room}, 0);
    assert_true(comm_memory_used(NULL).host == 0);
    const struct comm_memory none =
        comm_memory(&(struct comm_memory_args){.job = comm_job(NULL), .devices = true});
    assert_true(none.host == 0 && none.device == 0);
}

/* GPUs' messages by NCCL: slots as by peer access, and in a first step the host's mailboxes and a message beside them. */
static void test_room_of_nccl(void **state)
{
    enum { BYTES = 100000 };
    struct comm_memory_args a = {.job = {.ranks = 4, .here = 2},
                                 .groups = 2,
                                 .mailbox_bytes = BYTES,
                                 .mailbox_depth = 3,
                                 .mailbox_ranks = 4};
    (void)state;
    for (int memory = 0; memory < 2; memory++) {
        a.job.shares_memory = memory == 1;
        a.devices = a.job.mail_by_nccl = false;
        size_t mailboxes = comm_memory(&a).host;
        a.mailbox_depth = 0;
        mailboxes -= comm_memory(&a).host;
        a.mailbox_depth = 3, a.devices = true;
        const struct comm_memory peer = comm_memory(&a);
        a.job.mail_by_nccl = true;
        const struct comm_memory nccl = comm_memory(&a);
        assert_int_equal(nccl.device, peer.device);
        assert_int_equal(nccl.host, peer.host + mailboxes + BYTES);
        assert_true(mailboxes >= (size_t)6 * BYTES);
    }
}

/* A rank of mpirun: argv[1] is "works", "stop" (the last rank is stopped) or "message" (the ranks differ). */
static int as_rank(const char *what)
{
    struct comm_env e;
    struct comm *c = NULL;
    if (comm_env_read(&e) != STATUS_OK || comm_open(&c, &e) != STATUS_OK) return OPEN_FAILED;
    int code = 1;
    if (strcmp(what, "works") == 0) {
        code = take_room(c, NULL) | use_mesh(c, NULL) | exchange_messages(c, NULL) | exchange_rows(c, NULL);
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) code |= sum_scattered(c, &shapes[i]);
    }
    if (strcmp(what, "stop") == 0) { /* the last rank */
        const int last = comm_ranks(c) - 1;
        char text[32];
        snprintf(text, sizeof text, "rank %d (process ", last);
        code = comm_barrier(c, "one") != STATUS_OK;
        sleep(2); /* signs of life go around */
        if (comm_rank(c) == last) raise(SIGSTOP);
        code =
            comm_barrier(c, "two") == STATUS_COMM && said(text) && said("no sign of life") ? STATUS_COMM : 1;
    }
    if (strcmp(what, "message") == 0) code = differ_in_message(c, NULL);
    comm_close(c, (status)code);
    return code;
}

/* ---- time that is waited: by those that come early, for the one that works */

static int wait_for_last(struct comm *c, const void *arg)
{
    (void)arg;
    const bool last = comm_rank(c) == comm_ranks(c) - 1;
    OK(comm_barrier(c, "begin"));
    const double before = comm_wait_s(c);
    if (last) usleep(600000);
    OK(comm_barrier(c, "late"));
    const double waited = comm_wait_s(c) - before;
    NEED(last ? waited < 0.4 : waited > 0.4 && waited < 60);
    return 0;
}
static void test_waited(void **state)
{
    (void)state;
    expect_all(&(struct job){.ranks = 3, .run = wait_for_last}, 0);
    assert_true(comm_wait_s(NULL) == 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scattered_sums),
        cmocka_unit_test(test_mesh),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_lost),
        cmocka_unit_test(test_leaving),
        cmocka_unit_test(test_different_calls),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_room_of_nccl),
        cmocka_unit_test(test_waited),
        cmocka_unit_test(test_rows),
    };
    if (argc > 1) return as_rank(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
