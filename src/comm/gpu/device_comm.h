/* device_comm: collectives and messages whose data are in GPU memory. They are queued on a CUDA stream, as ops are, and
 * captured into graphs. Data move by peer access (comm/gpu/cuda/p2p_comm.h: kernels or copy engines), else by NCCL
 * (comm/gpu/cuda/device_comm_cuda.c; messages: nccl_mail.h). All other calls go through the host's transport.
 *
 * Waiting: a queued call does not block the host. Each one sets a completion flag in host memory. While the host waits
 * for the stream (dev_sync), device_comm_poll_peers checks the peers; the first call whose flag is not set is the one
 * that the rank is in. After an abort the GPUs' kernels are stopped too.
 *
 * Sums: data are not added on the way; a kernel adds all terms in the tree order of comm_all_reduce. So the bits equal
 * those of every other transport. */
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
    /* Collective. Call `stop` after success and failure. */
    status (*start)(struct comm *world, struct stream *s, enum gpu_backend how);
    status (*time)(struct comm *world, struct stream *s);   /* collective: times the algorithms of calls (tuner.h) */
    void (*stop)(struct comm *world);
    /* Call it when a peer is lost: stops the kernels in flight. Nothing may be queued afterwards. */
    void (*abort)(struct comm *world);
    status (*share)(struct comm *c, void *base, size_t bytes);
    status (*unshare)(struct comm *c, void *base);
    status (*call)(struct comm *c, const struct comm_call *call);   /* sets its flag when done, like `message` */
    status (*sum)(const struct device_sum *sum, struct stream *s);
    double *(*scalars)(struct comm *c);     /* [ranks][COMM_SCALARS] on the GPU */
    bool (*mail_by_nccl)(const struct comm *c);     /* some neighbours do not reach each other: the same on all ranks of c */
    status (*mailbox_open)(struct comm *c);
    status (*message)(struct comm *c, const struct comm_call *call);
    status (*mailbox_settle)(struct comm *c, struct stream *s); /* NULL: the capture of the messages was discarded */
};
const struct device_comm_ops *cuda_device_comm_ops(void);   /* in builds with CUDA */

/* Queues one call. In the first step it is first compared with the other ranks' calls. Then it is listed, run by `by`,
 * and flagged when done. */
status device_comm_call(struct comm *c, const struct comm_call *call, status (*by)(struct comm *, const struct comm_call *)) WARN_UNUSED;
/* For struct stream (dev/dev.h): called while the host waits for the GPU; checks the peers. STATUS_COMM after an abort,
 * which also stops the GPUs' kernels. */
status device_comm_poll_peers(void *world) WARN_UNUSED;
/* Call it when the GPU is idle: begins a new list of calls. `replay`: keeps the list and clears the flags of its
 * calls. */
void device_calls_begin(struct comm *world, bool replay);
/* Ends the step: later calls belong to no step. */
void device_calls_end(struct comm *world);
void device_calls_free(struct device_calls *l);
#endif
