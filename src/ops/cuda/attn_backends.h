/* The attention backends on a GPU. ops/cuda/attn.c chooses among them (attention.backend: auto|cudnn|own|reference).
 *
 * Arguments, results and aliasing are those of ops.h. Each backend is deterministic, allocates nothing, never blocks
 * the host, and reads cu_seqlens and lengths only on the device: a captured graph supports every division into
 * documents. `docs` may be a static maximum, with unused documents of length zero.
 *
 * `own` and `reference` store lse as [heads, rows] F32, natural logarithm, and each can read the lse of the other. */
#ifndef INGOT_OPS_CUDA_ATTN_BACKENDS_H
#define INGOT_OPS_CUDA_ATTN_BACKENDS_H
#include "ops/ops.h"

/* Custom kernels with tiles in shared memory (attn_sm80.cu). Operands that are not 16-byte aligned (pointers or
 * strides) use the reference kernels, so `own` supports every alignment of a supported shape. */
status cuda_own_attn_fwd(const struct attn_fwd_args *a, dev_stream s) WARN_UNUSED;
status cuda_own_attn_bwd(const struct attn_bwd_args *a, dev_stream s) WARN_UNUSED;
size_t cuda_own_attn_scratch(const struct attn_shape *shape, enum attn_pass pass);
const char *cuda_own_attn_refuses(const struct attn_shape *shape);  /* NULL: supported; else the reason */

/* Custom kernels for Hopper (sm_90), used by `own` there (attn_fwd_sm90.cu). They support BF16 heads of 64 and 128,
 * and keys of 192 with values of 128. Operands (pointers and strides) must be 16-byte aligned, and the scale
 * positive. The layout of lse is that of `own`. */
bool cuda_hopper_attn_widths(int64_t head_dim, int64_t head_dim_v);
status cuda_hopper_attn_fwd(const struct attn_fwd_args *a, dev_stream s) WARN_UNUSED;
status cuda_hopper_attn_bwd(const struct attn_bwd_args *a, dev_stream s) WARN_UNUSED; /* attn_bwd_sm90.cu; also
                                                                                         writes dq, dk and dv with
                                                                                         16-byte alignment */
size_t cuda_hopper_attn_scratch(const struct attn_shape *shape, enum attn_pass pass);
/* The backward of cuda_hopper_attn_bwd for keys that are wider than values (attn_bwd_wide_sm90.cu). */
status cuda_hopper_wide_bwd(const struct attn_bwd_args *a, dev_stream s) WARN_UNUSED;
size_t cuda_hopper_wide_scratch(const struct attn_shape *shape);

/* One warp per row and head; head widths up to 576, any alignment (attn_reference.cu). */
status cuda_reference_attn_fwd(const struct attn_fwd_args *a, dev_stream s) WARN_UNUSED;
status cuda_reference_attn_bwd(const struct attn_bwd_args *a, dev_stream s) WARN_UNUSED;
size_t cuda_reference_attn_scratch(const struct attn_shape *shape, enum attn_pass pass);
status cuda_attn_decode(const struct attn_decode_args *a, dev_stream s) WARN_UNUSED; /* attn_decode.cu */

/* cuDNN (attn_cudnn.c). `sm`: compute capability, 90. Operands must be 16-byte aligned; ops/cuda/attn.c checks this.
 * lse is [docs, heads, len] for documents of equal length, [rows, heads] for packed documents. */
status cuda_sdpa_fwd(const struct attn_fwd_args *a, dev_stream s) WARN_UNUSED;
status cuda_sdpa_bwd(const struct attn_bwd_args *a, dev_stream s) WARN_UNUSED;
size_t cuda_sdpa_scratch(const struct attn_shape *shape, enum attn_pass pass);
const char *cuda_sdpa_refuses(const struct attn_shape *shape, int sm);
/* Builds the plans of both passes (with lse) or of the forward pass alone, for gradients packed in one row as in
 * nn/attn.c. Returns STATUS_CONFIG before the first forward if cuDNN has no plan. */
status cuda_sdpa_prepare(const struct attn_fwd_args *a, dev_stream s) WARN_UNUSED;
#endif
