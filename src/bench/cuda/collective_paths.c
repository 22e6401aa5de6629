/* The paths of bench collectives on GPUs:
 *
 *   comm         the call of training: comm.h with a stream, on the paths chosen when the communicator was made (comm/gpu/tuner.h)
 *   overlap      the same on a side stream, overlapped with another stream's work: copy engines except for small sizes
 *   plain        NCCL with ordinary memory: its rings and trees
 *   symmetric    NCCL with memory in windows that all ranks have registered at the same offset
 *   copy_engine  symmetric with a communicator that may use no multiprocessor: copy engines (all-gather and all-to-all only)
 *   peer         comm/gpu/p2p_schedule.h: custom kernels that read peer memory, which every rank maps; one host, at most
 *                eight ranks */
#include "bench/cuda/collectives.h"
#include "dev/cuda/cuda_int.h"

#include <string.h>

enum { IN, OUT };

static size_t whole(size_t bytes)
{
    return (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
}

/* in, out and `scratch` bytes, contiguous in ordinary memory. */
static status take_memory(struct col *c, size_t scratch)
{
    TRY(dev_arena_reserve(&c->dev, &c->memory, "bench collectives", 2 * whole(c->bytes) + whole(scratch)));
    c->in = arena_take(&c->memory, c->bytes, "in");
    c->out = arena_take(&c->memory, c->bytes, "out");
    c->scratch = arena_take(&c->memory, scratch, "scratch");
    return STATUS_OK;
}

static bool serves_all(const struct col *c, enum col_op op)
{
    (void)c, (void)op;
    return true;
}

/* ---- comm */

static status comm_path_open(struct col *c)
{
    TRY(take_memory(c, comm_all_reduce_scratch(c->ranks, (int64_t)(c->bytes / sizeof(float)), DTYPE_F32)));
    c->s.side = c->path->side_stream;
    return comm_devices_register(c->comm, c->memory.base, c->memory.size);
}

static void comm_path_close(struct col *c, bool broken)
{
    c->s.side = false;
    if (!broken) (void)!comm_devices_deregister(c->comm, c->memory.base);
    arena_free(&c->memory);
}

static status comm_path_call(struct col *c, enum col_op op, int64_t count)
{
    const int64_t part = count / c->ranks;
    const size_t share = (size_t)part * sizeof(float), bytes = (size_t)count * sizeof(float);
    switch (op) {
    case COL_ALL_REDUCE:
        return comm_all_reduce(c->comm, "all_reduce", c->out, count, DTYPE_F32, c->scratch, &c->s);
    case COL_ALL_GATHER: return comm_all_gather(c->comm, "all_gather", c->in, c->out, share, &c->s);
    case COL_REDUCE_SCATTER:
        return comm_reduce_scatter(c->comm, "reduce_scatter", c->in, c->out, part, DTYPE_F32, c->scratch,
                                   &c->s);
    case COL_ALL_TO_ALL: return comm_all_to_all(c->comm, "all_to_all", c->in, c->out, share, &c->s);
    case COL_BROADCAST: return comm_broadcast(c->comm, "broadcast", c->out, bytes, &c->s);
    case COL_OP_COUNT: break;
    }
    CHECK(false, "collective %d", (int)op);
}

/* ---- NCCL */

static status nccl_open(struct col *c)
{
    unsigned char id[128] = {0}, all[COMM_RANKS_MAX][sizeof id];
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (c->rank == 0) TRY(nccl_make_id(&c->nccl, id));
    TRY(comm_all_gather(c->comm, "meeting of GPUs", id, all, sizeof id, NULL));
    if (c->path->engines) config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
    return nccl_init(&c->nccl, &c->nccl_comm, all[0], c->ranks, c->rank, &config);
}

static status plain_open(struct col *c)
{
    TRY(take_memory(c, 0));
    return nccl_open(c);
}

static status windows_open(struct col *c)
{
    const struct nccl *n = &c->nccl;
    const size_t bytes = (c->bytes + 4095) / 4096 * 4096;
    if (!n->ncclMemAlloc_ || !n->ncclMemFree_ || !n->ncclCommWindowRegister_ || !n->ncclCommWindowDeregister_)
        return FAIL(STATUS_DEVICE, "NCCL %d has no symmetric memory: 2.27 or newer has", n->version);
    TRY(nccl_open(c));
    void *p[2] = {0};
    TRY_NCCL(n, "memory of windows", n->ncclMemAlloc_(&p[IN], bytes));
    c->in = p[IN];
    TRY_NCCL(n, "memory of windows", n->ncclMemAlloc_(&p[OUT], bytes));
    c->out = p[OUT];
    for (int k = 0; k < 2; k++) {
        TRY_NCCL(
            n, "window",
            n->ncclCommWindowRegister_(c->nccl_comm, p[k], bytes, &c->windows[k], NCCL_WIN_COLL_SYMMETRIC));
        if (c->windows[k] == NULL)
            return FAIL(STATUS_DEVICE,
                        "NCCL registers no windows here: it needs peer access between all GPUs and "
                        "NCCL_CUMEM_ENABLE not 0");
    }
    return STATUS_OK;
}

static void nccl_close(struct col *c, bool broken)
{
    const struct nccl *n = &c->nccl;
    float *const memory[2] = {c->in, c->out};
    for (int k = 0; k < 2 && c->nccl_comm && !broken; k++)
        if (c->windows[k]) (void)n->ncclCommWindowDeregister_(c->nccl_comm, c->windows[k]);
    for (int k = 0; k < 2 && c->path->windows && !broken; k++)
        if (memory[k]) (void)n->ncclMemFree_(memory[k]);
    if (c->nccl_comm) (void)(broken ? n->ncclCommAbort_(c->nccl_comm) : n->ncclCommDestroy_(c->nccl_comm));
    arena_free(&c->memory);
}

static bool nccl_serves(const struct col *c, enum col_op op)
{
    if (op == COL_ALL_TO_ALL) return c->nccl.ncclAlltoAll_ != NULL;
    return !c->path->engines || op == COL_ALL_GATHER;
}

static status nccl_call(struct col *c, enum col_op op, int64_t count)
{
    const struct nccl *n = &c->nccl;
    const size_t all = (size_t)count, part = all / (size_t)c->ranks;
    const cudaStream_t q = cuda_queue(&c->s);
    switch (op) {
    case COL_ALL_REDUCE:
        TRY_NCCL(n, "all_reduce", n->ncclAllReduce_(c->in, c->out, all, ncclFloat, ncclSum, c->nccl_comm, q));
        return STATUS_OK;
    case COL_ALL_GATHER:
        TRY_NCCL(n, "all_gather", n->ncclAllGather_(c->in, c->out, part, ncclFloat, c->nccl_comm, q));
        return STATUS_OK;
    case COL_REDUCE_SCATTER:
        TRY_NCCL(n, "reduce_scatter",
                 n->ncclReduceScatter_(c->in, c->out, part, ncclFloat, ncclSum, c->nccl_comm, q));
        return STATUS_OK;
    case COL_ALL_TO_ALL:
        TRY_NCCL(n, "all_to_all", n->ncclAlltoAll_(c->in, c->out, part, ncclFloat, c->nccl_comm, q));
        return STATUS_OK;
    case COL_BROADCAST:
        TRY_NCCL(n, "broadcast", n->ncclBroadcast_(c->in, c->out, all, ncclFloat, 0, c->nccl_comm, q));
        return STATUS_OK;
    case COL_OP_COUNT: break;
    }
    CHECK(false, "collective %d", (int)op);
}

/* ---- peer */

/* What each rank publishes about its memory. */
struct offer {
    int32_t local_rank, offered;
    cudaIpcMemHandle_t handle;
};

static status offer_memory(struct col *c, struct offer *mine)
{
    mine->local_rank = comm_local_rank(c->comm);
    if (c->ranks > P2P_RANKS_MAX) return STATUS_OK;
    TRY(take_memory(c, whole(sizeof *c->flags)));
    c->flags = c->scratch;
    TRY_CUDA(cudaIpcGetMemHandle(&mine->handle, c->memory.base));
    TRY(p2p_schedule_load(c->ranks));
    mine->offered = 1;
    return STATUS_OK;
}

static const enum p2p_op p2p_ops[] = {[COL_ALL_REDUCE] = P2P_ALL_REDUCE,
                                      [COL_ALL_GATHER] = P2P_ALL_GATHER,
                                      [COL_REDUCE_SCATTER] = P2P_REDUCE_SCATTER,
                                      [COL_ALL_TO_ALL] = P2P_ALL_TO_ALL};

/* Addresses of the other ranks' buffers here, at the same offsets as this rank's own. */
static status map_memory(struct col *c, const struct offer *all)
{
    char *const base = (char *)c->memory.base;
    for (int r = 0; r < c->ranks; r++) {
        if (!all[r].offered || all[r].local_rank != r)
            return FAIL(STATUS_CONFIG, "collectives by peer access are for at most %d ranks of one machine",
                        P2P_RANKS_MAX);
        char *there = base;
        if (r != c->rank) {
            TRY_CUDA(cudaIpcOpenMemHandle(&c->mapped[r], all[r].handle, cudaIpcMemLazyEnablePeerAccess));
            there = c->mapped[r];
        }
        c->peers.in[r] = (const float *)(there + ((char *)c->in - base));
        c->peers.out[r] = (float *)(there + ((char *)c->out - base));
        c->peers.flags[r] = (struct p2p_flags *)(there + ((char *)c->flags - base));
    }
    for (enum col_op op = 0; op < COL_BROADCAST; op++) {
        TRY(p2p_schedule_fill(&c->schedules[op], p2p_ops[op], P2P_DIRECT, c->rank, c->ranks));
        TRY(p2p_schedule_fill(&c->ll[op], p2p_ops[op], P2P_LL, c->rank, c->ranks));
    }
    c->peers.blocks = c->dev.multiprocessors < 64 ? c->dev.multiprocessors : 64;
    c->peers.deadline_s = COMM_SILENCE_S;
    c->peers.dt = DTYPE_F32;
    return STATUS_OK;
}

static status p2p_sched_open(struct col *c)
{
    struct offer mine = {0}, all[COMM_RANKS_MAX];
    const status offered = offer_memory(c, &mine);
    char why[TARGET_TEXT];
    if (offered != STATUS_OK) strncpy(why, status_message(), sizeof why - 1), why[sizeof why - 1] = 0;
    TRY(comm_all_gather(c->comm, "memory of the others", &mine, all, sizeof mine, NULL));
    if (offered != STATUS_OK) return FAIL(offered, "%s", why);
    return map_memory(c, all);
}

static void p2p_sched_close(struct col *c, bool broken)
{
    (void)broken;
    (void)cudaDeviceSynchronize();
    for (int r = 0; r < c->ranks && r < P2P_RANKS_MAX; r++)
        if (c->mapped[r]) (void)cudaIpcCloseMemHandle(c->mapped[r]);
    if (!broken) (void)!comm_barrier(c->comm, "memory is let go"); /* before it is unmapped */
    arena_free(&c->memory);
}

static bool p2p_supports(const struct col *c, enum col_op op)
{
    (void)c;
    return op != COL_BROADCAST;
}

static status p2p_schedule_call(struct col *c, enum col_op op, int64_t count)
{
    struct p2p_schedule_args a = c->peers;
    a.count = count / c->ranks;
    const bool ll = p2p_algo_supports(P2P_LL, p2p_ops[op], c->ranks, a.count);
    a.schedule = ll ? &c->ll[op] : &c->schedules[op];
    return p2p_schedule_launch(&a, &c->s);
}

const struct col_path *cuda_col_path(int i)
{
    static const struct col_path paths[COL_PATHS] = {
        {.name = "comm",
         .in_place = true,
         .numbers = P2P_REAL,
         .open = comm_path_open,
         .close = comm_path_close,
         .serves = serves_all,
         .call = comm_path_call},
        {.name = "overlap",
         .in_place = true,
         .side_stream = true,
         .numbers = P2P_REAL,
         .open = comm_path_open,
         .close = comm_path_close,
         .serves = serves_all,
         .call = comm_path_call},
        {.name = "plain",
         .numbers = P2P_WHOLE,
         .open = plain_open,
         .close = nccl_close,
         .serves = nccl_serves,
         .call = nccl_call},
        {.name = "symmetric",
         .windows = true,
         .numbers = P2P_WHOLE,
         .open = windows_open,
         .close = nccl_close,
         .serves = nccl_serves,
         .call = nccl_call},
        {.name = "copy_engine",
         .windows = true,
         .engines = true,
         .numbers = P2P_WHOLE,
         .open = windows_open,
         .close = nccl_close,
         .serves = nccl_serves,
         .call = nccl_call},
        {.name = "peer",
         .numbers = P2P_REAL,
         .open = p2p_sched_open,
         .close = p2p_sched_close,
         .serves = p2p_supports,
         .call = p2p_schedule_call},
    };
    return &paths[i];
}
