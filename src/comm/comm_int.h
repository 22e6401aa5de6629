/* The communicator, as the files of comm/ share it. Who calls whom, from the top:
 *
 *   step, tree_sum, gpu/gpu_open         built on the API
 *   comm                                 the API: numbering, groups, messages
 *   health/call_list, gpu/device_comm    around each call
 *   transport                            host/shm and host/mpi behind one table; GPUs: device_comm_ops (gpu/device_comm.h)
 *   launch/rendezvous, launch/job, health/heartbeat_udp, health/heartbeat, health/flight_recorder
 *   call                                 the description of a call, and its text in errors */
#ifndef INGOT_COMM_COMM_INT_H
#define INGOT_COMM_COMM_INT_H
#include "comm/comm.h"

#define COMM_OPS(X)                                                                                                    \
    X(ALL_TO_ALL, "all-to-all") X(ALL_GATHER, "all-gather") X(GATHER, "gather") X(BROADCAST, "broadcast") X(REDUCE_SCATTER, "reduce-scatter") X(ALL_REDUCE, "all-reduce") X(SHIFT, "shift") X(BARRIER, "barrier")  \
    X(SPLIT, "split") X(SEND, "send") X(RECV, "receive") X(IDLE, "between calls")
enum comm_op {
#define X(name, text) COMM_##name,
    COMM_OPS(X)
#undef X
    COMM_OP_COUNT
};

struct comm_call {
    enum comm_op op;
    const char *name;
    const void *send;
    void *recv;         /* reductions: the terms, [ranks][bytes] */
    size_t bytes;       /* all-reduce, on GPUs only: bytes of a rank's slice */
    void *out;          /* GPU reductions only. Reduce-scatter: output, `bytes` long. All-reduce: output [ranks][bytes],
                           equal to `send` */
    dtype dt;           /* GPU reductions only */
    enum comm_way way;  /* messages only */
    int by;             /* shifts only */
    const int64_t *counts; /* all-to-all: number of rows of `bytes` from each rank to each, [ranks][ranks], in the same
                              memory as the data; NULL: one row */
    struct stream *stream; /* data are on GPUs; NULL: in host memory */
    volatile unsigned char *done_flag; /* a queued call sets it to 1 when it is done; NULL: none */
    uint64_t sequence;  /* number among the collectives of its communicator, or the messages of its direction; from 1 */
};

/* Calls queued since the GPUs were last known to be idle, or calls of the replayed step. World only. */
struct device_calls {
    struct device_call_entry *list;    /* owned */
    int count, room;
    int step;                   /* the first `step` calls belong to the step, which may be replayed */
    volatile unsigned char *done; /* [DEVICE_FLAGS] completion flags, in host memory; device_ops owns them */
};
enum { DEVICE_FLAGS = 1 << 15 };  /* calls beyond this number have no flag */

enum { DEVICE_PAGE = 2 << 20 };   /* GPUs map whole pages of each other's memory */
static inline size_t device_pages(size_t bytes) { return (bytes + DEVICE_PAGE - 1) / DEVICE_PAGE * DEVICE_PAGE; }

struct device_comm_ops; /* device_comm.h */
struct host_transport; /* transport.h */
struct device_state;    /* device_comm_cuda.c */
struct shm;   /* shm.c */
struct mpi;     /* mpi.c */
struct mailbox {
    size_t bytes_max, room;     /* maximum bytes of a message; the same with its header, in whole cache lines */
    unsigned depth;
    bool on_device;               /* the mailboxes are in GPU memory */
    uint64_t sent[2], taken[2]; /* number of messages so far, by direction */
    char *memory;               /* shm.c: the channels; mpi.c: copies of messages in flight, [2][depth][room], and one
                                   received message */
    size_t memory_bytes;
    void **requests;            /* mpi.c: [2][depth] */
};
struct mailbox mailbox_of(size_t bytes_max, int depth);
struct comm {
    char name[COMM_NAME];       /* "": the world */
    int rank, ranks;
    int *members;               /* [ranks]: the members' ranks in the world; owned */
    struct comm *world;         /* the world; the world's is itself */
    struct comm *groups[COMM_GROUPS];   /* world only; owned */
    int group_count;
    uint32_t comm_ids;          /* world only; bit p: a communicator of this rank has number p */
    int comm_id;                /* number of this communicator */
    uint64_t sequence;          /* number of collectives so far */
    unsigned barriers;          /* shm.c: number of barriers so far */
    void *handle;               /* mpi.c: its MPI_Comm */
    struct mailbox mailbox;     /* room is 0 before comm_mailbox_open */
    const struct host_transport *transport; /* host transport: shm or mpi; the same in all groups */
    struct shm *shm;            /* state of transport_shm; NULL with mpi */
    struct mpi *mpi;            /* state of transport_mpi; NULL with shm */
    struct rank_monitor *monitor; /* world only: this rank's monitor (heartbeat.h) */
    struct flight_recorder *flight;      /* world only: in heartbeat memory */
    struct call_list *calls;        /* world only: owned */
    int local_rank, local_ranks; /* world only */
    struct comm_memory memory;    /* world only: allocated so far */
    const struct device_comm_ops *device_ops; /* world only: GPU functions; NULL without GPUs */
    struct device_calls device_calls;/* world only */
    struct device_state *device;        /* GPU state of this communicator; NULL before it is needed */
};

/* comm.c: runs one collective and assigns its number. On the host a reduce-scatter only moves data: the caller adds. */
status comm_execute(struct comm *c, struct comm_call call) WARN_UNUSED;
#endif
