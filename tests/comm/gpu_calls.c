/* Goal: calls whose data lie on GPUs leave what the same calls leave in the host's memory, bit for bit: by every path that they take, of odd
 * sizes, from odd addresses, in groups, beside other work, and by NCCL. Messages arrive as they were sent, in a first step, op by op and as a
 * graph, and take the memory that was planned. Method: as many ranks as there are GPUs, each call twice. */
#include "comm/support_ranks.h"
#include "base/rng.h"
#include "dev/dev.h"
#include "gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { NO_GPU = 77, RANKS_MAX = 8, COUNT_MAX = 1 << 19, BYTES_MAX = RANKS_MAX * COUNT_MAX * 8 };
static const int64_t counts[] = {1, 2, 3, 7, 16, 100, 1023, 4096, 8192, 30001, 65536, COUNT_MAX};
static const dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F64};

#define OK(call)                                                                                             \
    do {                                                                                                     \
        if ((call) != STATUS_OK) {                                                                           \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #call, status_message());                         \
            return 1;                                                                                        \
        }                                                                                                    \
    } while (0)

enum op { ALL_TO_ALL, ALL_GATHER, GATHER_IN_PLACE, REDUCE_SCATTER, SCATTER_IN_PLACE, SUM, OP_COUNT };
struct memory {
    char *in, *out, *scratch; /* BYTES_MAX and a little more; twice that */
};
struct rank {
    struct comm *c;
    struct dev dev;
    struct stream s;
    struct arena arena;
    struct memory host, gpu;
    char *got;
};
struct call {
    enum op op;
    int64_t count;
    dtype dt;
    size_t shift; /* elements before the data */
};

static size_t room(void)
{
    return BYTES_MAX + ARENA_ALIGN;
}

static int open_rank(struct rank *k, enum gpu_backend how)
{
    const size_t bytes = room();
    OK(dev_stream_open(&k->dev, &k->s));
    OK(comm_devices_open(k->c, &k->s, how));
    OK(dev_arena_reserve(&k->dev, &k->arena, "calls", 5 * bytes));
    k->gpu = (struct memory){arena_take(&k->arena, bytes, "in"), arena_take(&k->arena, bytes, "out"),
                             arena_take(&k->arena, 2 * bytes, "scratch")};
    k->host =
        (struct memory){aligned_alloc(64, bytes), aligned_alloc(64, bytes), aligned_alloc(64, 2 * bytes)};
    k->got = malloc(bytes);
    if (!k->host.in || !k->host.out || !k->host.scratch || !k->got) return 1;
    OK(comm_devices_register(k->c, k->arena.base, k->arena.size));
    return 0;
}

/* Where the result is, and how long. */
static status make(const struct call *a, struct comm *c, const struct memory *m, struct stream *s, char **out,
                   size_t *out_bytes)
{
    const size_t each = dtype_bytes(a->dt), bytes = (size_t)a->count * each;
    const int ranks = comm_ranks(c);
    char *in = m->in + a->shift * each, *result = m->out + a->shift * each,
         *own = in + (size_t)comm_rank(c) * bytes;
    *out = a->op == GATHER_IN_PLACE || a->op == SUM ? in : a->op == SCATTER_IN_PLACE ? own : result;
    *out_bytes = a->op >= REDUCE_SCATTER ? bytes : bytes * (size_t)ranks;
    switch (a->op) {
    case ALL_TO_ALL: return comm_all_to_all(c, "exchanged", in, result, bytes, s);
    case ALL_GATHER: return comm_all_gather(c, "gathered", in, result, bytes, s);
    case GATHER_IN_PLACE: return comm_all_gather(c, "gathered in place", own, in, bytes, s);
    case REDUCE_SCATTER:
        return comm_reduce_scatter(c, "scattered", in, result, a->count, a->dt, m->scratch, s);
    case SCATTER_IN_PLACE:
        return comm_reduce_scatter(c, "scattered in place", in, own, a->count, a->dt, m->scratch, s);
    case SUM: return comm_all_reduce(c, "summed", in, a->count, a->dt, m->scratch, s);
    case OP_COUNT: break;
    }
    return FAIL(STATUS_INTERNAL, "op %d", (int)a->op);
}

