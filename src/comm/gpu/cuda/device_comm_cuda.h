/* Shared by the CUDA files of comm/. */
#ifndef INGOT_COMM_GPU_CUDA_DEVICE_COMM_CUDA_H
#define INGOT_COMM_GPU_CUDA_DEVICE_COMM_CUDA_H
#include "comm/gpu/device_comm.h"

/* out [count] = the sum over ranks, in the order of comm_all_reduce. STATUS_DEVICE when it cannot be launched. */
status device_tree_sum(const struct device_sum *sum, struct stream *s) WARN_UNUSED;
/* Adds the terms in call->recv. Reduce-scatter: into call->out. All-reduce: into this rank's slice of call->out. */
status device_reduce(const struct comm *c, const struct comm_call *call) WARN_UNUSED;
/* Sets *mark = 1, in host memory, after the work queued before it. */
status device_set_flag(volatile unsigned char *mark, struct stream *s) WARN_UNUSED;
#endif
