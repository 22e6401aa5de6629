/* GPU: calls whose data lie in GPUs' memory. They are queued on a stream, as ops are, and travel between the GPUs: by own kernels
 * or copy engines where they reach each other's memory (comm/gpu/cuda/p2p.h), else by NCCL (device_comm_cuda.c). All other calls, these ranks' meeting among
 * them, go on through the host's memory.
 *
 * A queued call has no wait of its own. Who waits for a stream (dev_sync) looks around meanwhile: each call that is over leaves a mark in the
 * host's memory, so the first one without a mark is the one that the rank is in; when ranks are ended, the GPUs' kernels are, too.
 *
 * Sums are those of comm_sum: slices are not added up on the way, and a kernel adds them up in the tree's order. */
#ifndef INGOT_COMM_GPU_DEVICE_COMM_H
#define INGOT_COMM_GPU_DEVICE_COMM_H
#include "comm/comm_int.h"
#include "dev/dev.h"

/* What is added up: rank r's data at x + r count, but for `own`, this rank's, which lie elsewhere. */
struct card_sum {
    const void *x, *own;
    void *out;                  /* may be `own` or one of x */
    int64_t count;
    dtype dt;
    int ranks, rank;
};

/* What carries the calls: device_comm_cuda.c's table, since a build without CUDA has none. The current device is the rank's GPU. */
struct card_driver {
    status (*start)(struct comm *world, struct stream *s, enum comm_transport how); /* collective; stop after either end */
    status (*time)(struct comm *world, struct stream *s);   /* collective: paths of calls (tuner.h) are timed */
    void (*stop)(struct comm *world);
    /* Others may be gone: what is under way ends. Nothing is queued after it. */
    void (*give_up)(struct comm *world);
    status (*share)(struct comm *c, void *base, size_t bytes);
    status (*unshare)(struct comm *c, void *base);
    status (*call)(struct comm *c, const struct comm_call *call);   /* leaves its mark, as `message` does */
    status (*sum)(const struct card_sum *sum, struct stream *s);
    double *(*scalars)(struct comm *c);     /* [ranks][COMM_SCALARS] on the GPU */
    status (*mail_open)(struct comm *c);
    status (*message)(struct comm *c, const struct comm_call *call);
    void (*mail_settle)(struct comm *c);
};
const struct card_driver *cuda_card_driver(void);   /* in builds with CUDA */

/* One queued call: checked against the other ranks' in a first step, noted, carried out, marked. */
status card_call(struct comm *c, const struct comm_call *call, status (*by)(struct comm *, const struct comm_call *)) WARN_UNUSED;
/* For struct stream (dev/dev.h): called while the host waits for the GPU. STATUS_COMM, and the driver gives up, when waits are ended. */
status device_comm_look(void *world) WARN_UNUSED;
/* Nothing is under way: a list begins. `replay`: the list stays, none of it is done. */
void card_calls_begin(struct comm *world, bool replay);
/* What is queued from now on is no step's. */
void card_calls_end(struct comm *world);
void card_calls_free(struct card_calls *l);
#endif
