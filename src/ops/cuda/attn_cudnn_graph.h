/* One attention pass as a cuDNN operation graph, and its execution plan. Knows nothing of ops.h's arguments: attn_cudnn.c turns those
 * into cases and pointers.
 *
 * A plan is built for a handle or, without a GPU, for the properties of one (sdpa_target): so a test on any machine proves that every
 * graph of ours has a plan on the GPUs it is meant for, and how much memory the plan takes. No cuDNN header is needed here. */
#ifndef INGOT_OPS_CUDA_ATTN_CUDNN_GRAPH_H
#define INGOT_OPS_CUDA_ATTN_CUDNN_GRAPH_H
#include "base/status.h"
#include "ops/ops.h"

/* 8-byte fields alone, so that cases compare as memory. Strides are in elements from row to row; a sequence follows the other
 * without a gap, heads lie side by side in a row. */
struct sdpa_case {
    int64_t pass;               /* enum attn_pass */
    int64_t atomic;             /* backward, dense: dQ through an f32 accumulator with atomic adds: faster, not reproducible */
    int64_t ragged;             /* 0: b sequences of sq rows; 1: b documents of up to sq rows, at offsets in device memory */
    int64_t b, h, hk;           /* sequences, query heads, kv heads */
    int64_t sq, skv, dqk, dv;
    int64_t window;             /* rows that a row sees, itself included; 0: all before it */
    int64_t q_stride, k_stride, v_stride, o_stride;   /* o's also is that of its gradient */
    int64_t dq_stride, dk_stride, dv_stride;          /* backward alone; 0 forward */
    double scale;
};

/* What a plan reads and writes. LSE: dense [b, h, sq], ragged [rows, h]; DELTA likewise: f32 memory that the backward pass fills.
 * D?_FULL: ragged backward with grouped heads, gradients of k and v per query head: rows x h x d, 4 bytes each.
 * LEN_*: b i32 lengths; AT_*: b+1 i64 offsets in elements from the tensor's pointer (ragged). */
#define SDPA_PORTS(X)                                                                                                  \
    X(Q) X(K) X(V) X(O) X(LSE) X(DO) X(DQ) X(DK) X(DV) X(DELTA) X(DQ_ACC) X(DK_FULL) X(DV_FULL) X(LEN_Q) X(LEN_KV)               \
    X(AT_Q) X(AT_K) X(AT_V) X(AT_O) X(AT_LSE) X(AT_DQ) X(AT_DK) X(AT_DV)
enum sdpa_port {
#define X(port) SDPA_##port,
    SDPA_PORTS(X)
#undef X
    SDPA_PORT_COUNT
};

/* Where a plan shall run: cuDNN's handle, or a finalized device-property descriptor (then no plan of it can run here). */
struct cudnnContext;
struct sdpa_target {
    struct cudnnContext *handle;
    void *properties;
    int sm;
};
/* A target without a GPU, from the JSON that cuDNN writes about a device. */
status sdpa_target_open(struct sdpa_target *t, int sm, const char *json) WARN_UNUSED;
void sdpa_target_close(struct sdpa_target *t);

struct sdpa_plan;
/* STATUS_DEVICE, in one line, when cuDNN has no plan. 35-75 ms on a host of 2024. */
status sdpa_plan_open(struct sdpa_plan **plan, const struct sdpa_case *c, const struct sdpa_target *t) WARN_UNUSED;
void sdpa_plan_close(struct sdpa_plan *plan);
const struct sdpa_case *sdpa_plan_case(const struct sdpa_plan *plan);
size_t sdpa_plan_workspace(const struct sdpa_plan *plan);
int sdpa_plan_engine(const struct sdpa_plan *plan);
/* Queues it on the handle's stream. `memory` holds a device pointer for each port that the pass has. */
status sdpa_plan_run(const struct sdpa_plan *plan, struct cudnnContext *handle, void *const memory[SDPA_PORT_COUNT],
                     void *workspace) WARN_UNUSED;

/* "cuDNN: NAME: reason", one line, as STATUS_DEVICE. */
status sdpa_error(int cudnn_status, const char *doing) WARN_UNUSED;
#endif
