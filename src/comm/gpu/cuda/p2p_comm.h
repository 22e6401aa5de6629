/* p2p_comm: collectives and messages between GPUs of one host with peer access. Each rank maps the registered memory of the others (CUDA IPC).
 * The tuner (comm/gpu/tuner.h) chooses between copy engines and kernels; on a side stream, copy engines carry all but the smallest calls, so
 * that no SM is taken from compute.
 *
 *   copy engines   barrier; copy from each peer, a different one for each rank at a time; barrier
 *     a sum        the same into scratch; a kernel adds all terms
 *     all-reduce   barrier; copy the peers' parts of the own slice; add; barrier; copy the peers' slices; barrier
 *   kernels        one launch of a schedule (comm/gpu/p2p_schedule.h)
 *   message        wait for room; copy into the neighbour's mailbox; signal it
 *
 * The counters that ranks wait for are in GPU memory: a captured call can be replayed. The abort flag ends all waits of kernels. */
#ifndef INGOT_COMM_GPU_CUDA_P2P_COMM_H
#define INGOT_COMM_GPU_CUDA_P2P_COMM_H
#include "comm/gpu/device_comm.h"
#include "comm/gpu/tuner.h"
#include "comm/gpu/p2p_schedule.h"

enum { P2P_COMM_REGISTERED_MAX = 16 };
/* What a rank's GPU has for the others, at the front of memory that all of them map. */
struct p2p_comm_flags {
    struct p2p_flags flags[COMM_GROUPS];           /* of own kernels; first: they are aligned */
    uint32_t told[COMM_GROUPS][COMM_RANKS_MAX];     /* by the ranks of a communicator: meetings they have come to */
    uint32_t met[COMM_GROUPS];                      /* this rank's own meetings */
    uint32_t sent[COMM_GROUPS][2], taken[COMM_GROUPS][2];       /* by the neighbours: messages of a way */
    uint32_t has_sent[COMM_GROUPS][2], has_taken[COMM_GROUPS][2]; /* this rank's own */
    double scalars[COMM_GROUPS][COMM_RANKS_MAX * COMM_SCALARS];
};
struct p2p_comm_memory {
    char *base;
    size_t bytes;
    char *of[COMM_RANKS_MAX];   /* by rank of all; NULL: not mapped here */
};
/* Of the world. */
struct p2p_comm {
    struct p2p_comm_flags *flags;   /* this rank's; memory[0] */
    struct p2p_comm_memory memory[P2P_COMM_REGISTERED_MAX];
    int count;
    struct p2p_comm_route *routes;  /* [route_count], owned: calls so far, and where the others have their data */
    int route_count, route_room, route_last;
    volatile uint32_t *abort_flag;    /* in the host's memory: all waits end */
    struct tuner paths[COMM_GROUPS];
    unsigned ways;              /* paths that may be chosen: all of them, but while they are timed */
    struct dev dev;            /* a copy: what opened it is closed before */
    struct stream own;          /* the own part of a collective is copied here, while the others' are on their way */
    struct event forked, joined;
};

struct p2p_comm_barrier {
    uint32_t *told[COMM_RANKS_MAX]; /* where rank r wants to be told; this rank's place */
    const uint32_t *come;       /* [ranks] what the others have told this one */
    uint32_t *met;
    volatile uint32_t *abort_flag;
    int rank, ranks;
};
/* Kernels. p2p_comm_wait: until *flag has come to *count + plus. p2p_comm_signal: *flag = ++*count, after everything queued before. */
status p2p_comm_barrier_queue(const struct p2p_comm_barrier *m, struct stream *s) WARN_UNUSED;
struct p2p_comm_wait { const uint32_t *flag, *count; int plus; volatile uint32_t *abort_flag; };
status p2p_comm_wait_queue(const struct p2p_comm_wait *w, struct stream *s) WARN_UNUSED;
status p2p_comm_signal_queue(uint32_t *count, uint32_t *flag, struct stream *s) WARN_UNUSED;
/* A copy inside the GPU by a few multiprocessors, so that it has not to wait for copy engines. Both lie on 16 bytes, of which `bytes` is a multiple. */
status p2p_comm_copy_queue(void *to, const void *from, size_t bytes, struct stream *s) WARN_UNUSED;

/* Collective over all ranks. When the GPUs of a machine do not reach each other, or it is not wanted, all there is is the board: p2p_comm_all is
 * false then. p2p_comm_close after either end. */
status p2p_comm_open(struct p2p_comm **out, struct comm *world, const struct dev *d, bool wanted) WARN_UNUSED;
void p2p_comm_close(struct p2p_comm *n);
/* Collective over all ranks, once, with nothing under way: fills in the paths of communicators whose GPUs are near. */
status p2p_comm_time(struct p2p_comm *n, struct comm *world, struct stream *s) WARN_UNUSED;
/* Collective over c, at most P2P_COMM_REGISTERED_MAX times. base: an allocation of whole pages, of which `bytes` are used. */
status p2p_comm_register(struct p2p_comm *n, struct comm *c, void *base, size_t bytes) WARN_UNUSED;
/* Collective over the same c, with nothing under way: base may be freed then. Nothing where it was not shared. */
status p2p_comm_deregister(struct p2p_comm *n, struct comm *c, void *base) WARN_UNUSED;
bool p2p_comm_all(const struct p2p_comm *n, const struct comm *c);
/* *carried false: some rank's data are not shared, on any rank of c; NCCL has to carry them. The first such call says to the others where
 * its data lie: layouts differ from rank to rank. Leaves call->mark when it has carried. */
status p2p_comm_call(struct p2p_comm *n, struct comm *c, const struct comm_call *call, bool *carried) WARN_UNUSED;
/* `slots` [2][depth][bytes_max], shared: what comes in. `number`: of this message among those since the last settling. */
status p2p_comm_message(struct p2p_comm *n, struct comm *c, const struct comm_call *call, char *slots, unsigned number) WARN_UNUSED;
#endif
