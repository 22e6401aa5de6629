/* bench p2p: collectives with custom kernels (comm/gpu/p2p_schedule.h). Each is replayed from a graph of
 * several repetitions, which hides the launch cost of the host. */
#include "bench/cuda/p2p.h"
#include "base/text.h"

#include <stdio.h>

enum { GROWTH = 4, SMALLEST = 1024, MANY_BYTES = 1 << 22, MANY = 20, FEW = 4 };

struct collective {
    enum p2p_op op;
    enum p2p_algo way;
    int ranks;
    int64_t count; /* of a chunk */
    struct p2p_schedule schedule[P2P_RANKS_MAX];
    struct graph graph[P2P_RANKS_MAX];
};

static const enum p2p_result results[] = {[P2P_ALL_TO_ALL] = P2P_EXCHANGED,
                                          [P2P_ALL_GATHER] = P2P_GATHERED,
                                          [P2P_REDUCE_SCATTER] = P2P_SCATTERED,
                                          [P2P_ALL_REDUCE] = P2P_SUMMED};

static status queue_one(struct p2p *p, int i, const struct collective *e)
{
    struct p2p_schedule_args a = {.dt = DTYPE_F32,
                                  .schedule = &e->schedule[i],
                                  .count = e->count,
                                  .blocks = (int)p->b->blocks,
                                  .deadline_s = 2};
    if (a.blocks > p->gpu[i].dev.multiprocessors) a.blocks = p->gpu[i].dev.multiprocessors;
    for (int r = 0; r < e->ranks; r++) {
        a.in[r] = p->gpu[r].in, a.out[r] = p->gpu[r].out;
        a.work[r] = p->gpu[r].work, a.flags[r] = p->gpu[r].flags;
    }
    return p2p_schedule_launch(&a, &p->gpu[i].s);
}

/* A rank that does not arrive is an error, not a hang. */
static status check_flags(struct p2p *p, const struct collective *e)
{
    for (int i = 0; i < e->ranks; i++) {
        struct p2p_gpu *c = &p->gpu[i];
        uint32_t lost;
        TRY(p2p_use(p, i));
        TRY(dev_download(&c->s, &lost, &c->flags->lost, sizeof lost));
        TRY(dev_sync(&c->s));
        if (lost)
            return FAIL(STATUS_DEVICE, "%s %s: GPU %d waited for GPU %u in vain", p2p_algo_text(e->way),
                        p2p_op_text(e->op), i, lost - 1);
    }
    return STATUS_OK;
}

static status replay(struct p2p *p, int i, const struct p2p_task *t)
{
    const struct collective *e = t->more;
    return dev_graph_launch(&p->gpu[i].s, &e->graph[i]);
}

static status once_checked(struct p2p *p, struct collective *e)
{
    for (int i = 0; i < e->ranks; i++) TRY(p2p_poison(p, i, p->bytes));
    for (int i = 0; i < e->ranks; i++) {
        TRY(p2p_use(p, i));
        TRY(queue_one(p, i, e));
    }
    TRY(p2p_wait(p));
    TRY(check_flags(p, e));
    return STATUS_OK;
}

static status verify(struct p2p *p, const struct collective *e)
{
    char what[64];
    snprintf(what, sizeof what, "%s %s", p2p_algo_text(e->way), p2p_op_text(e->op));
    for (int i = 0; i < e->ranks; i++) {
        const struct p2p_check_args a = {.count = e->count * e->schedule[i].out,
                                         .part = e->count,
                                         .result = results[e->op],
                                         .numbers = P2P_REAL,
                                         .rank = i,
                                         .ranks = e->ranks};
        TRY(p2p_verify(p, i, what, &a));
    }
    return STATUS_OK;
}

