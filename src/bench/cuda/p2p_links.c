/* bench p2p: copies. To the host and back, inside a GPU, between all pairs of GPUs by copy engines and by
 * loads and stores of kernels, in one direction and in both, and around the ring of all GPUs. */
#include "bench/cuda/p2p.h"
#include "dev/cuda/cuda_int.h"

#include <stdio.h>
#include <string.h>

enum { SMALL = 16, MANY = 200, FEW = 4, ROUNDS = 1000 };

static double rate_of(size_t bytes, double us)
{
    return (double)bytes / us * 1e-3;
}

/* ---- the host */

static status to_device(struct p2p *p, int i, const struct p2p_task *t)
{
    return dev_upload(&p->gpu[i].s, p->gpu[i].out, p->gpu[i].pinned, t->bytes);
}

static status to_host(struct p2p *p, int i, const struct p2p_task *t)
{
    return dev_download(&p->gpu[i].s, p->gpu[i].pinned, p->gpu[i].in, t->bytes);
}

static status inside(struct p2p *p, int i, const struct p2p_task *t)
{
    return dev_copy(&p->gpu[i].s, p->gpu[i].out, p->gpu[i].in, t->bytes);
}

/* Latency of one small copy, which a queue of copies would hide. */
static status and_wait(struct p2p *p, int i, const struct p2p_task *t)
{
    TRY(to_device(p, i, t));
    return dev_sync(&p->gpu[i].s);
}

static status host_row(struct p2p *p, const struct p2p_task *t, int factor)
{
    const int i = t->from;
    struct p2p_row row = {
        .what = t->what, .op = t->what, .way = "", .from = i, .to = -1, .gpus = 1, .bytes = t->bytes};
    char way[24];
    TRY(p2p_time(p, t, &row.us));
    if (t->bytes > SMALL) row.gbs = factor * rate_of(t->bytes, row.us);
    snprintf(way, sizeof way, "GPU %d", i);
    row.way = way;
    p2p_line(p, &row);
    return STATUS_OK;
}

/* Downloads, uploads again and compares: both directions have carried every byte. */
static status host_check(struct p2p *p, int i)
{
    const struct p2p_task t = {.bytes = p->bytes};
    memset(p->gpu[i].pinned, 0xFF, p->bytes);
    TRY(p2p_poison(p, i, p->bytes));
    TRY(to_host(p, i, &t));
    TRY(to_device(p, i, &t));
    TRY(p2p_verify(p, i, "a copy to the host and back",
                   &(struct p2p_check_args){.count = p->count, .result = P2P_COPIED, .from = i}));
    TRY(p2p_poison(p, i, p->bytes));
    TRY(inside(p, i, &t));
    return p2p_verify(p, i, "a copy inside the GPU",
                      &(struct p2p_check_args){.count = p->count, .result = P2P_COPIED, .from = i});
}

status cuda_p2p_host(struct p2p *p)
{
    printf("\nhost and GPU, pinned memory; device_copy counts what is read and written\n");
    for (int i = 0; i < p->gpus; i++) {
        const struct p2p_task large = {.from = i, .gpus = 1u << i, .bytes = p->bytes, .repeat = FEW};
        const struct p2p_task small = {.from = i, .gpus = 1u << i, .bytes = SMALL, .repeat = MANY};
        struct p2p_task t = large;
        TRY(host_check(p, i));
        t.what = "host_to_device", t.queue = to_device;
        TRY(host_row(p, &t, 1));
        t.what = "device_to_host", t.queue = to_host;
        TRY(host_row(p, &t, 1));
        t.what = "device_copy", t.queue = inside;
        TRY(host_row(p, &t, 2));
        t = small, t.what = "host_latency_to", t.queue = to_device;
        TRY(host_row(p, &t, 1));
        t.what = "host_latency_from", t.queue = to_host;
        TRY(host_row(p, &t, 1));
        t.what = "host_latency_wait", t.queue = and_wait;
        TRY(host_row(p, &t, 1));
    }
    return STATUS_OK;
}

