/* What the files of ops/cuda share. C and C++: the .cu files include it through device.cuh. */
#ifndef INGOT_OPS_CUDA_CUDA_INT_H
#define INGOT_OPS_CUDA_CUDA_INT_H
#include "ops/cuda/cuda.h"

struct gemm_choices;    /* gemm.c */
struct sdpa;            /* attn_cudnn.c: cuDNN's handle and plans */

/* stream.ops: the set's state on one stream. */
struct cuda_set {
    struct cuda_options options;
    int sm, multiprocessors;
    void *workspace;            /* shared by all ops of the stream, one after the other; 256-byte aligned */
    size_t workspace_bytes;
    struct gemm_choices *gemm;
    struct sdpa *sdpa;
};
static inline struct cuda_set *cuda_set(dev_stream s) { return (struct cuda_set *)s->ops; }

/* After a launch: its error, or with stream.sync that of its execution. `op` is a literal. */
status cuda_launched(dev_stream s, const char *op) WARN_UNUSED;
/* `bytes` of the workspace for one op, from its beginning. CHECK when it is too small: the planner's fault. */
void *cuda_workspace(dev_stream s, size_t bytes, const char *op);
/* What one file asks of the workspace, for micro-batches of `tokens`; the set's is the largest. */
#define CUDA_WORKSPACES(X) X(gemm) X(norm) X(loss) X(embed) X(update)

/* Each file fills its slots. */
#define CUDA_FILES(X) X(gemm) X(norm) X(rope) X(act) X(embed) X(loss) X(update) X(cast) X(attn)
#define X(file) void cuda_##file##_slots(struct ops *o);
CUDA_FILES(X)
#undef X
#endif
