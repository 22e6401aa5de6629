/* p2p_comm: collectives and messages between GPUs of one host with peer access. Each rank maps the registered
 * memory of the others (CUDA IPC).
 * The tuner (comm/gpu/tuner.h) chooses between copy engines and kernels; on a side stream, copy engines carry all
 * but the smallest calls, so
 * that no SM is taken from compute.
 *
 *   copy engines   barrier; copy from each peer, a different one for each rank at a time; barrier
 *     a sum        the same into scratch; a kernel adds all terms
 *     all-reduce   barrier; copy the peers' parts of the own slice; add; barrier; copy the peers' slices; barrier
 *   kernels        one launch of a schedule (comm/gpu/p2p_schedule.h)
 *   rows           an all-to-all whose counts are on the GPUs: barrier; a kernel reads the rows from all others; barrier
 *   message        wait for room; copy into the neighbour's mailbox; signal it
 *
 * The counters that ranks wait for are in GPU memory: a captured call can be replayed. The abort flag ends all waits of kernels. */
#ifndef INGOT_COMM_GPU_CUDA_P2P_COMM_H
#define INGOT_COMM_GPU_CUDA_P2P_COMM_H
#include "comm/gpu/device_comm.h"
#include "comm/gpu/tuner.h"
#include "comm/gpu/p2p_schedule.h"

enum { P2P_COMM_REGISTERED_MAX = 16 };
/* What a rank's GPU has for the others, at the start of memory that all of them map. */
struct p2p_comm_flags {
    struct p2p_flags flags[COMM_DEVICE_GROUPS];           /* of custom kernels; first: they are aligned */
    uint32_t told[COMM_DEVICE_GROUPS][COMM_RANKS_MAX];     /* by the ranks of a communicator: barriers they have reached */
    uint32_t met[COMM_DEVICE_GROUPS];                      /* barriers of this rank */
    uint32_t sent[COMM_DEVICE_GROUPS][2], taken[COMM_DEVICE_GROUPS][2];       /* by the neighbours: messages of a direction */
    uint32_t has_sent[COMM_DEVICE_GROUPS][2], has_taken[COMM_DEVICE_GROUPS][2]; /* counters of this rank */
    double scalars[COMM_DEVICE_GROUPS][COMM_RANKS_MAX * COMM_SCALARS];
};
struct p2p_comm_memory {
    char *base;
    size_t bytes;
    char *of[COMM_RANKS_MAX];   /* by world rank; NULL: not mapped here */
};
/* State of the world. */
struct p2p_comm {
    struct p2p_comm_flags *flags;   /* this rank's; memory[0] */
    struct p2p_comm_memory memory[P2P_COMM_REGISTERED_MAX];
    int count;
    struct p2p_comm_route *routes;  /* [route_count], owned: calls so far, with the addresses of the others' data */
    int route_count, route_room, route_last;
    volatile uint32_t *abort_flag;    /* in host memory: set to end all waits */
    struct tuner paths[COMM_DEVICE_GROUPS];
    unsigned ways;              /* algorithms that may be chosen: all, except while timing */
    struct dev dev;            /* a copy: its opener is closed earlier */
    struct stream own;          /* the own part of a collective is copied here, while the others' are in flight */
    struct event forked, joined;
};

struct p2p_comm_barrier {
    uint32_t *told[COMM_RANKS_MAX]; /* this rank's slot in the flags of rank r */
    const uint32_t *come;       /* [ranks] what the others have signalled to this one */
    uint32_t *met;
    volatile uint32_t *abort_flag;
    int rank, ranks;
};
/* Kernels. p2p_comm_wait: until *flag reaches *count + plus. p2p_comm_signal: *flag = ++*count, after
 * everything queued before. */
status p2p_comm_barrier_queue(const struct p2p_comm_barrier *m, struct stream *s) WARN_UNUSED;
struct p2p_comm_wait { const uint32_t *flag, *count; int plus; volatile uint32_t *abort_flag; };
status p2p_comm_wait_queue(const struct p2p_comm_wait *w, struct stream *s) WARN_UNUSED;
status p2p_comm_signal_queue(uint32_t *count, uint32_t *flag, struct stream *s) WARN_UNUSED;
/* recv [rows of rank 0, of rank 1, ...] = the rows that each rank has for this one (comm_all_to_all_rows); in[r]: rank r's
 * `send`. 16 bytes at a time if all addresses and `bytes` allow, else 4 or 2. */
struct p2p_comm_rows {
    const char *in[P2P_RANKS_MAX];
    char *recv;
    const int64_t *counts;      /* [ranks][ranks], on the GPU */
    size_t bytes;               /* of a row */
    int rank, ranks;
};
status p2p_comm_rows_queue(const struct p2p_comm_rows *a, struct stream *s) WARN_UNUSED;
/* A copy inside the GPU by a few multiprocessors, so that it need not wait for copy engines. Both addresses
 * and `bytes` are multiples of 16. */
status p2p_comm_copy_queue(void *to, const void *from, size_t bytes, struct stream *s) WARN_UNUSED;

/* Collective over the world. Without peer access on the host, or if it is not wanted, only flags are
 * allocated, and p2p_comm_all is false. Call p2p_comm_close in either case. */
status p2p_comm_open(struct p2p_comm **out, struct comm *world, const struct dev *d, bool wanted) WARN_UNUSED;
void p2p_comm_close(struct p2p_comm *n);
/* Collective over the world, once, with nothing in flight: times the algorithms of communicators with peer
 * access. */
status p2p_comm_time(struct p2p_comm *n, struct comm *world, struct stream *s) WARN_UNUSED;
/* Collective over c, at most P2P_COMM_REGISTERED_MAX times. base: an allocation of whole pages, of which `bytes` are used. */
status p2p_comm_register(struct p2p_comm *n, struct comm *c, void *base, size_t bytes) WARN_UNUSED;
/* Collective over the same c, with nothing in flight: base may be freed afterwards. Memory that was not
 * registered is ignored. */
status p2p_comm_deregister(struct p2p_comm *n, struct comm *c, void *base) WARN_UNUSED;
bool p2p_comm_all(const struct p2p_comm *n, const struct comm *c);
/* *carried false: the data of some rank are not registered, on any rank of c; NCCL must be used. The first
 * such call sends the data's offsets to the others: layouts differ between ranks. Sets call->mark when
 * done. */
status p2p_comm_call(struct p2p_comm *n, struct comm *c, const struct comm_call *call, bool *carried) WARN_UNUSED;
/* `slots` [2][depth][bytes_max], shared: received messages. `number`: of this message since the last sync. */
status p2p_comm_message(struct p2p_comm *n, struct comm *c, const struct comm_call *call, char *slots, unsigned number) WARN_UNUSED;
#endif
