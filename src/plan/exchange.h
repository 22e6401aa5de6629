/* exchange: what context- and expert-parallel ranks send each other in a layer (nn/attn_context.h, context_rows.h,
 * context_heads.h, moe_dispatch.h), in bytes that a rank sends and seconds of its transfers.
 *
 *   context      forward                                backward
 *   all_gather   keys and values of all ranks           the same again, and their gradients scattered
 *   ring         cp - 1 steps, less those out of reach  the same again, and as many with gradients
 *   ulysses      q, k, v to heads; output to rows       q, k, v, output and its gradient to heads; gradients to rows
 *   mla          latent vectors of all ranks            the same again, and their gradients scattered
 *   gdn, mamba2  projections to heads; values to rows   gradients of values to heads; of projections to rows
 *
 *   experts      rows to experts, outputs back          gradients to experts, and back
 *
 * They overlap with nothing, unless overlap_cp or overlap_ep is assumed. Full recompute repeats forward's transfers;
 * for experts only the rows to the experts. */
#ifndef INGOT_PLAN_EXCHANGE_H
#define INGOT_PLAN_EXCHANGE_H
#include "parallel/mesh.h"
#include "plan/machine.h"

struct exchange {
    double forward_bytes, backward_bytes;   /* bytes that a rank sends; backward includes recompute */
    double forward, backward;               /* seconds */
    double exposed;                         /* fraction of these seconds that does not overlap with compute */
};
struct exchange_args {
    const struct cluster *cluster;
    const struct model_spec *model; /* of a tensor-parallel rank: its own heads, but all experts */
    const struct mesh_shape *mesh;
    enum recompute recompute;
    double tokens, element;         /* of a rank's micro-batch; bytes of an activation */
    int64_t sequence;               /* train.sequence_length */
};
/* All zero if the axis has one rank, or the layer sends nothing. */
struct exchange exchange_context(const struct exchange_args *a, int64_t layer);
struct exchange exchange_experts(const struct exchange_args *a, int64_t layer);
#endif
