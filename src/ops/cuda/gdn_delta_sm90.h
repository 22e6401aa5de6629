/* The gated delta rule on Hopper's tensor cores: heads of 128 by 128 in BF16, behind the slots delta_fwd and delta_bwd. What it computes and
 * how: gdn_delta_sm90.cuh. */
#ifndef INGOT_OPS_CUDA_GDN_DELTA_SM90_H
#define INGOT_OPS_CUDA_GDN_DELTA_SM90_H
#include "ops/cuda/set.h"

/* Rows of q, k, v and their gradients must begin on 16-byte boundaries besides, which the shape does not say: _fwd and _bwd check it. */
bool delta_hopper_serves(const struct cuda_set *set, const struct delta_shape *shape);
status delta_hopper_fwd(const struct delta_fwd_args *a, dev_stream s) WARN_UNUSED;
status delta_hopper_bwd(const struct delta_bwd_args *a, dev_stream s) WARN_UNUSED;
/* Pure: 0 for a shape that is never served. */
size_t delta_hopper_bytes(const struct delta_shape *shape, enum delta_memory what);
#endif
