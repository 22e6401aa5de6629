/* The sum that follows an all-to-all, for both paths between GPUs: NCCL and P2P. */
#include "comm/call.h"
#include "comm/transport.h"
#include "comm/gpu/cuda/device_comm_cuda.h"

status device_reduce(const struct comm *c, const struct comm_call *call)
{
    const char *own = (const char *)call->send + (size_t)c->rank * call->bytes;
    return device_tree_sum(&(struct device_sum){.x = call->recv,
                                                .own = own,
                                                .out = call->op == COMM_ALL_REDUCE ? (void *)own : call->out,
                                                .count = (int64_t)(call->bytes / dtype_bytes(call->dt)),
                                                .dt = call->dt,
                                                .ranks = c->ranks,
                                                .rank = c->rank},
                           call->stream);
}