static int compare(struct rank *k, struct comm *c, const struct call *a)
{
    const int64_t n = a->count * comm_ranks(c) + (int64_t)a->shift;
    char *want, *left;
    size_t bytes;
    for (int64_t i = 0; i < n; i++)
        dtype_store(k->host.in, i, a->dt,
                    rng_uniform(9, RNG_TEST, (uint64_t)comm_rank(k->c), (uint64_t)i) - 0.5);
    OK(dev_upload(&k->s, k->gpu.in, k->host.in, (size_t)n * dtype_bytes(a->dt)));
    OK(dev_zero(&k->s, k->gpu.out, (size_t)n * dtype_bytes(a->dt)));
    OK(dev_sync(&k->s));
    OK(make(a, c, &k->host, NULL, &want, &bytes));
    OK(make(a, c, &k->gpu, &k->s, &left, &bytes));
    OK(dev_download(&k->s, k->got, left, bytes));
    OK(dev_sync(&k->s));
    if (memcmp(k->got, want, bytes) == 0) return 0;
    fprintf(stderr, "rank %d of %d: op %d of %lld %s, shifted by %zu, %s: the GPU has something else\n",
            comm_rank(c), comm_ranks(c), (int)a->op, (long long)a->count, dtype_name(a->dt), a->shift,
            k->s.side ? "overlapped" : "alone");
    return 1;
}

static int scalars(struct rank *k, struct comm *c)
{
    for (int count = 1; count <= COMM_SCALARS; count++) {
        double x[COMM_SCALARS], y[COMM_SCALARS];
        for (int i = 0; i < count; i++) x[i] = 1.0 / (3 + i + 7 * comm_rank(c));
        OK(dev_upload(&k->s, k->gpu.in, x, (size_t)count * sizeof *x));
        OK(comm_all_reduce_f64(c, "scalars", x, count, NULL));
        OK(comm_all_reduce_f64(c, "scalars", (double *)(void *)k->gpu.in, count, &k->s));
        OK(dev_download(&k->s, y, k->gpu.in, (size_t)count * sizeof *x));
        OK(dev_sync(&k->s));
        if (memcmp(x, y, (size_t)count * sizeof *x) != 0) return 1;
    }
    return 0;
}

/* As many rows as each pair of ranks has, which on the GPU its memory says; some pairs have none. */
static int rows(struct rank *k, struct comm *c)
{
    static const size_t widths[] = {2, 4, 6, 16, 100, 4096};
    const int ranks = comm_ranks(c), me = comm_rank(c);
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++) {
        int64_t pairs[RANKS_MAX * RANKS_MAX], sent = 0, got = 0, *on_gpu = (int64_t *)(void *)k->gpu.scratch;
        for (int i = 0; i < ranks * ranks; i++) pairs[i] = (i * 7 + (int64_t)w) % 3 ? (i * 131 + 5) % 300 : 0;
        for (int r = 0; r < ranks; r++) sent += pairs[me * ranks + r], got += pairs[r * ranks + me];
        const size_t bytes = (size_t)got * widths[w];
        for (size_t i = 0; i < (size_t)sent * widths[w]; i++)
            k->host.in[i] = (char)(i * 31 + (size_t)(me * 7));
        OK(dev_upload(&k->s, on_gpu, pairs, sizeof pairs));
        OK(dev_upload(&k->s, k->gpu.in, k->host.in, (size_t)sent * widths[w]));
        OK(dev_sync(&k->s));
        OK(comm_all_to_all_rows(c, "rows", pairs, k->host.in, k->host.out, widths[w], NULL));
        OK(comm_all_to_all_rows(c, "rows", on_gpu, k->gpu.in, k->gpu.out, widths[w], &k->s));
        OK(dev_download(&k->s, k->got, k->gpu.out, bytes));
        OK(dev_sync(&k->s));
        if (memcmp(k->got, k->host.out, bytes) == 0) continue;
        fprintf(stderr, "rank %d of %d: rows of %zu bytes: the GPU has something else\n", me, ranks,
                widths[w]);
        return 1;
    }
    return 0;
}