/* ---- pairs */

/* GPU i's part: it sends to the other GPU. */
static status copy_pair(struct p2p *p, int i, const struct p2p_task *t)
{
    const int j = i == t->from ? t->to : t->from;
    struct p2p_gpu *c = &p->gpu[i];
    TRY_CUDA(cudaMemcpyPeerAsync(p->gpu[j].out, p->gpu[j].dev.index, c->in, c->dev.index, t->bytes,
                                 cuda_queue(&c->s)));
    return STATUS_OK;
}

static int blocks_of(const struct p2p *p, int i, const struct p2p_task *t)
{
    return t->more ? *(const int *)t->more : 2 * p->gpu[i].dev.multiprocessors;
}

static status load_pair(struct p2p *p, int i, const struct p2p_task *t)
{
    const int j = i == t->from ? t->to : t->from;
    return p2p_move(p->gpu[i].out, p->gpu[j].in, (int64_t)(t->bytes / sizeof(float)), blocks_of(p, i, t),
                    &p->gpu[i].s);
}

static status store_pair(struct p2p *p, int i, const struct p2p_task *t)
{
    const int j = i == t->from ? t->to : t->from;
    return p2p_move(p->gpu[j].out, p->gpu[i].in, (int64_t)(t->bytes / sizeof(float)), blocks_of(p, i, t),
                    &p->gpu[i].s);
}

/* Checks that `i` received the data of `from`. */
static status pair_check(struct p2p *p, const struct p2p_task *t, int i, int from)
{
    const struct p2p_check_args a = {
        .count = (int64_t)(t->bytes / sizeof(float)), .result = P2P_COPIED, .from = from};
    return p2p_verify(p, i, t->what, &a);
}

static status poison_pair(struct p2p *p, const struct p2p_task *t)
{
    TRY(p2p_poison(p, t->from, t->bytes));
    return p2p_poison(p, t->to, t->bytes);
}

/* *us of one copy method; received data are checked after the run. `by`: the GPUs whose streams run it. */
static status one_way(struct p2p *p, struct p2p_task *t, int from, int to, int by, double *us)
{
    t->from = from, t->to = to, t->gpus = 1u << by;
    TRY(poison_pair(p, t));
    TRY(p2p_time(p, t, us));
    TRY(p2p_wait(p));
    return pair_check(p, t, to, from);
}

static status both_ways(struct p2p *p, struct p2p_task *t, int a, int b, double *us)
{
    t->from = a, t->to = b, t->gpus = 1u << a | 1u << b;
    TRY(poison_pair(p, t));
    TRY(p2p_time(p, t, us));
    TRY(p2p_wait(p));
    TRY(pair_check(p, t, a, b));
    return pair_check(p, t, b, a);
}

/* Ping-pong of a flag; *us one way. */
static status flags(struct p2p *p, int a, int b, double *us)
{
    unsigned long long ns = 0;
    const int pair[2] = {a, b};
    for (int k = 0; k < 2; k++) {
        struct p2p_gpu *c = &p->gpu[pair[k]];
        TRY(p2p_use(p, pair[k]));
        TRY(dev_zero(&c->s, c->ping, sizeof *c->ping));
        TRY(dev_sync(&c->s));
    }
    for (int k = 0; k < 2; k++) {
        struct p2p_gpu *c = &p->gpu[pair[k]];
        const struct p2p_ping_args ping = {.mine = c->ping,
                                           .theirs = p->gpu[pair[1 - k]].ping,
                                           .ns = c->ns,
                                           .rounds = ROUNDS,
                                           .serves = k == 0};
        TRY(p2p_use(p, pair[k]));
        TRY(p2p_ping(&ping, &c->s));
    }
    TRY(p2p_wait(p));
    TRY(dev_download(&p->gpu[a].s, &ns, p->gpu[a].ns, sizeof ns));
    TRY(dev_sync(&p->gpu[a].s));
    if (ns == 0) return FAIL(STATUS_DEVICE, "flags between GPUs %d and %d: no answer within a second", a, b);
    *us = (double)ns * 1e-3 / (2 * ROUNDS);
    return STATUS_OK;
}