/* *us of one collective. Its results are checked before and after the timed calls. */
static status measure(struct p2p *p, struct collective *e, double *us)
{
    const size_t bytes = (size_t)(e->count * e->ranks) * sizeof(float);
    const int many = bytes > MANY_BYTES ? FEW : MANY;
    const struct p2p_task t = {
        .what = p2p_algo_text(e->way), .queue = replay, .gpus = (1u << e->ranks) - 1, .repeat = 1, .more = e};
    TRY(once_checked(p, e));
    TRY(verify(p, e));
    for (int i = 0; i < e->ranks; i++) {
        TRY(p2p_use(p, i));
        TRY(dev_graph_begin(&p->gpu[i].s));
        status st = STATUS_OK;
        for (int k = 0; k < many && st == STATUS_OK; k++) st = queue_one(p, i, e);
        const status end = dev_graph_end(&p->gpu[i].s, &e->graph[i], st == STATUS_OK);
        TRY(st);
        TRY(end);
    }
    for (int i = 0; i < e->ranks; i++) TRY(p2p_poison(p, i, p->bytes));
    TRY(p2p_wait(p));
    TRY(p2p_time(p, &t, us));
    *us /= many;
    TRY(check_flags(p, e));
    return verify(p, e);
}

static status measure_and_close(struct p2p *p, struct collective *e, double *us)
{
    const status st = measure(p, e, us);
    for (int i = 0; i < e->ranks; i++) dev_graph_close(&p->gpu[i].dev, &e->graph[i]);
    return st;
}

/* All algorithms of an op at one size; the best one is judged. */
static status run_size(struct p2p *p, enum p2p_op op, int ranks, int64_t count)
{
    double us[P2P_ALGO_COUNT] = {0};
    int best = -1;
    for (int way = 0; way < P2P_ALGO_COUNT; way++) {
        struct collective e = {.op = op, .way = (enum p2p_algo)way, .ranks = ranks, .count = count};
        if (!p2p_algo_supports(e.way, op, ranks, count)) continue;
        for (int r = 0; r < ranks; r++) TRY(p2p_schedule_fill(&e.schedule[r], op, e.way, r, ranks));
        TRY(measure_and_close(p, &e, &us[way]));
        if (best < 0 || us[way] < us[best]) best = way;
    }
    for (int way = 0; way < P2P_ALGO_COUNT; way++) {
        const char *text = p2p_op_text(op);
        char graph[32];
        if (us[way] <= 0) continue;
        snprintf(graph, sizeof graph, "%s_graph", text);
        struct p2p_row row = {.what = text,
                              .op = text,
                              .way = p2p_algo_text((enum p2p_algo)way),
                              .from = -1,
                              .to = -1,
                              .gpus = ranks,
                              .bytes = (size_t)(count * ranks) * sizeof(float),
                              .us = us[way],
                              .graph = true,
                              .unjudged = way != best};
        struct target small;
        if (target_find(p->report.gpu, graph, row.bytes, TARGET_US, &small)) row.what = graph;
        row.gbs = (double)row.bytes / us[way] * 1e-3;
        row.bus_gbs = row.gbs * target_bus_factor(text, ranks);
        p2p_line(p, &row);
    }
    return STATUS_OK;
}

status cuda_p2p_collectives(struct p2p *p)
{
    const int ranks = p->gpus < P2P_RANKS_MAX ? p->gpus : P2P_RANKS_MAX;
    if (!p->all_reach) {
        printf("\nexchanges by own kernels need peer access between all GPUs\n");
        return STATUS_OK;
    }
    printf("\nexchanges of %d GPUs by own kernels, at most %lld blocks, fp32, from graphs, sums in comm.h's "
           "order\n",
           ranks, (long long)p->b->blocks);
    for (enum p2p_op op = 0; op < P2P_OP_COUNT; op++)
        for (size_t bytes = SMALLEST; bytes <= p->bytes; bytes *= GROWTH) {
            const int64_t unit = 4 * ranks, count = (int64_t)(bytes / sizeof(float)) / unit * unit / ranks;
            TRY(run_size(p, op, ranks, count));
        }
    return STATUS_OK;
}
