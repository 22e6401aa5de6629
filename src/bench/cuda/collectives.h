/* Shared by the files of bench collectives on GPUs: a rank, its GPU, and the paths that data can take. */
#ifndef INGOT_BENCH_CUDA_COLLECTIVES_H
#define INGOT_BENCH_CUDA_COLLECTIVES_H
#include "bench/bench.h"
#include "bench/cuda/p2p_kernels.h"
#include "bench/p2p_report.h"
#include "comm/comm.h"
#include "comm/gpu/cuda/nccl.h"
#include "comm/gpu/p2p_schedule.h"
#include "dev/dev.h"

#define COL_OPS(X) \
    X(ALL_REDUCE, all_reduce) X(ALL_GATHER, all_gather) X(REDUCE_SCATTER, reduce_scatter) \
    X(ALL_TO_ALL, all_to_all) X(BROADCAST, broadcast)
enum col_op {
#define X(name, text) COL_##name,
    COL_OPS(X)
#undef X
    COL_OP_COUNT
};

struct col {
    const struct collectives_bench *b;
    struct comm *comm;
    int rank, ranks;
    bool one_host;              /* all ranks are on this host */
    struct dev dev;
    struct stream s;
    struct event begin, end;
    struct p2p_wrong *wrong;
    struct arena small;         /* memory of `wrong` */
    struct nccl nccl;
    size_t bytes;               /* size of the largest collective */
    struct p2p_report report;
    /* state of the open path */
    const struct col_path *path;
    float *in, *out;
    struct arena memory;        /* memory of in, out and scratch, except NCCL's windows */
    void *scratch;
    ncclComm_t nccl_comm;
    ncclWindow_t windows[2];
    struct p2p_flags *flags;
    struct p2p_schedule schedules[COL_OP_COUNT], ll[COL_OP_COUNT];
    struct p2p_schedule_args peers; /* schedule and count are unset */
    void *mapped[P2P_RANKS_MAX];
};

struct col_path {
    const char *name;
    enum p2p_numbers numbers;   /* REAL: sums are added in the order of comm.h */
    bool in_place;              /* all-reduce and broadcast run in place */
    bool side_stream;                /* runs on a stream marked as side stream */
    bool windows, engines;      /* uses NCCL windows; uses NCCL's copy engines */
    status (*open)(struct col *c);  /* after a failure all ranks skip the path; the failing rank reports the reason */
    void (*close)(struct col *c, bool broken);
    bool (*serves)(const struct col *c, enum col_op op);
    /* queues the collective: `count` floats in total, as nccl-tests counts them */
    status (*call)(struct col *c, enum col_op op, int64_t count);
};
enum { COL_PATHS = 6 };
const struct col_path *cuda_col_path(int i);
#endif