enum pair_kind {
    COPY_ONE,
    COPY_BOTH,
    LOAD_ONE,
    STORE_ONE,
    LOAD_BOTH,
    STORE_BOTH,
    COPY_SMALL,
    FLAGS,
    PAIR_KINDS
};
static const struct pair {
    const char *what;
    p2p_queue_fn *queue;
    bool both, kernel;
    enum target_unit unit;
} pairs[PAIR_KINDS] = {
    {"copy_one_way", copy_pair, false, false, TARGET_GBS},
    {"copy_both_ways", copy_pair, true, false, TARGET_GBS},
    {"load_one_way", load_pair, false, true, TARGET_GBS},
    {"store_one_way", store_pair, false, true, TARGET_GBS},
    {"load_both_ways", load_pair, true, true, TARGET_GBS},
    {"store_both_ways", store_pair, true, true, TARGET_GBS},
    {"copy_latency", copy_pair, false, false, TARGET_US},
    {"flag_latency", NULL, false, true, TARGET_US},
};

static status pair_number(struct p2p *p, const struct pair *k, int a, int b, double *x)
{
    const bool large = k->unit == TARGET_GBS;
    struct p2p_task t = {
        .what = k->what, .queue = k->queue, .bytes = large ? p->bytes : SMALL, .repeat = large ? FEW : MANY};
    double us;
    if (k->queue == NULL) return flags(p, a, b, x);
    if (k->both)
        TRY(both_ways(p, &t, a, b, &us));
    else /* the receiver loads; in all other methods the sender works */
        TRY(one_way(p, &t, a, b, k->queue == load_pair ? b : a, &us));
    *x = large ? rate_of(t.bytes, us) : us;
    return STATUS_OK;
}

/* How many blocks of a kernel saturate a link. */
static status block_rows(struct p2p *p)
{
    static const int blocks[] = {1, 4, 8, 16, 32, 64, 128};
    printf("\nloads and stores of few blocks of 512 threads, GPUs 0 and 1, one way, GB/s\n  %8s %8s %8s\n",
           "blocks", "loads", "stores");
    for (int k = 0; k < (int)(sizeof blocks / sizeof blocks[0]); k++) {
        struct p2p_task t = {.bytes = p->bytes / 4, .repeat = FEW, .more = &blocks[k]};
        double load, store;
        t.what = "load_one_way", t.queue = load_pair;
        TRY(one_way(p, &t, 1, 0, 0, &load));
        t.what = "store_one_way", t.queue = store_pair;
        TRY(one_way(p, &t, 0, 1, 0, &store));
        printf("  %8d %8.1f %8.1f\n", blocks[k], rate_of(t.bytes, load), rate_of(t.bytes, store));
        fflush(stdout);
    }
    return STATUS_OK;
}

status cuda_p2p_pairs(struct p2p *p)
{
    for (int k = 0; k < PAIR_KINDS; k++) {
        double x[P2P_GPUS_MAX][P2P_GPUS_MAX] = {0};
        for (int a = 0; a < p->gpus; a++)
            for (int b = 0; b < p->gpus; b++) {
                if (a == b || (pairs[k].kernel && !(p->reach[a][b] && p->reach[b][a]))) continue;
                if (pairs[k].both && b < a)
                    x[a][b] = x[b][a];
                else
                    TRY(pair_number(p, &pairs[k], a, b, &x[a][b]));
            }
        p2p_matrix(p, pairs[k].what, pairs[k].unit == TARGET_GBS ? p->bytes : SMALL, pairs[k].unit, x);
    }
    return p->reach[0][1] && p->reach[1][0] ? block_rows(p) : STATUS_OK;
}

/* ---- all GPUs at once */

