/* What the CUDA files of comm/ share. */
#ifndef INGOT_COMM_GPU_CUDA_DEVICE_COMM_CUDA_H
#define INGOT_COMM_GPU_CUDA_DEVICE_COMM_CUDA_H
#include "comm/gpu/device_comm.h"

/* out [count] = the sum over ranks, in the order of comm_sum. STATUS_DEVICE when it cannot be launched. */
status device_tree_sum(const struct device_sum *sum, struct stream *s) WARN_UNUSED;
/* What a call has brought to call->recv is added up: a reduce-scatter's into call->out, an all-reduce's into the own slice there. */
status device_reduce(const struct comm *c, const struct comm_call *call) WARN_UNUSED;
/* *mark = 1 when what is queued before has run; memory of the host that the GPU writes. */
status device_set_flag(volatile unsigned char *mark, struct stream *s) WARN_UNUSED;
#endif
