#include "comm/call.h"
#include "comm/transport.h"
#include "comm/gpu/cuda/p2p_comm.h"
#include "base/log.h"
#include "comm/health/heartbeat.h"
#include "comm/gpu/cuda/device_comm_cuda.h"
#include "dev/cuda/cuda_int.h"

#include <stdlib.h>
#include <string.h>

/* A call, and the addresses of each rank's data. */
struct p2p_comm_route {
    const struct comm *c;
    const void *send, *result;
    size_t bytes;
    enum comm_op op;
    bool rows;        /* with counts */
    char **in, **out; /* [ranks] `send` and `result` of the others; NULL: not shared. One owned allocation */
    bool in_shared, out_shared; /* on all ranks */
    int align;                  /* of all ranks' addresses and bytes; 16 at most */
};
/* On a side stream, larger calls use copy engines. */
enum { SIDE_STREAM_LL_BYTES = 64 << 10 };
/* From this size on the local part is copied on a stream of its own. */
enum { OWN_BYTES = 1 << 20 };

/* ---- memory */

struct offer {
    cudaIpcMemHandle_t handle;
    uint64_t bytes; /* 0: nothing to share */
    char machine[HEARTBEAT_HOST];
};

static status map(struct p2p_comm_memory *m, const struct comm *c, const struct offer *all, bool *reached)
{
    *reached = true;
    for (int r = 0; r < c->ranks; r++) {
        void *p = NULL;
        if (r == c->rank) p = m->base;
        if (r == c->rank || all[r].bytes == 0 || strcmp(all[r].machine, all[c->rank].machine) != 0) {
            m->of[c->members[r]] = p;
            continue;
        }
        const cudaError_t err = cudaIpcOpenMemHandle(&p, all[r].handle, cudaIpcMemLazyEnablePeerAccess);
        if (err != cudaSuccess) {
            (void)cudaGetLastError();
            log_warn("the memory of rank %d's GPU cannot be reached from rank %d's (%s): NCCL carries all "
                     "their communication",
                     c->members[r], c->world->rank, cudaGetErrorString(err));
            *reached = false;
            return STATUS_OK;
        }
        m->of[c->members[r]] = p;
    }
    return STATUS_OK;
}

static void forget_routes(struct p2p_comm *n)
{
    for (int i = 0; i < n->route_count; i++) free(n->routes[i].in);
    n->route_count = n->route_last = 0;
}

static void unmap(struct p2p_comm_memory *m)
{
    for (int r = 0; r < COMM_RANKS_MAX; r++)
        if (m->of[r] && m->of[r] != m->base) (void)cudaIpcCloseMemHandle(m->of[r]);
    *m = (struct p2p_comm_memory){0};
}

