/* device_comm: collectives and messages whose data are in GPU memory. They are queued on a CUDA stream, as ops are,
 * and captured into graphs.
 * Data move by peer access (comm/gpu/cuda/p2p_comm.h: kernels or copy engines), else by NCCL
 * (comm/gpu/cuda/device_comm_cuda.c). All other
 * calls go through the host's transport.
 *
 * Waiting: a queued call does not wait on the host. Each one sets a completion flag in host memory. While the host
 * waits for the stream
 * (dev_sync), device_comm_look checks the peers; the first call without a flag is the one the rank is in. After an
 * abort the GPUs' kernels
 * are stopped too.
 *
 * Sums: data are not added on the way; a kernel adds all terms in the tree's order of comm_sum. So the bits are those of every transport. */
#ifndef INGOT_COMM_GPU_DEVICE_COMM_H
#define INGOT_COMM_GPU_DEVICE_COMM_H
#include "comm/comm_int.h"
#include "dev/dev.h"

/* A sum over ranks: rank r's term is at x + r count; this rank's own term is at `own`. */
struct device_sum {
    const void *x, *own;
    void *out;                  /* may be `own` or one of x */
    int64_t count;
    dtype dt;
    int ranks, rank;
};

/* The table of device_comm_cuda.c; NULL in a build without CUDA. The current device is the rank's GPU. */
struct device_comm_ops {
    status (*start)(struct comm *world, struct stream *s, enum comm_transport how); /* collective; stop after either end */
    status (*time)(struct comm *world, struct stream *s);   /* collective: times the algorithms of calls (tuner.h) */
    void (*stop)(struct comm *world);
    /* After a peer is lost: stops the kernels in flight. Nothing is queued afterwards. */
    void (*abort)(struct comm *world);
    status (*share)(struct comm *c, void *base, size_t bytes);
    status (*unshare)(struct comm *c, void *base);
    status (*call)(struct comm *c, const struct comm_call *call);   /* sets its flag when done, like `message` */
    status (*sum)(const struct device_sum *sum, struct stream *s);
    double *(*scalars)(struct comm *c);     /* [ranks][COMM_SCALARS] on the GPU */
    status (*mail_open)(struct comm *c);
    status (*message)(struct comm *c, const struct comm_call *call);
    void (*mail_settle)(struct comm *c);
};
const struct device_comm_ops *cuda_device_comm_ops(void);   /* in builds with CUDA */

/* One queued call. In the first step it is compared with the other ranks' before it is queued. Then it is listed, run, and flagged when done. */
status device_comm_call(struct comm *c, const struct comm_call *call, status (*by)(struct comm *, const struct comm_call *)) WARN_UNUSED;
/* For struct stream (dev/dev.h): called while the host waits for the GPU. STATUS_COMM after an abort, which
 * also aborts the driver. */
status device_comm_look(void *world) WARN_UNUSED;
/* The GPU is idle: a new list begins. `replay`: keeps the list, with no call done. */
void device_calls_begin(struct comm *world, bool replay);
/* Calls from now on belong to no step. */
void device_calls_end(struct comm *world);
void device_calls_free(struct device_calls *l);
#endif