static int compare_all(struct rank *k, struct comm *c)
{
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++)
            for (enum op op = 0; op < OP_COUNT; op++)
                for (size_t shift = 0; shift < 2; shift++) {
                    const struct call a = {op, counts[i], dtypes[d], shift};
                    if (d > 0 && op < REDUCE_SCATTER) continue; /* bytes are bytes */
                    if (shift > 0 && counts[i] > 65536) continue;
                    if (compare(k, c, &a) != 0) return 1;
                }
    return scalars(k, c);
}

/* ---- messages: as many as mailboxes hold go both ways before one is received, several times per step. */

enum { DEPTH = 3, TURNS = 3, MAIL_BYTES = 300007, MAIL = DEPTH * TURNS };

static size_t message_bytes(int i)
{
    return i % DEPTH == 0 ? MAIL_BYTES : (size_t)(1 + 4099 * i);
}

/* The k-th byte of message i of a rank. */
static char message_byte(int rank, enum comm_way way, int i, int step, size_t k)
{
    return (char)(k * 31 + (size_t)(rank * 7 + (int)way * 3 + i * 11 + step * 5));
}

static char *message_at(char *base, enum comm_way way, int i)
{
    return base + ((size_t)way * MAIL + (size_t)i) * MAIL_BYTES;
}

static int put_messages(struct rank *k, const struct comm *c, int step)
{
    for (enum comm_way way = COMM_NEXT; way <= COMM_PREV; way++)
        for (int i = 0; i < MAIL; i++)
            for (size_t b = 0; b < message_bytes(i); b++)
                message_at(k->host.in, way, i)[b] = message_byte(comm_rank(c), way, i, step, b);
    OK(dev_upload(&k->s, k->gpu.in, k->host.in, (size_t)2 * MAIL * MAIL_BYTES));
    OK(dev_zero(&k->s, k->gpu.out, (size_t)2 * MAIL * MAIL_BYTES));
    OK(dev_sync(&k->s));
    return 0;
}

static status exchange(struct rank *k, struct comm *c)
{
    for (int turn = 0; turn < TURNS; turn++) {
        for (int i = turn * DEPTH; i < (turn + 1) * DEPTH; i++) {
            TRY(comm_send(c, "on", COMM_NEXT, message_at(k->gpu.in, COMM_NEXT, i), message_bytes(i), &k->s));
            TRY(comm_send(c, "back", COMM_PREV, message_at(k->gpu.in, COMM_PREV, i), message_bytes(i),
                          &k->s));
        }
        for (int i = turn * DEPTH; i < (turn + 1) * DEPTH; i++) {
            TRY(comm_recv(c, "back", COMM_PREV, message_at(k->gpu.out, COMM_PREV, i), message_bytes(i),
                          &k->s));
            TRY(comm_recv(c, "on", COMM_NEXT, message_at(k->gpu.out, COMM_NEXT, i), message_bytes(i), &k->s));
        }
    }
    return comm_mailbox_settle(c, &k->s);
}

static int check_messages(struct rank *k, const struct comm *c, int step)
{
    const int ranks = comm_ranks(c);
    OK(dev_download(&k->s, k->got, k->gpu.out, (size_t)2 * MAIL * MAIL_BYTES));
    OK(dev_sync(&k->s));
    for (enum comm_way way = COMM_NEXT; way <= COMM_PREV; way++)
        for (int i = 0; i < MAIL; i++)
            for (size_t b = 0; b < message_bytes(i); b++) {
                const int from = (comm_rank(c) + (way == COMM_NEXT ? ranks - 1 : 1)) % ranks;
                if (message_at(k->got, way, i)[b] == message_byte(from, way, i, step, b)) continue;
                fprintf(stderr, "rank %d of %d, step %d: byte %zu of message %d %s is another\n",
                        comm_rank(c), ranks, step, b, i, way == COMM_NEXT ? "on" : "back");
                return 1;
            }
    return 0;
}

