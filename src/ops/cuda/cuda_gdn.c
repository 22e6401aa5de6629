/* The slots of Gated DeltaNet and Mamba-2. */
#include "ops/cuda/cuda_set.h"
#include "ops/cuda/gdn_kernels.h"

void cuda_gdn_slots(struct ops *o)
{
    o->conv_fwd = cuda_conv_fwd;
    o->conv_bwd = cuda_conv_bwd;
    o->gates_fwd = cuda_gates_fwd;
    o->gates_bwd = cuda_gates_bwd;
    o->gated_norm_fwd = cuda_gated_norm_fwd;
    o->gated_norm_bwd = cuda_gated_norm_bwd;
    o->delta_fwd = delta_mma_fwd;
    o->delta_bwd = delta_mma_bwd;
    o->delta_bytes = delta_mma_bytes;
    o->ssm_in_fwd = cuda_ssm_in_fwd;
    o->ssm_in_bwd = cuda_ssm_in_bwd;
    o->ssm_out_fwd = cuda_ssm_out_fwd;
    o->ssm_out_bwd = cuda_ssm_out_bwd;
}
