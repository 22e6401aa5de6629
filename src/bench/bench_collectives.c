/* Collectives between the ranks of a job (on GPUs: cuda/collectives.c): every collective over a range of
 * sizes, every element checked. Rates are those of nccl-tests (github.com/NVIDIA/nccl-tests,
 * its page on performance):
 *
 *   op              S, bytes           algorithm bandwidth   bus bandwidth
 *   all_reduce      of the array       S / t                 S / t * 2 (n-1)/n
 *   all_gather      of the result      S / t                 S / t * (n-1)/n
 *   reduce_scatter  of the input       S / t                 S / t * (n-1)/n
 *   all_to_all      of the input       S / t                 S / t * (n-1)/n
 *   broadcast       of the array       S / t                 S / t
 *   ring            of a message       S / t                 S / t            every rank to the next one, concurrently
 *
 * t is the time of the slowest rank; the median of the runs. Sums are checked bit for bit: comm.h defines
 * the order of additions. */
#include "base/clock.h"
#include "base/flags.h"
#include "base/rng.h"
#include "base/text.h"
#include "bench/bench.h"
#include "bench/targets.h"
#include "comm/comm.h"
#include "dev/dev.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEED = 7, GROWTH = 4 };
#define OPS(X)                                                                                               \
    X(all_reduce, ALL_REDUCE)                                                                                \
    X(all_gather, ALL_GATHER)                                                                                \
    X(reduce_scatter, REDUCE_SCATTER) X(all_to_all, ALL_TO_ALL) X(broadcast, BROADCAST) X(ring, RING)
enum op {
#define X(name, value) OP_##value,
    OPS(X)
#undef X
        OP_COUNT
};
static const char *const op_names[] = {
#define X(name, value) #name,
    OPS(X)
#undef X
};

struct collectives {
    struct comm *comm;
    int rank, ranks;
    size_t bytes_max;
    float *in, *out; /* bytes_max each, a multiple of a share */
    void *scratch;
};

static float value_at(int rank, int64_t i)
{
    return (float)(rng_uniform(SEED, RNG_TEST, (uint64_t)rank, (uint64_t)i) - 0.5);
}

/* The sum of element i over ranks, in the order that comm.h promises. */
static float sum_at(const float *values, int ranks, int apart)
{
    if (ranks == 1) return values[0];
    return sum_at(values, (ranks + 1) / 2, 2 * apart) + sum_at(values + apart, ranks / 2, 2 * apart);
}

/* The expected element i of the result; `part`: elements of a share. */
static float expected(const struct collectives *c, enum op op, int64_t i, int64_t part)
{
    float values[COMM_RANKS_MAX];
    switch (op) {
    case OP_ALL_GATHER: return value_at((int)(i / part), i % part);
    case OP_ALL_TO_ALL: return value_at((int)(i / part), c->rank * part + i % part);
    case OP_BROADCAST: return value_at(0, i);
    case OP_RING: return value_at((c->rank + c->ranks - 1) % c->ranks, i);
    case OP_ALL_REDUCE:
    case OP_REDUCE_SCATTER:
    case OP_COUNT: break;
    }
    const int64_t at = op == OP_REDUCE_SCATTER ? c->rank * part + i : i;
    for (int r = 0; r < c->ranks; r++) values[r] = value_at(r, at);
    return sum_at(values, c->ranks, 1);
}

/* Elements of the result of `count` elements. */
static int64_t result_count(const struct collectives *c, enum op op, int64_t count)
{
    return op == OP_REDUCE_SCATTER ? count / c->ranks : count;
}

static status call(struct collectives *c, enum op op, int64_t count)
{
    const int64_t part = count / c->ranks;
    const size_t bytes = (size_t)count * sizeof *c->in, share = (size_t)part * sizeof *c->in;
    switch (op) {
    case OP_ALL_REDUCE:
        return comm_all_reduce(c->comm, op_names[op], c->out, count, DTYPE_F32, c->scratch, NULL);
    case OP_ALL_GATHER: return comm_all_gather(c->comm, op_names[op], c->in, c->out, share, NULL);
    case OP_REDUCE_SCATTER:
        return comm_reduce_scatter(c->comm, op_names[op], c->in, c->out, part, DTYPE_F32, c->scratch, NULL);
    case OP_ALL_TO_ALL: return comm_all_to_all(c->comm, op_names[op], c->in, c->out, share, NULL);
    case OP_BROADCAST: return comm_broadcast(c->comm, op_names[op], c->out, bytes, NULL);
    case OP_RING:
        TRY(comm_send(c->comm, op_names[op], COMM_NEXT, c->in, bytes, NULL));
        return comm_recv(c->comm, op_names[op], COMM_NEXT, c->out, bytes, NULL);
    case OP_COUNT: break;
    }
    CHECK(false, "collective %d", (int)op);
}

