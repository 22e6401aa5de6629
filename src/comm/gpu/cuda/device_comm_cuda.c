/* Calls between GPUs: with peer access by custom kernels and copies (comm/gpu/cuda/p2p_comm.h), else by NCCL,
 * which is loaded on demand, with a communicator per group. Terms of sums are sent as they are, so the order
 * of sums is ours, not that of NCCL's ring. Messages choose for each pair of neighbours (nccl_mail.h). */
#include "comm/call.h"
#include "comm/transport.h"
#include "comm/gpu/cuda/device_comm_cuda.h"
#include "comm/gpu/cuda/nccl.h"
#include "comm/gpu/cuda/nccl_mail.h"
#include "comm/gpu/cuda/p2p_comm.h"
#include "dev/cuda/cuda_int.h"

#include <stdlib.h>
#include <string.h>

/* State of a communicator; some fields are used in the world only. */
struct device_state {
    ncclComm_t comm;
    char *slots;               /* message slots in P2P memory */
    unsigned messages[2][2];   /* [send, receive][direction] by peer access, since the last sync */
    struct nccl_mail *mailbox; /* NULL: messages go by peer access alone */
    struct p2p_comm *p2p;      /* world only */
    struct nccl *nccl;         /* world only; NULL before it is loaded */
    unsigned char *marks;      /* world only */
};

/* ---- NCCL */

