/* p2p_comm: collectives and messages between GPUs of one host with peer access. Each rank maps the registered memory of
 * the others (CUDA IPC). The tuner (comm/gpu/tuner.h) chooses between copy engines and kernels; on a side stream, copy
 * engines carry all but the smallest calls, so that no SM is taken from compute.
 *
 *   copy engines   barrier; copy from each peer, a different one for each rank at a time; barrier
 *     a sum        the same into scratch; a kernel adds all terms
 *     all-reduce   barrier; copy the peers' parts of the own slice; add; barrier; copy the peers' slices; barrier
 *   kernels        one launch of a schedule (comm/gpu/p2p_schedule.h)
 *   rows           an all-to-all whose counts are on the GPUs: barrier; a kernel reads the rows from all others; barrier
 *   message        wait for a free slot; copy into the neighbour's mailbox; signal the neighbour
 *
 * The counters that ranks wait for are in GPU memory: a captured call can be replayed. The abort flag ends all waits of
 * kernels. */
#ifndef INGOT_COMM_GPU_CUDA_P2P_COMM_H
#define INGOT_COMM_GPU_CUDA_P2P_COMM_H
#include "comm/gpu/device_comm.h"
#include "comm/gpu/tuner.h"
#include "comm/gpu/p2p_schedule.h"

enum { P2P_COMM_REGISTERED_MAX = 16 };
/* Flags of one rank, by communicator, at the start of memory that all ranks map. */
struct p2p_comm_flags {
    struct p2p_flags flags[COMM_DEVICE_GROUPS];           /* used by custom kernels; first, because they are aligned */
    uint32_t barrier_arrived[COMM_DEVICE_GROUPS][COMM_RANKS_MAX]; /* each rank writes here how many barriers it has
                                                                     reached */
    uint32_t barrier_count[COMM_DEVICE_GROUPS];            /* number of barriers of this rank */
    /* The neighbours write here how many messages of a direction they have sent and received. */
    uint32_t sent[COMM_DEVICE_GROUPS][2], taken[COMM_DEVICE_GROUPS][2];
    uint32_t has_sent[COMM_DEVICE_GROUPS][2], has_taken[COMM_DEVICE_GROUPS][2]; /* this rank's own counters of these */
    double scalars[COMM_DEVICE_GROUPS][COMM_RANKS_MAX * COMM_SCALARS];
};
struct p2p_comm_memory {
    char *base;
    size_t bytes;
    char *of[COMM_RANKS_MAX];   /* [world rank]: where that rank's memory is mapped; NULL: not mapped */
};
/* P2P state of the world. */
struct p2p_comm {
    struct p2p_comm_flags *flags;   /* this rank's flags, in memory[0] */
    struct p2p_comm_memory memory[P2P_COMM_REGISTERED_MAX];
    int count;
    struct p2p_comm_route *routes;  /* [route_count], owned: calls so far, with the addresses of the others' data */
    int route_count, route_room, route_last;
    volatile uint32_t *abort_flag;    /* in host memory: set to end all waits */
    struct tuner tuners[COMM_DEVICE_GROUPS];
    unsigned allowed_algos;     /* bit mask of the algorithms that may be chosen: all, except while timing */
    struct dev dev;            /* a copy, because the original is closed earlier */
    struct stream own;          /* copies this rank's own part of a collective while the others' are in flight */
    struct event forked, joined;
};

struct p2p_comm_barrier {
    uint32_t *barrier_arrived[COMM_RANKS_MAX]; /* this rank's slot in the flags of rank r */
    const uint32_t *come;       /* [ranks] what the other ranks have signalled to this one */
    uint32_t *barrier_count;
    volatile uint32_t *abort_flag;
    int rank, ranks;
};
/* Kernels. p2p_comm_wait waits until *flag reaches *count + plus. p2p_comm_signal sets *flag = ++*count, after all work
 * queued before. */
status p2p_comm_barrier_queue(const struct p2p_comm_barrier *m, struct stream *s) WARN_UNUSED;
struct p2p_comm_wait { const uint32_t *flag, *count; int plus; volatile uint32_t *abort_flag; };
status p2p_comm_wait_queue(const struct p2p_comm_wait *w, struct stream *s) WARN_UNUSED;
status p2p_comm_signal_queue(uint32_t *count, uint32_t *flag, struct stream *s) WARN_UNUSED;
/* Copies to recv [rows of rank 0, of rank 1, ...] the rows that each rank has for this one (comm_all_to_all_rows);
 * in[r]: rank r's `send`. 16 bytes at a time if all addresses and `bytes` allow it, else 4 or 2. */
struct p2p_comm_rows {
    const char *in[P2P_RANKS_MAX];
    char *recv;
    const int64_t *counts;      /* [ranks][ranks], on the GPU */
    size_t bytes;               /* bytes of a row */
    int rank, ranks;
};
status p2p_comm_rows_queue(const struct p2p_comm_rows *a, struct stream *s) WARN_UNUSED;
/* Copies inside the GPU by a few multiprocessors, so that the copy need not wait for copy engines. Both addresses and
 * `bytes` must be multiples of 16. */
status p2p_comm_copy_queue(void *to, const void *from, size_t bytes, struct stream *s) WARN_UNUSED;

/* Collective over the world. Without peer access on the host, or if it is not `wanted`, only flags are allocated, and
 * p2p_comm_all is false. Call p2p_comm_close after success and failure. */
status p2p_comm_open(struct p2p_comm **out, struct comm *world, const struct dev *d, bool wanted) WARN_UNUSED;
void p2p_comm_close(struct p2p_comm *n);
/* Collective over the world, once, with nothing in flight: times the algorithms of communicators with peer access. */
status p2p_comm_time(struct p2p_comm *n, struct comm *world, struct stream *s) WARN_UNUSED;
/* Collective over c, at most P2P_COMM_REGISTERED_MAX times. base: an allocation of whole pages, of which `bytes` are
 * used. */
status p2p_comm_register(struct p2p_comm *n, struct comm *c, void *base, size_t bytes) WARN_UNUSED;
/* Collective over the same c, with nothing in flight: base may be freed afterwards. Memory that was not registered is
 * ignored. */
status p2p_comm_deregister(struct p2p_comm *n, struct comm *c, void *base) WARN_UNUSED;
/* True if this rank reaches the memory of rank r of c. The other rank says the same. */
bool p2p_comm_reaches(const struct p2p_comm *n, const struct comm *c, int r);
/* True if all ranks of c have peer access to each other. */
bool p2p_comm_all(const struct p2p_comm *n, const struct comm *c);
/* Queues a collective. *carried is false on all ranks of c if the data of any rank are not registered: NCCL must then
 * be used. The first call with these buffers sends their offsets to the other ranks, because layouts differ between
 * ranks. Sets call->mark when done. */
status p2p_comm_call(struct p2p_comm *n, struct comm *c, const struct comm_call *call, bool *carried) WARN_UNUSED;
/* Queues a message. `slots` [2][depth][bytes_max], shared: received messages. `number`: which message it is since the
 * last sync. */
status p2p_comm_message(struct p2p_comm *n, struct comm *c, const struct comm_call *call, char *slots, unsigned number) WARN_UNUSED;
#endif
