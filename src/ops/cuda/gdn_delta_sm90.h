/* The gated delta rule on Hopper's tensor cores: BF16 heads of 128 x 128, for the slots delta_fwd and delta_bwd.
 * gdn_delta_sm90.cuh describes the algorithm. */
#ifndef INGOT_OPS_CUDA_GDN_DELTA_SM90_H
#define INGOT_OPS_CUDA_GDN_DELTA_SM90_H
#include "ops/cuda/set.h"

/* Whether this backend supports a shape. The rows of q, k, v and their gradients must also be 16-byte aligned; _fwd
 * and _bwd check that. */
bool delta_hopper_serves(const struct cuda_set *set, const struct delta_shape *shape);
status delta_hopper_fwd(const struct delta_fwd_args *a, dev_stream s) WARN_UNUSED;
status delta_hopper_bwd(const struct delta_bwd_args *a, dev_stream s) WARN_UNUSED;
/* Pure; 0 for an unsupported shape. */
size_t delta_hopper_bytes(const struct delta_shape *shape, enum delta_memory what);
#endif