/* Op by op, of which the first step differs by NCCL; then as a graph, captured once. */
static int steps_of_messages(struct rank *k, struct comm *c)
{
    enum { CAPTURED = 3, STEPS = 6 };
    struct graph graph = {0};
    for (int step = 0; step < STEPS; step++) {
        if (put_messages(k, c, step) != 0) return 1;
        comm_step_begin(k->c, step == 0          ? COMM_STEP_FIRST
                              : step <= CAPTURED ? COMM_STEP_REPEAT
                                                 : COMM_STEP_REPLAY);
        if (step == CAPTURED) OK(dev_graph_begin(&k->s));
        if (step <= CAPTURED) OK(exchange(k, c));
        if (step == CAPTURED) OK(dev_graph_end(&k->s, &graph, true));
        if (step >= CAPTURED) OK(dev_graph_launch(&k->s, &graph));
        OK(dev_sync(&k->s));
        OK(comm_step_end(k->c));
        if (check_messages(k, c, step) != 0) return 1;
    }
    dev_graph_close(&k->dev, &graph);
    return 0;
}

static int messages(struct rank *k, struct comm *c, bool by_nccl)
{
    struct comm_memory_args a = {.job = comm_job(k->c),
                                 .devices = true,
                                 .groups = 1,
                                 .mailbox_bytes = MAIL_BYTES,
                                 .mailbox_depth = DEPTH,
                                 .mailbox_ranks = comm_ranks(c)};
    const struct comm_memory had = comm_memory_used(k->c);
    a.job.mail_by_nccl = comm_mail_by_nccl(c);
    OK(comm_mailbox_open(c, MAIL_BYTES, DEPTH, &k->s));
    const struct comm_memory have = comm_memory_used(k->c), with = comm_memory(&a);
    a.mailbox_depth = 0;
    const struct comm_memory without = comm_memory(&a);
    if (by_nccl && !a.job.mail_by_nccl) return 1;
    if (have.device - had.device != with.device - without.device) return 1;
    if (have.host - had.host != with.host - without.host) return 1;
    return steps_of_messages(k, c);
}

static int rank_run(struct comm *c, const void *arg)
{
    const enum gpu_backend how = *(const enum gpu_backend *)arg;
    struct rank k = {.c = c};
    struct comm *group;
    char mine[DEV_ADDRESS] = "", all[RANKS_MAX][DEV_ADDRESS];
    if (dev_open_local(&k.dev, DEV_CUDA, comm_rank(c)) == STATUS_OK) OK(dev_address(&k.dev, mine));
    OK(comm_all_gather(c, "addresses of GPUs", mine, all, sizeof mine, NULL));
    for (int r = 0; r < comm_ranks(c); r++) /* a machine with one GPU gives it to every rank */
        if (!all[r][0] || (r != comm_rank(c) && memcmp(all[r], mine, sizeof mine) == 0)) return NO_GPU;
    OK(comm_split(c, "reversed", 0, -comm_rank(c), &group));
    if (open_rank(&k, how) != 0) return 1;
    if (messages(&k, c, how == GPU_BACKEND_NCCL) != 0 || messages(&k, group, how == GPU_BACKEND_NCCL) != 0)
        return 1;
    for (int beside = 0; beside < 2; beside++) {
        k.s.side = beside;
        if (how == GPU_BACKEND_AUTO && (rows(&k, c) != 0 || rows(&k, group) != 0)) return 1;
        if (compare_all(&k, c) != 0 || compare_all(&k, group) != 0) return 1;
    }
    OK(comm_devices_deregister(c, k.arena.base));
    OK(comm_barrier(c, "together"));
    return 0;
}

static void compare_transport(enum gpu_backend how)
{
    int codes[JOB_RANKS];
    for (int ranks = RANKS_MAX; ranks >= 2; ranks /= 2) {
        run_job(&(struct job){.ranks = ranks, .run = rank_run, .arg = &how}, codes);
        if (WIFEXITED(codes[0]) && WEXITSTATUS(codes[0]) == NO_GPU) continue;
        for (int r = 0; r < ranks; r++) assert_true(WIFEXITED(codes[r]) && WEXITSTATUS(codes[r]) == 0);
        printf("%d GPUs\n", ranks);
        return;
    }
    printf("fewer than two GPUs\n");
    skip();
}

static void gpus_have_the_hosts_results(void **state)
{
    (void)state;
    compare_transport(GPU_BACKEND_AUTO);
}

static void nccl_has_the_hosts_results(void **state)
{
    (void)state;
    compare_transport(GPU_BACKEND_NCCL);
}

int main(void)
{
    if (gpu_missing() == 77) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpus_have_the_hosts_results),
        cmocka_unit_test(nccl_has_the_hosts_results),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
