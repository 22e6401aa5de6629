/* Times the algorithms of collectives between GPUs with peer access. Runs are queued behind a gate, so the
 * host's speed does not count: one untimed run, then RUNS runs of a few calls, of which the median counts.
 * The memory is temporary. */
#include "comm/call.h"
#include "comm/transport.h"
#include "base/clock.h"
#include "base/log.h"
#include "comm/gpu/cuda/p2p_comm.h"
#include "dev/cuda/cuda_int.h"

#include <stdlib.h>
#include <string.h>

enum { RUNS = 3, SMALL_BYTES = 256 << 10, MIDDLE_BYTES = 4 << 20 };
enum { GATE, ZERO, WORDS };

struct timing {
    struct p2p_comm *p2p;
    struct stream *s;
    char *memory;             /* [2][TUNER_BYTES_MAX], shared */
    volatile uint32_t *words; /* in host memory */
    struct event marks[RUNS + 1];
};

static struct comm_call call_of(const struct timing *t, enum tuner_op op, size_t bytes, int ranks)
{
    static const enum comm_op ops[] = {[TUNER_ALL_TO_ALL] = COMM_ALL_TO_ALL,
                                       [TUNER_ALL_GATHER] = COMM_ALL_GATHER,
                                       [TUNER_REDUCE_SCATTER] = COMM_REDUCE_SCATTER,
                                       [TUNER_REDUCE_SCATTER_BF16] = COMM_REDUCE_SCATTER,
                                       [TUNER_ALL_REDUCE] = COMM_ALL_REDUCE};
    return (struct comm_call){.op = ops[op],
                              .name = "times of paths",
                              .send = t->memory,
                              .recv = t->memory + TUNER_BYTES_MAX,
                              .bytes = bytes / (size_t)ranks / COMM_LINE * COMM_LINE,
                              .out = t->memory,
                              .dt = op == TUNER_REDUCE_SCATTER_BF16 ? DTYPE_BF16 : DTYPE_F32,
                              .stream = t->s};
}