static status need_nccl(struct device_state *first)
{
    if (first->nccl) return STATUS_OK;
    first->nccl = calloc(1, sizeof *first->nccl);
    if (first->nccl == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the description of NCCL");
    return nccl_load(first->nccl);
}

/* Creates the NCCL communicator of c. Collective: called when NCCL first carries a call of c. */
static status join(struct comm *c)
{
    struct device_state *first = c->world->device;
    unsigned char id[128] = {0}, all[COMM_RANKS_MAX][sizeof id];
    TRY(need_nccl(first));
    if (c->rank == 0) TRY(nccl_make_id(first->nccl, id));
    TRY(transport_all_gather(c, "meeting of GPUs", id, all, sizeof id));
    return nccl_init(first->nccl, &c->device->comm, all[0], c->ranks, c->rank, NULL);
}

static status send_recv(struct comm *c, const struct comm_call *call, const struct nccl *n)
{
    const cudaStream_t q = cuda_queue(call->stream);
    const size_t own = (size_t)c->rank * call->bytes;
    const char *send = call->send;
    char *recv = call->recv;
    if (!comm_op_sums(call->op)) /* sums read the own part in place */
        TRY(dev_copy(call->stream, recv + own, send + own, call->bytes));
    TRY_NCCL(n, call->name, n->ncclGroupStart_());
    for (int k = 1; k < c->ranks; k++) {
        const int to = (c->rank + k) % c->ranks, from = (c->rank + c->ranks - k) % c->ranks;
        TRY_NCCL(
            n, call->name,
            n->ncclSend_(send + (size_t)to * call->bytes, call->bytes, ncclUint8, to, c->device->comm, q));
        TRY_NCCL(n, call->name,
                 n->ncclRecv_(recv + (size_t)from * call->bytes, call->bytes, ncclUint8, from,
                              c->device->comm, q));
    }
    TRY_NCCL(n, call->name, n->ncclGroupEnd_());
    return STATUS_OK;
}

static status shift(struct comm *c, const struct comm_call *call, const struct nccl *n)
{
    const cudaStream_t q = cuda_queue(call->stream);
    TRY_NCCL(n, call->name, n->ncclGroupStart_());
    TRY_NCCL(n, call->name,
             n->ncclSend_(call->send, call->bytes, ncclUint8, (c->rank + call->by) % c->ranks,
                          c->device->comm, q));
    TRY_NCCL(n, call->name,
             n->ncclRecv_(call->recv, call->bytes, ncclUint8, comm_ring_shift_source(c, call),
                          c->device->comm, q));
    TRY_NCCL(n, call->name, n->ncclGroupEnd_());
    return STATUS_OK;
}

static status all_gather(struct comm *c, const struct comm_call *call, const void *mine, void *all)
{
    const struct nccl *n = c->world->device->nccl;
    TRY_NCCL(n, call->name,
             n->ncclAllGather_(mine, all, call->bytes, ncclUint8, c->device->comm, cuda_queue(call->stream)));
    return STATUS_OK;
}

static status broadcast(struct comm *c, const struct comm_call *call, const struct nccl *n)
{
    TRY_NCCL(n, call->name,
             n->ncclBroadcast_(call->send, call->recv, call->bytes, ncclUint8, 0, c->device->comm,
                               cuda_queue(call->stream)));
    return STATUS_OK;
}

static status by_nccl(struct comm *c, const struct comm_call *call)
{
    if (c->device == NULL) c->device = calloc(1, sizeof *c->device);
    if (c->device == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the description of group '%s'", c->name);
    if (c->device->comm == NULL) TRY(join(c));
    const struct nccl *n = c->world->device->nccl;
    switch (call->op) {
    case COMM_ALL_TO_ALL: return send_recv(c, call, n);
    case COMM_ALL_GATHER: return all_gather(c, call, call->send, call->recv);
    case COMM_SHIFT: return shift(c, call, n);
    case COMM_BROADCAST: return broadcast(c, call, n);
    case COMM_REDUCE_SCATTER: TRY(send_recv(c, call, n)); return device_reduce(c, call);
    case COMM_ALL_REDUCE:
        TRY(send_recv(c, call, n));
        TRY(device_reduce(c, call));
        return all_gather(c, call, (char *)call->out + (size_t)c->rank * call->bytes, call->out);
    case COMM_GATHER:
    case COMM_BARRIER:
    case COMM_SPLIT:
    case COMM_SEND:
    case COMM_RECV:
    case COMM_IDLE:
    case COMM_OP_COUNT: break;
    }
    CHECK(false, "%s '%s' between GPUs", comm_op_text(call->op), call->name);
}

/* ---- calls */

/* The ops that by_nccl and p2p_comm_call carry out. */
static bool is_carried(enum comm_op op)
{
    switch (op) {
    case COMM_ALL_TO_ALL:
    case COMM_ALL_GATHER:
    case COMM_BROADCAST:
    case COMM_REDUCE_SCATTER:
    case COMM_ALL_REDUCE:
    case COMM_SHIFT: return true;
    case COMM_GATHER:
    case COMM_BARRIER:
    case COMM_SPLIT:
    case COMM_SEND:
    case COMM_RECV:
    case COMM_IDLE:
    case COMM_OP_COUNT: break;
    }
    return false;
}

static status device_collective(struct comm *c, const struct comm_call *call)
{
    bool carried = false;
    CHECK(is_carried(call->op), "%s '%s' between GPUs", comm_op_text(call->op), call->name);
    if (call->bytes > 0) TRY(p2p_comm_call(c->world->device->p2p, c, call, &carried));
    if (carried) return STATUS_OK;
    if (call->counts)
        return FAIL(STATUS_CONFIG,
                    "'%s': the ranks of '%s' must reach each other's memory so far: put parallel.expert's "
                    "neighbours, at most %d, on one machine, with parallel.transport: auto",
                    call->name, c->name, P2P_RANKS_MAX);
    if (call->bytes > 0) TRY(by_nccl(c, call));
    return call->done_flag ? device_set_flag(call->done_flag, call->stream) : STATUS_OK;
}

static double *device_scalars(struct comm *c)
{
    return c->world->device->p2p->flags->scalars[c->comm_id];
}

static status device_register(struct comm *c, void *base, size_t bytes)
{
    return p2p_comm_register(c->world->device->p2p, c, base, bytes);
}

static status device_deregister(struct comm *c, void *base)
{
    return p2p_comm_deregister(c->world->device->p2p, c, base);
}

/* ---- messages */

static bool device_mail_by_nccl(const struct comm *c)
{
    return !p2p_comm_all(c->world->device->p2p, c);
}

static status device_mailbox_open(struct comm *c)
{
    struct device_state *first = c->world->device;
    const size_t bytes = 2 * c->mailbox.depth * c->mailbox.bytes_max;
    const int next = (c->rank + 1) % c->ranks, prev = (c->rank + c->ranks - 1) % c->ranks;
    if (c->device == NULL) c->device = calloc(1, sizeof *c->device);
    if (c->device == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the description of group '%s'", c->name);
    TRY_CUDA(cudaMalloc((void **)&c->device->slots, device_pages(bytes)));
    c->world->memory.device += device_pages(bytes);
    TRY(p2p_comm_register(first->p2p, c, c->device->slots, bytes));
    if (!device_mail_by_nccl(c)) return STATUS_OK;
    TRY(need_nccl(first));
    const struct nccl_mail_args a = {.nccl = first->nccl,
                                     .c = c,
                                     .dev = &first->p2p->dev,
                                     .slots = c->device->slots,
                                     .by_nccl = {[COMM_NEXT] = !p2p_comm_reaches(first->p2p, c, next),
                                                 [COMM_PREV] = !p2p_comm_reaches(first->p2p, c, prev)}};
    return nccl_mail_open(&c->device->mailbox, &a);
}

static status device_message(struct comm *c, const struct comm_call *call)
{
    struct device_state *d = c->device;
    unsigned *number = &d->messages[call->op == COMM_SEND ? 0 : 1][call->way];
    if (nccl_mail_carries(d->mailbox, call)) return nccl_mail_message(d->mailbox, call);
    TRY(p2p_comm_message(c->world->device->p2p, c, call, d->slots, (*number)++));
    return call->done_flag ? device_set_flag(call->done_flag, call->stream) : STATUS_OK;
}

static status device_mailbox_settle(struct comm *c, struct stream *s)
{
    memset(c->device->messages, 0, sizeof c->device->messages);
    return c->device->mailbox ? nccl_mail_settle(c->device->mailbox, s) : STATUS_OK;
}

/* ---- begin and end */

static status device_start(struct comm *world, struct stream *s, enum gpu_backend how)
{
    struct device_state *d = world->device = calloc(1, sizeof *d);
    if (d == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the description of a rank's GPU");
    TRY_CUDA(cudaHostAlloc((void **)&d->marks, DEVICE_FLAGS, cudaHostAllocMapped | cudaHostAllocPortable));
    memset(d->marks, 0, DEVICE_FLAGS);
    world->memory.host += DEVICE_FLAGS;
    world->device_calls.done = d->marks;
    return p2p_comm_open(&d->p2p, world, s->dev, how == GPU_BACKEND_AUTO);
}

static status device_tune(struct comm *world, struct stream *s)
{
    return p2p_comm_time(world->device->p2p, world, s);
}

static void device_abort(struct comm *world)
{
    const struct device_state *first = world->device;
    if (first == NULL) return;
    if (first->p2p && first->p2p->abort_flag) *first->p2p->abort_flag = 1;
    for (int i = -1; i < world->group_count; i++) {
        struct device_state *d = i < 0 ? world->device : world->groups[i]->device;
        if (d) nccl_mail_abort(d->mailbox);
        if (d && d->comm) nccl_abort(first->nccl, &d->comm);
    }
}

static void device_stop(struct comm *world)
{
    struct device_state *first = world->device;
    if (first == NULL) return;
    for (int i = world->group_count; i >= 0; i--) {
        struct comm *c = i == world->group_count ? world : world->groups[i];
        if (c->device == NULL) continue;
        nccl_mail_close(c->device->mailbox);
        if (c->device->comm) (void)first->nccl->ncclCommDestroy_(c->device->comm);
        if (c->device->slots) (void)cudaFree(c->device->slots);
        if (c != world) free(c->device);
        if (c != world) c->device = NULL;
    }
    p2p_comm_close(first->p2p);
    if (first->marks) (void)cudaFreeHost(first->marks);
    if (first->nccl == NULL || nccl_unload(first->nccl)) free(first->nccl);
    free(first);
    world->device = NULL;
}

const struct device_comm_ops *cuda_device_comm_ops(void)
{
    static const struct device_comm_ops ops = {
        .start = device_start,
        .time = device_tune,
        .stop = device_stop,
        .abort = device_abort,
        .share = device_register,
        .unshare = device_deregister,
        .call = device_collective,
        .sum = device_tree_sum,
        .scalars = device_scalars,
        .mail_by_nccl = device_mail_by_nccl,
        .mailbox_open = device_mailbox_open,
        .message = device_message,
        .mailbox_settle = device_mailbox_settle,
    };
    return &ops;
}