static status check(const struct collectives *c, enum op op, int64_t count)
{
    const int64_t part = count / c->ranks, n = result_count(c, op, count);
    for (int64_t i = 0; i < n; i++) {
        const float want = expected(c, op, i, part);
        if (memcmp(&c->out[i], &want, sizeof want) != 0)
            return FAIL(STATUS_COMM,
                        "rank %d: %s of %lld bytes is wrong: element %lld is %.9g, and should be %.9g",
                        c->rank, op_names[op], (long long)(count * (int64_t)sizeof want), (long long)i,
                        (double)c->out[i], (double)want);
    }
    return STATUS_OK;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* *seconds: the median run of the slowest rank. The first call is checked, not timed. */
static status measure(struct collectives *c, enum op op, int64_t count, int64_t runs, double *seconds)
{
    double times[P2P_RUNS_MAX], all[COMM_RANKS_MAX];
    for (int64_t k = -1; k < runs; k++) {
        if (k < 0) memset(c->out, 0xFF, (size_t)count * sizeof *c->out);
        if (op == OP_ALL_REDUCE || (op == OP_BROADCAST && c->rank == 0))
            memcpy(c->out, c->in, (size_t)count * sizeof *c->in);
        TRY(comm_barrier(c->comm, "together"));
        const double begin = clock_s();
        TRY(call(c, op, count));
        const double mine = clock_s() - begin;
        TRY(comm_all_gather(c->comm, "times", &mine, all, sizeof mine, NULL));
        if (k < 0) {
            TRY(check(c, op, count));
            continue;
        }
        times[k] = 0;
        for (int r = 0; r < c->ranks; r++)
            if (all[r] > times[k]) times[k] = all[r];
    }
    qsort(times, (size_t)runs, sizeof *times, ascending);
    *seconds = times[runs / 2];
    return STATUS_OK;
}

static status run_op(struct collectives *c, enum op op, const struct collectives_bench *o)
{
    for (int64_t bytes = o->bytes_min; bytes <= o->bytes_max; bytes *= GROWTH) {
        const int64_t unit = 16 * c->ranks, count = (bytes / 4 + unit - 1) / unit * unit;
        double seconds;
        char size[32];
        TRY(measure(c, op, count, o->runs, &seconds));
        const double moved = (double)count * sizeof(float), rate = moved / seconds * 1e-9;
        if (c->rank > 0) continue;
        if (o->json)
            printf("{\"bench\":\"collectives\",\"op\":\"%s\",\"ranks\":%d,\"bytes\":%.0f,\"us\":%.2f,"
                   "\"algorithm_gbs\":%.4f,\"bus_gbs\":%.4f,\"checked\":true}\n",
                   op_names[op], c->ranks, moved, seconds * 1e6, rate,
                   rate * target_bus_factor(op_names[op], c->ranks));
        else
            printf("%-15s %12s %12.1f us %10.3f GB/s %10.3f GB/s\n", op_names[op], text_bytes(size, moved),
                   seconds * 1e6, rate, rate * target_bus_factor(op_names[op], c->ranks));
        fflush(stdout);
    }
    return STATUS_OK;
}

static status run_all(struct collectives *c, const struct collectives_bench *o)
{
    const int64_t unit = 16 * c->ranks, count = (o->bytes_max / 4 + unit - 1) / unit * unit;
    const size_t bytes = (size_t)count * sizeof *c->in;
    c->in = malloc(bytes);
    c->out = malloc(bytes);
    if (posix_memalign(&c->scratch, 64, comm_all_reduce_scratch(c->ranks, count, DTYPE_F32)) != 0)
        c->scratch = NULL;
    if (c->in == NULL || c->out == NULL || c->scratch == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for collectives of %zu bytes", bytes);
    for (int64_t i = 0; i < count; i++) c->in[i] = value_at(c->rank, i);
    TRY(comm_mailbox_open(c->comm, bytes, 1, NULL));
    if (c->rank == 0 && !o->json)
        printf("%d ranks, fp32, median of %lld, every element of the results checked\n%-15s %12s %15s %15s "
               "%15s\n",
               c->ranks, (long long)o->runs, "collective", "size", "time", "algorithm", "bus");
    for (enum op op = 0; op < OP_COUNT; op++)
        if (o->op == NULL || strcmp(o->op, op_names[op]) == 0) TRY(run_op(c, op, o));
    return STATUS_OK;
}

#if !INGOT_CUDA
status cuda_bench_collectives(const struct collectives_bench *b)
{
    struct dev d;
    (void)b;
    return dev_open(&d, DEV_CUDA);
}
#endif

static bool is_one_of(const char *word, const char *const *words, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(word, words[i]) == 0) return true;
    return false;
}

static status check_options(const struct collectives_bench *o, const char *device)
{
    static const char *const paths[] = {"comm", "overlap", "plain", "symmetric", "copy_engine", "peer"};
    const bool cuda = strcmp(device, "cuda") == 0;
    if (!cuda && strcmp(device, "cpu") != 0)
        return FAIL(STATUS_CONFIG, "--device=%.40s: cpu or cuda", device);
    if (o->op && !is_one_of(o->op, op_names, OP_COUNT))
        return FAIL(STATUS_CONFIG,
                    "--op=%.40s: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast or ring",
                    o->op);
    if (o->op && cuda && strcmp(o->op, op_names[OP_RING]) == 0)
        return FAIL(STATUS_CONFIG, "--op=ring is for the host's memory; between GPUs: ingot bench p2p");
    if (o->path && !cuda) return FAIL(STATUS_CONFIG, "--path=%.40s is for --device=cuda", o->path);
    if (o->path && !is_one_of(o->path, paths, sizeof paths / sizeof paths[0]))
        return FAIL(STATUS_CONFIG, "--path=%.40s: comm, overlap, plain, symmetric, copy_engine or peer",
                    o->path);
    if (o->bytes_min < 4 || o->bytes_min > o->bytes_max || o->bytes_max > (int64_t)1 << 32)
        return FAIL(STATUS_CONFIG, "--min-bytes=%lld --max-bytes=%lld: 4 <= min <= max <= 4 GiB",
                    (long long)o->bytes_min, (long long)o->bytes_max);
    if (o->runs < 1 || o->runs > P2P_RUNS_MAX)
        return FAIL(STATUS_CONFIG, "--runs=%lld: 1 to %d", (long long)o->runs, P2P_RUNS_MAX);
    return STATUS_OK;
}

static status run_on_host(const struct collectives_bench *o, const struct comm_env *env)
{
    struct collectives c = {0};
    TRY(comm_open(&c.comm, env));
    c.rank = comm_rank(c.comm), c.ranks = comm_ranks(c.comm);
    status st = run_all(&c, o);
    comm_close(c.comm, st);
    free(c.in);
    free(c.out);
    free(c.scratch);
    return st;
}

status bench_collectives(struct args *a)
{
    struct collectives_bench o = {.bytes_min = 1024, .runs = 11};
    const char *device = "cpu";
    const struct flag flags[] = {FLAG("device", &device),
                                 FLAG("op", &o.op),
                                 FLAG("path", &o.path),
                                 FLAG("min-bytes", &o.bytes_min),
                                 FLAG("max-bytes", &o.bytes_max),
                                 FLAG("runs", &o.runs),
                                 FLAG("json", &o.json)};
    TRY(args_parse(a, flags, (int)(sizeof flags / sizeof flags[0])));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 0, 0));
    const bool cuda = strcmp(device, "cuda") == 0;
    if (o.bytes_max == 0) o.bytes_max = cuda ? 1 << 30 : 16 << 20;
    TRY(check_options(&o, device));
    struct comm_env env;
    TRY(comm_env_read(&env));
    if (env.ranks == 1)
        return FAIL(STATUS_CONFIG,
                    "bench collectives needs several ranks: ingot launch -n 4 -- bench collectives%s",
                    cuda ? " --device cuda" : "");
    return cuda ? cuda_bench_collectives(&o) : run_on_host(&o, &env);
}
