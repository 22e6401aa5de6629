/* The Gated DeltaNet and Mamba-2 kernels that run on every GPU; ops/cuda/gdn.c puts them into the slots. Arguments
 * are those of ops_gdn.h. */
#ifndef INGOT_OPS_CUDA_GDN_KERNELS_H
#define INGOT_OPS_CUDA_GDN_KERNELS_H
#include "ops/ops.h"

/* gdn_pointwise.cu */
status cuda_conv_fwd(const struct conv_fwd_args *a, dev_stream s) WARN_UNUSED;
status cuda_conv_bwd(const struct conv_bwd_args *a, dev_stream s) WARN_UNUSED;
status cuda_gates_fwd(const struct gates_fwd_args *a, dev_stream s) WARN_UNUSED;
status cuda_gates_bwd(const struct gates_bwd_args *a, dev_stream s) WARN_UNUSED;
status cuda_gated_norm_fwd(const struct gated_norm_fwd_args *a, dev_stream s) WARN_UNUSED;
status cuda_gated_norm_bwd(const struct gated_norm_bwd_args *a, dev_stream s) WARN_UNUSED;

/* ssm.cu */
status cuda_ssm_in_fwd(const struct ssm_in_fwd_args *a, dev_stream s) WARN_UNUSED;
status cuda_ssm_in_bwd(const struct ssm_in_bwd_args *a, dev_stream s) WARN_UNUSED;
status cuda_ssm_out_fwd(const struct ssm_out_fwd_args *a, dev_stream s) WARN_UNUSED;
status cuda_ssm_out_bwd(const struct ssm_out_bwd_args *a, dev_stream s) WARN_UNUSED;

/* The chunked delta rule: BF16 and F32, dk up to 256, any dv, any alignment (gdn_delta_fwd_sm80.cu,
 * gdn_delta_bwd_sm80.cu). */
status delta_mma_fwd(const struct delta_fwd_args *a, dev_stream s) WARN_UNUSED;
status delta_mma_bwd(const struct delta_bwd_args *a, dev_stream s) WARN_UNUSED;
size_t delta_mma_bytes(const struct delta_shape *shape, enum delta_memory what);
#endif