/* All ranks of c map all shared memory, or no rank maps any. */
static status share(struct p2p_comm *n, struct comm *c, void *base, size_t bytes, bool *reached)
{
    struct offer mine = {.bytes = bytes}, *all = calloc((size_t)c->ranks, sizeof *all);
    struct p2p_comm_memory *m = &n->memory[n->count];
    int32_t came, every[COMM_RANKS_MAX];
    if (all == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the memory of %d GPUs", c->ranks);
    CHECK(n->count < P2P_COMM_REGISTERED_MAX, "GPUs share more than %d pieces of memory",
          P2P_COMM_REGISTERED_MAX);
    *m = (struct p2p_comm_memory){.base = base, .bytes = bytes};
    heartbeat_host(mine.machine);
    cudaError_t err = bytes ? cudaIpcGetMemHandle(&mine.handle, base) : cudaSuccess;
    if (err != cudaSuccess) mine.bytes = 0;
    (void)cudaGetLastError();
    status st = transport_all_gather(c, "memory of GPUs", &mine, all, sizeof mine);
    if (st == STATUS_OK) st = map(m, c, all, reached);
    free(all);
    TRY(st);
    came = *reached && err == cudaSuccess;
    TRY(transport_all_gather(c, "memory of GPUs is mapped", &came, every, sizeof came));
    for (int r = 0; r < c->ranks; r++) *reached = *reached && every[r];
    if (*reached)
        n->count++;
    else
        unmap(m);
    return STATUS_OK;
}

status p2p_comm_register(struct p2p_comm *n, struct comm *c, void *base, size_t bytes)
{
    bool reached;
    if (n->count == 0) return STATUS_OK;       /* no peer access between the GPUs */
    return share(n, c, base, bytes, &reached); /* what is not shared uses NCCL */
}

status p2p_comm_deregister(struct p2p_comm *n, struct comm *c, void *base)
{
    int i = 0;
    char mine = 0, all[COMM_RANKS_MAX];
    while (i < n->count && n->memory[i].base != base) i++;
    if (i == n->count) return STATUS_OK;
    unmap(&n->memory[i]);
    n->memory[i] = n->memory[--n->count];
    forget_routes(n); /* other memory may get the same address */
    return transport_all_gather(c, "memory of GPUs is let go", &mine, all, sizeof mine);
}

status p2p_comm_open(struct p2p_comm **out, struct comm *world, const struct dev *d, bool wanted)
{
    struct p2p_comm *n = *out = calloc(1, sizeof *n); /* p2p_comm_close frees what has been allocated */
    const size_t bytes = device_pages(sizeof *n->flags);
    bool reached;
    if (n == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the description of a rank's GPU");
    TRY_CUDA(cudaHostAlloc((void **)&n->abort_flag, sizeof *n->abort_flag,
                           cudaHostAllocMapped | cudaHostAllocPortable));
    *n->abort_flag = 0;
    n->allowed_algos = TUNER_ALL;
    n->dev = *d;
    TRY(dev_stream_open(&n->dev, &n->own));
    TRY(dev_fence_open(d, &n->forked));
    TRY(dev_fence_open(d, &n->joined));
    TRY_CUDA(cudaMalloc((void **)&n->flags, bytes));
    world->memory.device += bytes;
    TRY_CUDA(cudaMemset(n->flags, 0, bytes));
    TRY_CUDA(cudaDeviceSynchronize());
    return wanted ? share(n, world, n->flags, bytes, &reached) : STATUS_OK;
}

void p2p_comm_close(struct p2p_comm *n)
{
    if (n == NULL) return;
    for (int i = 0; i < n->count; i++) unmap(&n->memory[i]);
    forget_routes(n);
    free(n->routes);
    dev_event_close(&n->dev, &n->forked);
    dev_event_close(&n->dev, &n->joined);
    dev_stream_close(&n->own);
    if (n->flags) (void)cudaFree(n->flags);
    if (n->abort_flag) (void)cudaFreeHost((void *)n->abort_flag);
    free(n);
}

bool p2p_comm_reaches(const struct p2p_comm *n, const struct comm *c, int r)
{
    return n->count > 0 && n->memory[0].of[c->members[r]];
}

bool p2p_comm_all(const struct p2p_comm *n, const struct comm *c)
{
    for (int r = 0; r < c->ranks; r++)
        if (!p2p_comm_reaches(n, c, r)) return false;
    return true;
}

static const struct p2p_comm_memory *find(const struct p2p_comm *n, const void *p, size_t bytes)
{
    for (int i = 0; i < n->count; i++) {
        const struct p2p_comm_memory *m = &n->memory[i];
        if ((const char *)p >= m->base && (const char *)p + bytes <= m->base + m->bytes) return m;
    }
    return NULL;
}

/* The address on rank r of c that corresponds to this rank's p. */
static char *there(const struct p2p_comm *n, const struct comm *c, int r, const void *p)
{
    const struct p2p_comm_memory *m = find(n, p, 1);
    return m->of[c->members[r]] + ((const char *)p - m->base);
}

static struct p2p_comm_flags *flags_of(const struct p2p_comm *n, const struct comm *c, int r)
{
    return (struct p2p_comm_flags *)n->memory[0].of[c->members[r]];
}

/* ---- where data lie */

/* Index of a rank's memory, and the offset in it. */
struct p2p_comm_at {
    int64_t memory, offset; /* memory -1: not shared */
};
struct p2p_comm_places {
    struct p2p_comm_at send, result;
    int64_t align;
};

/* The result of the call; not the scratch of reductions. */
static void *result_of(const struct comm_call *call)
{
    return comm_op_sums(call->op) ? call->out : call->recv;
}

static struct p2p_comm_at at_of(const struct p2p_comm *n, const void *p, size_t bytes)
{
    const struct p2p_comm_memory *m = find(n, p, bytes);
    if (m == NULL) return (struct p2p_comm_at){-1, 0};
    return (struct p2p_comm_at){m - n->memory, (const char *)p - m->base};
}

static struct p2p_comm_places places_of(const struct p2p_comm *n, const struct comm_call *call, int ranks)
{
    const bool one = call->op == COMM_REDUCE_SCATTER || comm_op_one(call->op);
    const size_t bytes = call->bytes,
                 every = call->counts ? bytes : bytes * (size_t)ranks; /* rows: how many, nobody knows here */
    const size_t bits = (size_t)call->send | (size_t)result_of(call) | bytes;
    return (struct p2p_comm_places){.send = at_of(n, call->send, comm_op_splits(call->op) ? every : bytes),
                                    .result = at_of(n, result_of(call), one ? bytes : every),
                                    .align = bits % P2P_ALIGN == 0      ? P2P_ALIGN
                                             : bits % P2P_LL_ALIGN == 0 ? P2P_LL_ALIGN
                                                                        : 1};
}

static char *address(const struct p2p_comm *n, int rank, struct p2p_comm_at at)
{
    char *base = at.memory < 0 ? NULL : n->memory[at.memory].of[rank];
    return base ? base + at.offset : NULL;
}

static status make_route(struct p2p_comm *n, struct comm *c, const struct comm_call *call,
                         struct p2p_comm_route *route)
{
    const struct p2p_comm_places mine = places_of(n, call, c->ranks);
    struct p2p_comm_places *all = calloc((size_t)c->ranks, sizeof *all);
    *route = (struct p2p_comm_route){.c = c,
                                     .send = call->send,
                                     .result = result_of(call),
                                     .bytes = call->bytes,
                                     .op = call->op,
                                     .rows = call->counts != NULL,
                                     .in_shared = true,
                                     .out_shared = true,
                                     .align = P2P_ALIGN};
    route->in = calloc(2 * (size_t)c->ranks, sizeof *route->in);
    status st = all && route->in
                    ? transport_all_gather(c, call->name, &mine, all, sizeof mine)
                    : FAIL(STATUS_OUT_OF_MEMORY, "no memory for the calls of %d ranks", c->ranks);
    route->out = route->in + c->ranks;
    for (int r = 0; r < c->ranks && st == STATUS_OK; r++) {
        route->in[r] = address(n, c->members[r], all[r].send);
        route->out[r] = address(n, c->members[r], all[r].result);
        route->in_shared = route->in_shared && route->in[r];
        route->out_shared = route->out_shared && route->out[r];
        if (all[r].align < route->align) route->align = (int)all[r].align;
    }
    free(all);
    return st;
}

static bool is_route(const struct p2p_comm_route *k, const struct comm *c, const struct comm_call *call)
{
    return k->c == c && k->send == call->send && k->result == result_of(call) && k->bytes == call->bytes &&
           k->op == call->op && k->rows == (call->counts != NULL);
}

/* Steps repeat the same calls in the same order: try the entry after the last one first. */
static status find_route(struct p2p_comm *n, struct comm *c, const struct comm_call *call,
                         struct p2p_comm_route **out)
{
    for (int i = 0; i < n->route_count; i++) {
        const int k = (n->route_last + 1 + i) % n->route_count;
        if (!is_route(&n->routes[k], c, call)) continue;
        n->route_last = k;
        *out = &n->routes[k];
        return STATUS_OK;
    }
    if (n->route_count == n->route_room) {
        const int room = n->route_room ? 2 * n->route_room : 64;
        struct p2p_comm_route *routes = realloc(n->routes, (size_t)room * sizeof *routes);
        if (routes == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the list of %d calls", room);
        n->routes = routes;
        n->route_room = room;
    }
    *out = &n->routes[n->route_count];
    n->route_last = n->route_count++;
    return make_route(n, c, call, *out);
}

/* ---- by copy engines */

static status barrier(const struct p2p_comm *n, const struct comm *c, struct stream *s)
{
    struct p2p_comm_barrier m = {.come = n->flags->barrier_arrived[c->comm_id],
                                 .barrier_count = &n->flags->barrier_count[c->comm_id],
                                 .abort_flag = n->abort_flag,
                                 .rank = c->rank,
                                 .ranks = c->ranks};
    for (int r = 0; r < c->ranks; r++)
        m.barrier_arrived[r] = &flags_of(n, c, r)->barrier_arrived[c->comm_id][c->rank];
    return p2p_comm_barrier_queue(&m, s);
}

/* Copies this rank's own part; a large one on a stream of its own, so that the links carry the others' parts
 * meanwhile. Copy engines would alternate between the two, so if no compute overlaps, multiprocessors copy
 * the own part. */
static status copy_own(struct p2p_comm *n, const struct comm *c, const struct comm_call *call, int align,
                       bool *forked)
{
    const size_t own = (size_t)c->rank * call->bytes;
    const char *from = (const char *)call->send + (call->op == COMM_ALL_TO_ALL ? own : 0);
    char *to = (char *)call->recv + own;
    *forked = false;
    if (comm_op_sums(call->op) || comm_op_one(call->op) || from == to) return STATUS_OK;
    if (call->bytes < OWN_BYTES) return dev_copy(call->stream, to, from, call->bytes);
    *forked = true;
    TRY(dev_event_record(call->stream, &n->forked));
    TRY(dev_stream_wait(&n->own, &n->forked));
    if (call->stream->side || align < P2P_ALIGN)
        TRY(dev_copy(&n->own, to, from, call->bytes));
    else
        TRY(p2p_comm_copy_queue(to, from, call->bytes, &n->own));
    return dev_event_record(&n->own, &n->joined);
}

/* Reads from all others; at any time each rank reads from a different one. */
static status copy_others(const struct comm *c, const struct comm_call *call,
                          const struct p2p_comm_route *route)
{
    const size_t own = comm_op_splits(call->op) ? (size_t)c->rank * call->bytes : 0;
    const bool one = comm_op_one(call->op);
    for (int k = 1; k < c->ranks; k++) {
        const int r = (c->rank + k) % c->ranks;
        char *to = (char *)call->recv + (one ? 0 : (size_t)r * call->bytes);
        if (one && r != (call->op == COMM_SHIFT ? comm_ring_shift_source(c, call) : 0)) continue;
        TRY(dev_copy(call->stream, to, route->in[r] + own, call->bytes));
    }
    return STATUS_OK;
}

static status by_copy_engines(struct p2p_comm *n, struct comm *c, const struct comm_call *call,
                              const struct p2p_comm_route *route)
{
    struct stream *s = call->stream;
    bool forked;
    TRY(copy_own(n, c, call, route->align, &forked));
    TRY(barrier(n, c, s));
    TRY(copy_others(c, call, route));
    if (forked) TRY(dev_stream_wait(s, &n->joined));
    if (call->op == COMM_ALL_REDUCE) {
        TRY(device_reduce(c, call)); /* into the own slice, which no other rank has read */
        TRY(barrier(n, c, s));
        for (int k = 1; k < c->ranks; k++) {
            const int r = (c->rank + k) % c->ranks;
            const size_t slice = (size_t)r * call->bytes;
            TRY(dev_copy(s, (char *)call->out + slice, route->in[r] + slice, call->bytes));
        }
    }
    TRY(barrier(n, c, s));
    if (call->op == COMM_REDUCE_SCATTER) TRY(device_reduce(c, call));
    return call->done_flag ? device_set_flag(call->done_flag, s) : STATUS_OK;
}

/* ---- by custom kernels */

static enum p2p_op p2p_op_of(enum comm_op op)
{
    switch (op) {
    case COMM_ALL_TO_ALL: return P2P_ALL_TO_ALL;
    case COMM_ALL_GATHER: return P2P_ALL_GATHER;
    case COMM_REDUCE_SCATTER: return P2P_REDUCE_SCATTER;
    case COMM_ALL_REDUCE: return P2P_ALL_REDUCE;
    case COMM_BROADCAST: /* by copy engines alone: algos_of */
    case COMM_SHIFT:
    case COMM_GATHER:
    case COMM_BARRIER:
    case COMM_SPLIT:
    case COMM_SEND:
    case COMM_RECV:
    case COMM_IDLE:
    case COMM_OP_COUNT: break;
    }
    CHECK(false, "%s by a kernel", comm_op_text(op));
}

static status by_kernel(struct p2p_comm *n, const struct comm *c, const struct comm_call *call,
                        const struct p2p_comm_route *route, enum tuner_algo path)
{
    const enum p2p_algo way = path == TUNER_LL ? P2P_LL : P2P_DIRECT;
    const int blocks = path == TUNER_LL ? P2P_LL_BLOCKS : tuner_blocks(path),
              most = call->stream->dev->multiprocessors;
    struct p2p_schedule schedule;
    struct p2p_schedule_args a = {.schedule = &schedule,
                                  .count = (int64_t)(call->bytes / sizeof(float)),
                                  .dt = comm_op_sums(call->op) ? call->dt : DTYPE_F32,
                                  .blocks = blocks < most ? blocks : most,
                                  .abort_flag = n->abort_flag,
                                  .mark = call->done_flag};
    TRY(p2p_schedule_fill(&schedule, p2p_op_of(call->op), way, c->rank, c->ranks));
    for (int r = 0; r < c->ranks; r++) {
        a.in[r] = (const float *)route->in[r];
        a.out[r] = (float *)route->out[r];
        a.flags[r] = &flags_of(n, c, r)->flags[c->comm_id];
    }
    a.in[c->rank] = call->send; /* LL needs no shared memory of its own data */
    a.out[c->rank] = result_of(call);
    return p2p_schedule_launch(&a, call->stream);
}

/* ---- collectives */

static enum tuner_op tuner_op_of(const struct comm_call *call)
{
    switch (call->op) {
    case COMM_ALL_TO_ALL: return TUNER_ALL_TO_ALL;
    case COMM_ALL_GATHER: return TUNER_ALL_GATHER;
    case COMM_REDUCE_SCATTER:
        return call->dt == DTYPE_BF16 ? TUNER_REDUCE_SCATTER_BF16 : TUNER_REDUCE_SCATTER;
    case COMM_ALL_REDUCE: return TUNER_ALL_REDUCE;
    case COMM_BROADCAST: /* by copy engines alone (algos_of): not timed, so every row has the same choice */
    case COMM_SHIFT:
    case COMM_GATHER:
    case COMM_BARRIER:
    case COMM_SPLIT:
    case COMM_SEND:
    case COMM_RECV:
    case COMM_IDLE:
    case COMM_OP_COUNT: break;
    }
    return TUNER_ALL_GATHER;
}

/* The algorithms that support the call: the same on all ranks. */
static unsigned algos_of(const struct p2p_comm *n, const struct comm *c, const struct comm_call *call,
                         const struct p2p_comm_route *route)
{
    const bool side = call->stream->side;
    const size_t all = call->bytes * (size_t)c->ranks;
    const int64_t count = (int64_t)(call->bytes / sizeof(float));
    unsigned ways = route->in_shared ? 1U << TUNER_COPY_ENGINE : 0;
    if (!n->tuners[c->comm_id].timed || comm_op_one(call->op)) return ways;
    const enum p2p_op op = p2p_op_of(call->op);
    if (route->align >= P2P_LL_ALIGN && p2p_algo_supports(P2P_LL, op, c->ranks, count) &&
        (!side || all <= SIDE_STREAM_LL_BYTES))
        ways |= 1U << TUNER_LL;
    if (route->align >= P2P_ALIGN && p2p_algo_supports(P2P_DIRECT, op, c->ranks, count) && !side &&
        (op == P2P_REDUCE_SCATTER ? route->in_shared : route->out_shared))
        ways |= 1U << TUNER_KERNEL_16 | 1U << TUNER_KERNEL_32 | 1U << TUNER_KERNEL_64;
    return ways & n->allowed_algos;
}

/* As many rows as the GPUs know. */
static status by_rows(const struct p2p_comm *n, const struct comm *c, const struct comm_call *call,
                      const struct p2p_comm_route *route)
{
    struct p2p_comm_rows a = {
        .recv = call->recv, .counts = call->counts, .bytes = call->bytes, .rank = c->rank, .ranks = c->ranks};
    for (int r = 0; r < c->ranks; r++) a.in[r] = r == c->rank ? call->send : route->in[r];
    TRY(barrier(n, c, call->stream));
    TRY(p2p_comm_rows_queue(&a, call->stream));
    TRY(barrier(n, c, call->stream));
    return call->done_flag ? device_set_flag(call->done_flag, call->stream) : STATUS_OK;
}

status p2p_comm_call(struct p2p_comm *n, struct comm *c, const struct comm_call *call, bool *carried)
{
    struct p2p_comm_route *route = NULL;
    *carried = false;
    if (!p2p_comm_all(n, c)) return STATUS_OK;
    TRY(find_route(n, c, call, &route));
    if (call->counts) {
        *carried = route->in_shared && c->ranks <= P2P_RANKS_MAX;
        return *carried ? by_rows(n, c, call, route) : STATUS_OK;
    }
    const unsigned ways = algos_of(n, c, call, route);
    *carried = ways != 0;
    if (ways == 0) return STATUS_OK;
    const enum tuner_algo path =
        tuner_choose(&n->tuners[c->comm_id], tuner_op_of(call), call->bytes * (size_t)c->ranks, ways);
    if (path == TUNER_COPY_ENGINE) return by_copy_engines(n, c, call, route);
    return by_kernel(n, c, call, route, path);
}

/* ---- messages */

status p2p_comm_message(struct p2p_comm *n, struct comm *c, const struct comm_call *call, char *slots,
                        unsigned number)
{
    struct stream *s = call->stream;
    const bool sends = call->op == COMM_SEND;
    const int p = c->comm_id, way = call->way, depth = (int)c->mailbox.depth;
    struct p2p_comm_flags *mine = n->flags, *other = flags_of(n, c, comm_neighbour(c, call));
    char *slot = slots + ((size_t)way * c->mailbox.depth + number % c->mailbox.depth) * c->mailbox.bytes_max;
    if (sends) {
        /* Slots are used round robin since the last sync, when all of them were empty. */
        const int behind = (int)number < depth - 1 ? (int)number : depth - 1;
        TRY(p2p_comm_wait_queue(
            &(struct p2p_comm_wait){&mine->taken[p][way], &mine->has_sent[p][way], -behind, n->abort_flag},
            s));
        TRY(dev_copy(s, there(n, c, comm_neighbour(c, call), slot), call->send, call->bytes));
        return p2p_comm_signal_queue(&mine->has_sent[p][way], &other->sent[p][way], s);
    }
    TRY(p2p_comm_wait_queue(
        &(struct p2p_comm_wait){&mine->sent[p][way], &mine->has_taken[p][way], 1, n->abort_flag}, s));
    TRY(dev_copy(s, call->recv, slot, call->bytes));
    return p2p_comm_signal_queue(&mine->has_taken[p][way], &other->taken[p][way], s);
}
