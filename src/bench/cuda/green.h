/* Green contexts: the multiprocessors of a GPU divided between two streams, so that kernels of one never wait for
 * those of the other. Streams, events and memory are shared with the GPU's primary context. */
#ifndef INGOT_BENCH_CUDA_GREEN_H
#define INGOT_BENCH_CUDA_GREEN_H
#include "dev/dev.h"

struct green_part {
    void *context;        /* CUgreenCtx */
    struct stream stream; /* of this part */
    int sms;
};
struct green {
    struct green_part few, rest;
};
/* `few` gets at least sms multiprocessors, as many as the GPU can part with at once (Hopper: a multiple of 8); its stream
 * has the priority of side streams. STATUS_DEVICE: the driver or the GPU cannot. */
status green_open(const struct dev *d, int sms, struct green *g) WARN_UNUSED;
void green_close(struct green *g);
#endif