/* Calls one algorithm; *serves: it supports the call. */
static status call_by(const struct timing *t, struct comm *c, const struct comm_call *call,
                      enum tuner_algo path, bool *serves)
{
    t->p2p->allowed_algos = 1U << path;
    const status st = p2p_comm_call(t->p2p, c, call, serves);
    t->p2p->allowed_algos = TUNER_ALL;
    return st;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static status queue_runs(struct timing *t, struct comm *c, const struct comm_call *call, enum tuner_algo path,
                         int times)
{
    bool serves;
    const struct p2p_comm_wait gate = {.flag = (const uint32_t *)&t->words[GATE],
                                       .count = (const uint32_t *)&t->words[ZERO],
                                       .plus = 1,
                                       .abort_flag = t->p2p->abort_flag};
    TRY(p2p_comm_wait_queue(&gate, t->s));
    TRY(call_by(t, c, call, path, &serves));
    for (int run = 0; run < RUNS; run++) {
        TRY(dev_event_record(t->s, &t->marks[run]));
        for (int k = 0; k < times; k++) TRY(call_by(t, c, call, path, &serves));
    }
    return dev_event_record(t->s, &t->marks[RUNS]);
}

static status time_path(struct timing *t, struct comm *c, const struct comm_call *call, enum tuner_algo path,
                        double *us)
{
    const size_t bytes = call->bytes * (size_t)c->ranks;
    const int times = bytes <= SMALL_BYTES ? 8 : bytes <= MIDDLE_BYTES ? 3 : 1;
    double all[RUNS];
    t->words[GATE] = 0;
    status st = queue_runs(t, c, call, path, times);
    t->words[GATE] = 1;
    TRY(st);
    TRY(dev_sync(t->s));
    for (int run = 0; run < RUNS; run++) {
        TRY(dev_event_ms(t->s->dev, &t->marks[run], &t->marks[run + 1], &all[run]));
        all[run] *= 1e3 / times;
    }
    qsort(all, RUNS, sizeof *all, ascending);
    *us = all[RUNS / 2];
    return STATUS_OK;
}

/* With fewer blocks of data than an algorithm has thread blocks, larger variants are identical. */
static bool is_twin(const struct comm_call *call, enum tuner_algo path)
{
    const size_t parts = call->bytes / sizeof(float) / P2P_PART_FLOATS;
    return path > TUNER_KERNEL_16 && parts <= (size_t)tuner_blocks((enum tuner_algo)(path - 1));
}

static status time_op(struct timing *t, struct comm *c, enum tuner_op op, struct tuner *mine)
{
    for (int size = 0; size < TUNER_SIZES; size++) {
        const struct comm_call call = call_of(t, op, tuner_bytes(size), c->ranks);
        for (enum tuner_algo path = 0; path < TUNER_ALGO_COUNT; path++) {
            bool serves = !is_twin(&call, path);
            /* The first run has no gate, since loading a kernel would wait for the gate. It also reports
             * whether the algorithm is supported. */
            if (serves) TRY(call_by(t, c, &call, path, &serves));
            if (serves) TRY(time_path(t, c, &call, path, &mine->us[op][size][path]));
        }
    }
    return STATUS_OK;
}

/* All ranks learn all times and use those of the slowest rank. */
static status agree(struct comm *c, const struct tuner *mine, struct tuner *slowest)
{
    struct tuner all[P2P_RANKS_MAX];
    TRY(transport_all_gather(c, "times of paths", mine, all, sizeof *mine));
    for (int r = 0; r < c->ranks; r++) tuner_slowest(slowest, &all[r]);
    return STATUS_OK;
}

static bool same_ranks(const struct comm *a, const struct comm *b)
{
    return a->ranks == b->ranks && memcmp(a->members, b->members, (size_t)a->ranks * sizeof *a->members) == 0;
}

/* The i-th communicator of this rank: the world, then its groups. */
static struct comm *comm_at(struct comm *world, int i)
{
    return i == 0 ? world : world->groups[i - 1];
}

static status time_comm(struct timing *t, struct comm *world, int at)
{
    struct comm *c = comm_at(world, at);
    struct tuner mine = {.timed = true}, *paths = &t->p2p->tuners[c->comm_id];
    const double begin = clock_s();
    char text[TUNER_TEXT];
    if (!p2p_comm_all(t->p2p, c) || c->ranks > P2P_RANKS_MAX) return STATUS_OK;
    for (int i = 0; i < at; i++)
        if (same_ranks(c, comm_at(world, i))) {
            *paths = t->p2p->tuners[comm_at(world, i)->comm_id];
            return STATUS_OK;
        }
    TRY(p2p_schedule_load(c->ranks));
    paths->timed = true;
    for (enum tuner_op op = 0; op < TUNER_OP_COUNT; op++) TRY(time_op(t, c, op, &mine));
    TRY(agree(c, &mine, paths));
    tuner_text(paths, text);
    log_debug("paths of %d GPUs%s%s, timed in %.0f ms: %s", c->ranks, c->name[0] ? ", " : "", c->name,
              (clock_s() - begin) * 1e3, text);
    return STATUS_OK;
}

static status time_all(struct timing *t, struct comm *world)
{
    const struct dev *d = t->s->dev;
    TRY_CUDA(cudaHostAlloc((void **)&t->words, WORDS * sizeof *t->words, cudaHostAllocMapped));
    t->words[GATE] = t->words[ZERO] = 0;
    for (int i = 0; i <= RUNS; i++) TRY(dev_event_open(d, &t->marks[i]));
    for (int at = 0; at <= world->group_count; at++) TRY(time_comm(t, world, at));
    return STATUS_OK;
}

static void close_timing(struct timing *t)
{
    for (int i = 0; i <= RUNS; i++)
        if (t->marks[i].mark) dev_event_close(t->s->dev, &t->marks[i]);
    if (t->words) (void)cudaFreeHost((void *)t->words);
    if (t->memory) (void)cudaFree(t->memory);
}

status p2p_comm_time(struct p2p_comm *n, struct comm *world, struct stream *s)
{
    struct timing t = {.p2p = n, .s = s};
    const int shared = n->count;
    if (shared == 0) return STATUS_OK;
    /* Without memory for it the ranks share none, and nothing is timed. */
    if (cudaMalloc((void **)&t.memory, 2 * (size_t)TUNER_BYTES_MAX) != cudaSuccess) t.memory = NULL;
    (void)cudaGetLastError();
    if (t.memory) TRY_CUDA(cudaMemset(t.memory, 0, 2 * (size_t)TUNER_BYTES_MAX));
    TRY_CUDA(cudaDeviceSynchronize());
    status st = p2p_comm_register(n, world, t.memory, 2 * (size_t)TUNER_BYTES_MAX);
    if (st == STATUS_OK && n->count > shared) st = time_all(&t, world);
    if (st == STATUS_OK) st = p2p_comm_deregister(n, world, t.memory);
    close_timing(&t);
    return st;
}
