/* The backends of attention on a GPU, one call each; ops/cuda/attn.c chooses among them (attention.backend: auto|cudnn|own|reference).
 *
 * Arguments, results and aliasing are those of ops.h. Each is deterministic, allocates nothing, waits for nothing on the host, and
 * reads cu_seqlens and lengths on the device alone: a captured graph serves every cut into documents. `docs` may be a static maximum,
 * unused documents having zero length.
 *
 * own and reference keep lse as [heads, rows] F32, natural logarithm, and each reads what the other wrote. */
#ifndef INGOT_OPS_CUDA_ATTN_BACKENDS_H
#define INGOT_OPS_CUDA_ATTN_BACKENDS_H
#include "ops/ops.h"

/* Tiles in shared memory (attn_sm80.cu). Operands off 16-byte boundaries (pointers or strides) go through the reference's kernels,
 * so `own` serves every alignment of a shape that it does not refuse. */
status cuda_own_attn_fwd(const struct attn_fwd_args *a, dev_stream s) WARN_UNUSED;
status cuda_own_attn_bwd(const struct attn_bwd_args *a, dev_stream s) WARN_UNUSED;
size_t cuda_own_attn_scratch(const struct attn_shape *shape, enum attn_pass pass);
const char *cuda_own_attn_refuses(const struct attn_shape *shape);  /* NULL: serves it; else the reason */

/* The same on Hopper (sm_90), for BF16 heads of 64 and 128, and keys of 192 with values of 128, whose operands lie on 16-byte boundaries
 * (pointers and strides) and a positive scale (attn_fwd_sm90.cu): `own` there. lse is own's. */
bool cuda_hopper_attn_widths(int64_t hd, int64_t hd_v);
status cuda_hopper_attn_fwd(const struct attn_fwd_args *a, dev_stream s) WARN_UNUSED;
status cuda_hopper_attn_bwd(const struct attn_bwd_args *a, dev_stream s) WARN_UNUSED; /* attn_bwd_sm90.cu; dq, dk, dv likewise */
size_t cuda_hopper_attn_scratch(const struct attn_shape *shape, enum attn_pass pass);
/* What the two above do where keys are wider than values (attn_bwd_wide_sm90.cu). */
status cuda_hopper_wide_bwd(const struct attn_bwd_args *a, dev_stream s) WARN_UNUSED;
size_t cuda_hopper_wide_scratch(const struct attn_shape *shape);

/* One warp per row and head, any widths of heads up to 576, any alignment (attn_reference.cu). */
status cuda_reference_attn_fwd(const struct attn_fwd_args *a, dev_stream s) WARN_UNUSED;
status cuda_reference_attn_bwd(const struct attn_bwd_args *a, dev_stream s) WARN_UNUSED;
size_t cuda_reference_attn_scratch(const struct attn_shape *shape, enum attn_pass pass);
status cuda_attn_decode(const struct attn_decode_args *a, dev_stream s) WARN_UNUSED;

/* cuDNN (attn_cudnn.c). `sm`: compute capability, 90. Operands lie at 16-byte boundaries: ops/cuda/attn.c sends no others. lse: dense
 * [docs, heads, len], packed documents [rows, heads]. */
status cuda_sdpa_fwd(const struct attn_fwd_args *a, dev_stream s) WARN_UNUSED;
status cuda_sdpa_bwd(const struct attn_bwd_args *a, dev_stream s) WARN_UNUSED;
size_t cuda_sdpa_scratch(const struct attn_shape *shape, enum attn_pass pass);
const char *cuda_sdpa_refuses(const struct attn_shape *shape, int sm);
/* Builds the plans of both passes (with lse) or of the forward alone, for gradients packed in one row as nn/attn.c has them: says before
 * the first forward that cuDNN has no plan (STATUS_CONFIG). */
status cuda_sdpa_prepare(const struct attn_fwd_args *a, dev_stream s) WARN_UNUSED;
#endif