static status copy_ring(struct p2p *p, int i, const struct p2p_task *t)
{
    const struct p2p_task next = {.from = i, .to = (i + 1) % p->gpus, .bytes = t->bytes};
    return copy_pair(p, i, &next);
}

static status load_ring(struct p2p *p, int i, const struct p2p_task *t)
{
    const struct p2p_task next = {.from = i, .to = (i + p->gpus - 1) % p->gpus, .bytes = t->bytes};
    return load_pair(p, i, &next);
}

static status store_ring(struct p2p *p, int i, const struct p2p_task *t)
{
    const struct p2p_task next = {.from = i, .to = (i + 1) % p->gpus, .bytes = t->bytes};
    return store_pair(p, i, &next);
}

/* Share j of every GPU to GPU j, each on a stream of its own between events of the timed stream. */
static status copy_all(struct p2p *p, int i, const struct p2p_task *t)
{
    struct p2p_gpu *c = &p->gpu[i];
    const size_t share = t->bytes / (size_t)p->gpus, floats = share / sizeof(float);
    cudaEvent_t mark;
    TRY_CUDA(cudaEventCreateWithFlags(&mark, cudaEventDisableTiming));
    TRY_CUDA(cudaEventRecord(mark, cuda_queue(&c->s)));
    for (int j = 0; j < p->gpus; j++) {
        TRY_CUDA(cudaStreamWaitEvent(cuda_queue(&c->to[j]), mark, 0));
        TRY_CUDA(cudaMemcpyPeerAsync(p->gpu[j].out + (size_t)i * floats, p->gpu[j].dev.index,
                                     c->in + (size_t)j * floats, c->dev.index, share, cuda_queue(&c->to[j])));
    }
    for (int j = 0; j < p->gpus; j++) {
        TRY_CUDA(cudaEventRecord(mark, cuda_queue(&c->to[j])));
        TRY_CUDA(cudaStreamWaitEvent(cuda_queue(&c->s), mark, 0));
    }
    TRY_CUDA(cudaEventDestroy(mark));
    return STATUS_OK;
}

static status ring_row(struct p2p *p, const char *what, p2p_queue_fn *queue)
{
    const bool all = queue == copy_all;
    const size_t unit = 16 * (size_t)p->gpus;
    const struct p2p_task t = {.what = what,
                               .queue = queue,
                               .gpus = (1u << p->gpus) - 1,
                               .bytes = p->bytes / unit * unit,
                               .repeat = FEW};
    const int64_t count = (int64_t)(t.bytes / sizeof(float));
    struct p2p_row row = {
        .what = what, .op = what, .way = "", .from = -1, .to = -1, .gpus = p->gpus, .bytes = t.bytes};
    for (int i = 0; i < p->gpus; i++) TRY(p2p_poison(p, i, t.bytes));
    TRY(p2p_time(p, &t, &row.us));
    TRY(p2p_wait(p));
    for (int i = 0; i < p->gpus; i++) {
        const struct p2p_check_args a = {.count = count,
                                         .part = count / p->gpus,
                                         .result = all ? P2P_EXCHANGED : P2P_COPIED,
                                         .rank = i,
                                         .ranks = p->gpus,
                                         .from = (i + p->gpus - 1) % p->gpus};
        TRY(p2p_verify(p, i, what, &a));
    }
    /* what each GPU sends to others */
    row.gbs = rate_of(t.bytes, row.us) * (all ? (double)(p->gpus - 1) / p->gpus : 1);
    p2p_line(p, &row);
    return STATUS_OK;
}

status cuda_p2p_rings(struct p2p *p)
{
    printf("\nall %d GPUs at once: each to the next one, and all to all by plain copies; sent per GPU\n",
           p->gpus);
    TRY(ring_row(p, "copy_ring", copy_ring));
    if (p->all_reach) {
        TRY(ring_row(p, "load_ring", load_ring));
        TRY(ring_row(p, "store_ring", store_ring));
    }
    return ring_row(p, "copy_all_pairs", copy_all);
}
