/* Shared by the files of bench p2p: all GPUs of this host in one process. */
#ifndef INGOT_BENCH_CUDA_P2P_H
#define INGOT_BENCH_CUDA_P2P_H
#include "bench/bench.h"
#include "bench/cuda/p2p_kernels.h"
#include "bench/p2p_report.h"
#include "comm/gpu/p2p_schedule.h"

enum { P2P_GPUS_MAX = 16 };
struct p2p_gpu {
    struct dev dev;
    struct stream s, to[P2P_GPUS_MAX];     /* to: one stream per destination, for concurrent copies */
    struct event begin, end;
    struct arena memory;
    float *in, *out, *work;                 /* `bytes` each, work 2 * `bytes`; in: the REAL numbers of rank i */
    struct p2p_flags *flags;
    struct p2p_wrong *wrong;
    uint32_t *ping;
    unsigned long long *ns;
    void *pinned;                           /* `bytes` of pinned host memory */
};
struct p2p {
    const struct p2p_bench *b;
    int gpus;
    struct p2p_gpu gpu[P2P_GPUS_MAX];
    bool reach[P2P_GPUS_MAX][P2P_GPUS_MAX], atomics[P2P_GPUS_MAX][P2P_GPUS_MAX];
    bool all_reach;
    size_t bytes;
    int64_t count;                          /* floats in `bytes` */
    struct p2p_report report;
};

/* Makes GPU i the current one. */
status p2p_use(struct p2p *p, int i) WARN_UNUSED;
/* Waits for all streams of all GPUs. */
status p2p_wait(struct p2p *p) WARN_UNUSED;
/* Fills out of GPU i with 0xFF, a NaN. */
status p2p_poison(struct p2p *p, int i, size_t bytes) WARN_UNUSED;
/* Checks out of GPU i and waits; STATUS_DEVICE names `what`, GPU and element. `a`: every field except x and wrong. */
status p2p_verify(struct p2p *p, int i, const char *what, const struct p2p_check_args *a) WARN_UNUSED;
double p2p_median(double *x, int64_t count);

/* Queues the measured work once on GPU i (the current device); fails as an op does. */
struct p2p_task;
typedef status p2p_queue_fn(struct p2p *p, int i, const struct p2p_task *t);
struct p2p_task {
    const char *what;
    p2p_queue_fn *queue;
    int from, to;           /* GPUs of a pair */
    uint32_t gpus;         /* bit mask of the GPUs that take part concurrently */
    size_t bytes;
    int repeat;             /* number of repetitions timed together */
    const void *more;
};
/* *us: time of one repetition; the median over the runs, of the slowest GPU. */
status p2p_time(struct p2p *p, const struct p2p_task *t, double *us) WARN_UNUSED;
/* Prints a table line with its verdict, and a line of JSON. */
void p2p_line(struct p2p *p, const struct p2p_row *row);
/* Prints the numbers of all pairs as a matrix, GB/s or us, and one verdict. Pairs that were not measured are 0. */
void p2p_matrix(struct p2p *p, const char *what, size_t bytes, enum target_unit unit,
                double x[P2P_GPUS_MAX][P2P_GPUS_MAX]);

status cuda_p2p_host(struct p2p *p) WARN_UNUSED;        /* p2p_links.c */
status cuda_p2p_pairs(struct p2p *p) WARN_UNUSED;
status cuda_p2p_rings(struct p2p *p) WARN_UNUSED;
status cuda_p2p_collectives(struct p2p *p) WARN_UNUSED;    /* p2p_collectives.c */
#endif
