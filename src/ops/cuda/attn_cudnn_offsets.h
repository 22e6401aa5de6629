/* Helper kernels for packed documents in cuDNN attention: document offsets for each operand, and a copy between
 * matrices of different row stride. */
#ifndef INGOT_OPS_CUDA_ATTN_CUDNN_OFFSETS_H
#define INGOT_OPS_CUDA_ATTN_CUDNN_OFFSETS_H
#include "ops/cuda/set.h"

/* offsets[i][d] = cu_seqlens[d] width[i] for d in [0, docs]; lengths[d] = cu_seqlens[d+1] - cu_seqlens[d]. One
 * launch. */
enum { ATTN_OFFSETS_MAX = 8 };
struct attn_offsets_args {
    const int32_t *cu_seqlens;              /* [docs+1] */
    int64_t *offsets[ATTN_OFFSETS_MAX];     /* [docs+1] each; NULL: not written */
    int64_t width[ATTN_OFFSETS_MAX];        /* elements per row */
    int32_t *lengths;                       /* [docs] */
    int64_t docs;
};
status cuda_attn_offsets(const struct attn_offsets_args *a, dev_stream s) WARN_UNUSED;

/* Copies two contiguous bf16 matrices of `rows` rows to matrices with other row strides. Widths, strides and pointers
 * are multiples of 16 bytes. */
struct attn_spread_args {
    const void *from[2];
    void *to[2];
    int64_t stride[2], width[2];
    int64_t rows;
};
status cuda_attn_spread(const struct attn_spread_args *a, dev_stream s) WARN_UNUSED;
#endif
