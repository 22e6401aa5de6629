/* What the files of bench collectives on GPUs share: a rank, its GPU, and the paths that data can take. */
#ifndef INGOT_BENCH_CUDA_COLLECTIVES_H
#define INGOT_BENCH_CUDA_COLLECTIVES_H
#include "bench/bench.h"
#include "bench/cuda/p2p_kernels.h"
#include "bench/p2p_report.h"
#include "comm/comm.h"
#include "comm/gpu/cuda/nccl.h"
#include "comm/gpu/p2p_schedule.h"
#include "dev/dev.h"

#define COL_OPS(X) X(ALL_REDUCE, all_reduce) X(ALL_GATHER, all_gather) X(REDUCE_SCATTER, reduce_scatter) X(ALL_TO_ALL, all_to_all) X(BROADCAST, broadcast)
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
    bool one_host;              /* all ranks are on it */
    struct dev dev;
    struct stream s;
    struct event begin, end;
    struct p2p_wrong *wrong;
    struct arena small;         /* wrong */
    struct nccl nccl;
    size_t bytes;               /* of the largest collective */
    struct p2p_report report;
    /* of the path that is open */
    const struct col_path *path;
    float *in, *out;
    struct arena memory;        /* of in, out and scratch, but for NCCL's windows */
    void *scratch;
    ncclComm_t nccl_comm;
    ncclWindow_t windows[2];
    struct p2p_flags *flags;
    struct p2p_schedule schedules[COL_OP_COUNT], little[COL_OP_COUNT];
    struct p2p_schedule_args peers; /* without schedule and count */
    void *mapped[P2P_RANKS_MAX];
};

struct col_path {
    const char *name;
    enum p2p_numbers numbers;   /* REAL: sums have comm.h's order */
    bool in_place;              /* all-reduce and broadcast */
    bool beside;                /* on a stream that says so */
    bool windows, engines;      /* of NCCL's */
    status (*open)(struct col *c);  /* after a failure all ranks leave the path out; the one that failed says why */
    void (*close)(struct col *c, bool broken);
    bool (*serves)(const struct col *c, enum col_op op);
    status (*call)(struct col *c, enum col_op op, int64_t count);  /* queues it: `count` floats in all, as nccl-tests counts them */
};
enum { COL_PATHS = 6 };
const struct col_path *cuda_col_path(int i);
#endif
