/* One attention pass as a cuDNN operation graph, and its execution plan. This file does not use the arguments of
 * ops.h; attn_cudnn.c converts them to cases and pointers.
 *
 * A plan is built for a cuDNN handle or, without a GPU, for a description of a device (sdpa_target). A test on any
 * machine can therefore prove that each graph has a plan on the target GPUs, and how much memory the plan needs. This
 * header needs no cuDNN header. */
#ifndef INGOT_OPS_CUDA_ATTN_CUDNN_GRAPH_H
#define INGOT_OPS_CUDA_ATTN_CUDNN_GRAPH_H
#include "base/status.h"
#include "ops/ops.h"

/* All fields have 8 bytes, so cases compare as memory. Strides are in elements from row to row. Sequences follow each
 * other without gaps; the heads of a row are contiguous. */
struct sdpa_case {
    int64_t pass;               /* enum attn_pass */
    int64_t atomic;             /* backward, equal lengths: dQ in an f32 accumulator with atomic adds: faster, not
                                   reproducible */
    int64_t ragged;             /* 0: b sequences of sq rows; 1: b documents of at most sq rows, at offsets stored in
                                   device memory */
    int64_t b, h, hk;           /* sequences, query heads, kv heads */
    int64_t sq, skv, dqk, dv;
    int64_t window;             /* rows that a row attends to, including itself; 0: all rows before it */
    int64_t q_stride, k_stride, v_stride, o_stride;   /* o_stride is also the row stride of dO */
    int64_t dq_stride, dk_stride, dv_stride;          /* backward only; 0 in forward */
    double scale;
};

/* Tensors that a plan reads and writes. LSE and DELTA: f32, dense [b, h, sq], ragged [rows, h]; the backward pass
 * fills DELTA. D?_FULL: ragged backward with grouped heads: gradients of k and v per query head, rows x h x d, 4
 * bytes each. LEN_*: b i32 lengths. AT_*: b+1 i64 offsets in elements from the tensor's pointer (ragged). */
#define SDPA_PORTS(X)                                                                                                  \
    X(Q) X(K) X(V) X(O) X(LSE) X(DO) X(DQ) X(DK) X(DV) X(DELTA) X(DQ_ACC) X(DK_FULL) X(DV_FULL) X(LEN_Q) X(LEN_KV) \
    X(AT_Q) X(AT_K) X(AT_V) X(AT_O) X(AT_LSE) X(AT_DQ) X(AT_DK) X(AT_DV)
enum sdpa_port {
#define X(port) SDPA_##port,
    SDPA_PORTS(X)
#undef X
    SDPA_PORT_COUNT
};

/* The target of a plan: a cuDNN handle, or a finalized device-property descriptor. A plan for the latter cannot run. */
struct cudnnContext;
struct sdpa_target {
    struct cudnnContext *handle;
    void *properties;
    int sm;
};
/* Opens a target without a GPU, from cuDNN's JSON description of a device. */
status sdpa_target_open(struct sdpa_target *t, int sm, const char *json) WARN_UNUSED;
void sdpa_target_close(struct sdpa_target *t);

struct sdpa_plan;
/* STATUS_DEVICE, in one line, if cuDNN has no plan. Takes 35-75 ms on a host of 2024. */
status sdpa_plan_open(struct sdpa_plan **plan, const struct sdpa_case *c, const struct sdpa_target *t) WARN_UNUSED;
void sdpa_plan_close(struct sdpa_plan *plan);
const struct sdpa_case *sdpa_plan_case(const struct sdpa_plan *plan);
size_t sdpa_plan_workspace(const struct sdpa_plan *plan);
int sdpa_plan_engine(const struct sdpa_plan *plan);
/* Queues the plan on the handle's stream. `memory` holds a device pointer for each port of the pass. */
status sdpa_plan_run(const struct sdpa_plan *plan, struct cudnnContext *handle, void *const memory[SDPA_PORT_COUNT],
                     void *workspace) WARN_UNUSED;

/* Returns STATUS_DEVICE with "cuDNN: NAME: reason" in one line. */
status sdpa_error(int cudnn_status, const char *doing) WARN_UNUSED;
#endif
