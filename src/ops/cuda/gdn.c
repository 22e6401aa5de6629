/* The slots of Gated DeltaNet and Mamba-2. The delta rule has two backends: Hopper kernels, and portable kernels for
 * everything that they do not support. Both passes of a call must use the same backend, because each saves other data
 * in forward. The choice depends on the shape and on the alignment of q, k and v, which both passes have. */
#include "ops/cuda/set.h"
#include "ops/cuda/gdn_delta_sm90.h"
#include "ops/cuda/gdn_kernels.h"

static bool aligned_rows(const void *p, int64_t stride)
{
    return ((uintptr_t)p & 15) == 0 && stride % 8 == 0; /* BF16 */
}

static bool hopper_takes(const struct delta_shape *n, dev_stream s, bool aligned)
{
    const struct cuda_set *set = cuda_set(s);
    return aligned && !set->options.delta_portable && delta_hopper_serves(set, n);
}

static status delta_fwd(const struct delta_fwd_args *a, dev_stream s)
{
    const bool aligned =
        aligned_rows(a->q, a->q_stride) && aligned_rows(a->k, a->k_stride) && aligned_rows(a->v, a->v_stride);
    return hopper_takes(&a->shape, s, aligned) ? delta_hopper_fwd(a, s) : delta_mma_fwd(a, s);
}

static status delta_bwd(const struct delta_bwd_args *a, dev_stream s)
{
    const bool aligned =
        aligned_rows(a->q, a->q_stride) && aligned_rows(a->k, a->k_stride) && aligned_rows(a->v, a->v_stride);
    return hopper_takes(&a->shape, s, aligned) ? delta_hopper_bwd(a, s) : delta_mma_bwd(a, s);
}

static size_t delta_bytes(const struct delta_shape *shape, enum delta_memory what)
{
    const size_t hopper = delta_hopper_bytes(shape, what), any = delta_mma_bytes(shape, what);
    return hopper > any ? hopper : any;
}

void cuda_gdn_slots(struct ops *o)
{
    o->conv_fwd = cuda_conv_fwd;
    o->conv_bwd = cuda_conv_bwd;
    o->gates_fwd = cuda_gates_fwd;
    o->gates_bwd = cuda_gates_bwd;
    o->gated_norm_fwd = cuda_gated_norm_fwd;
    o->gated_norm_bwd = cuda_gated_norm_bwd;
    o->delta_fwd = delta_fwd;
    o->delta_bwd = delta_bwd;
    o->delta_bytes = delta_bytes;
    o->ssm_in_fwd = cuda_ssm_in_fwd;
    o->ssm_in_bwd = cuda_ssm_in_bwd;
    o->ssm_out_fwd = cuda_ssm_out_fwd;
    o->ssm_out_bwd = cuda_ssm_out_bwd;
}
