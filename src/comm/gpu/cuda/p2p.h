/* near: GPUs of one machine that reach each other's memory. Each rank maps what the others share (CUDA's IPC). Copy engines take no
 * multiprocessor from what runs beside, and a kernel of one block meets the others before and after; own kernels (p2p_schedule.h) are faster by
 * themselves. Which of them a collective takes is chosen by times (tuner.h), but that what runs beside takes the engines.
 *
 *   by engines   meet; copy from each of the others, a different one for each rank at a time; meet
 *     a sum      ... into scratch; a kernel adds up
 *     all-reduce meet; copy the others' parts of the own slice; add up; meet; copy the others' slices; meet
 *   own kernels  one exchange
 *   message      wait for room; copy into the neighbour's mailbox; say so
 *
 * The counts that ranks wait for are kept in the GPU's memory: a captured call can be replayed. Waits end when `gone` is set. */
#ifndef INGOT_COMM_GPU_CUDA_P2P_H
#define INGOT_COMM_GPU_CUDA_P2P_H
#include "comm/gpu/device_comm.h"
#include "comm/gpu/tuner.h"
#include "comm/gpu/p2p_schedule.h"

enum { NEAR_SHARED_MAX = 16 };
/* What a rank's GPU has for the others, at the front of memory that all of them map. */
struct near_board {
    struct peer_flags flags[COMM_GROUPS];           /* of own kernels; first: they are aligned */
    uint32_t told[COMM_GROUPS][COMM_RANKS_MAX];     /* by the ranks of a communicator: meetings they have come to */
    uint32_t met[COMM_GROUPS];                      /* this rank's own meetings */
    uint32_t sent[COMM_GROUPS][2], taken[COMM_GROUPS][2];       /* by the neighbours: messages of a way */
    uint32_t has_sent[COMM_GROUPS][2], has_taken[COMM_GROUPS][2]; /* this rank's own */
    double scalars[COMM_GROUPS][COMM_RANKS_MAX * COMM_SCALARS];
};
struct near_memory {
    char *base;
    size_t bytes;
    char *of[COMM_RANKS_MAX];   /* by rank of all; NULL: not mapped here */
};
/* Of the world. */
struct near {
    struct near_board *board;   /* this rank's; memory[0] */
    struct near_memory memory[NEAR_SHARED_MAX];
    int count;
    struct near_route *routes;  /* [route_count], owned: calls so far, and where the others have their data */
    int route_count, route_room, route_last;
    volatile uint32_t *gone;    /* in the host's memory: all waits end */
    struct paths paths[COMM_GROUPS];
    unsigned ways;              /* paths that may be chosen: all of them, but while they are timed */
    struct dev card;            /* a copy: what opened it is closed before */
    struct stream own;          /* the own part of a collective is copied here, while the others' are on their way */
    struct event forked, joined;
};

struct near_meet {
    uint32_t *told[COMM_RANKS_MAX]; /* where rank r wants to be told; this rank's place */
    const uint32_t *come;       /* [ranks] what the others have told this one */
    uint32_t *met;
    volatile uint32_t *gone;
    int rank, ranks;
};
/* Kernels. near_wait: until *flag has come to *count + plus. near_tell: *flag = ++*count, after everything queued before. */
status near_meet_queue(const struct near_meet *m, struct stream *s) WARN_UNUSED;
struct near_wait { const uint32_t *flag, *count; int plus; volatile uint32_t *gone; };
status near_wait_queue(const struct near_wait *w, struct stream *s) WARN_UNUSED;
status near_tell_queue(uint32_t *count, uint32_t *flag, struct stream *s) WARN_UNUSED;
/* A copy inside the GPU by a few multiprocessors, so that it has not to wait for copy engines. Both lie on 16 bytes, of which `bytes` is a multiple. */
status near_copy_queue(void *to, const void *from, size_t bytes, struct stream *s) WARN_UNUSED;

/* Collective over all ranks. When the GPUs of a machine do not reach each other, or it is not wanted, all there is is the board: near_all is
 * false then. near_close after either end. */
status near_open(struct near **out, struct comm *world, const struct dev *d, bool wanted) WARN_UNUSED;
void near_close(struct near *n);
/* Collective over all ranks, once, with nothing under way: fills in the paths of communicators whose GPUs are near. */
status near_time(struct near *n, struct comm *world, struct stream *s) WARN_UNUSED;
/* Collective over c, at most NEAR_SHARED_MAX times. base: an allocation of whole pages, of which `bytes` are used. */
status near_share(struct near *n, struct comm *c, void *base, size_t bytes) WARN_UNUSED;
/* Collective over the same c, with nothing under way: base may be freed then. Nothing where it was not shared. */
status near_unshare(struct near *n, struct comm *c, void *base) WARN_UNUSED;
bool near_all(const struct near *n, const struct comm *c);
/* *carried false: some rank's data are not shared, on any rank of c; NCCL has to carry them. The first such call says to the others where
 * its data lie: layouts differ from rank to rank. Leaves call->mark when it has carried. */
status near_call(struct near *n, struct comm *c, const struct comm_call *call, bool *carried) WARN_UNUSED;
/* `slots` [2][depth][bytes_max], shared: what comes in. `number`: of this message among those since the last settling. */
status near_message(struct near *n, struct comm *c, const struct comm_call *call, char *slots, unsigned number) WARN_UNUSED;
#endif
