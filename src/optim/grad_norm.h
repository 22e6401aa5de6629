/* grad_norm: the global gradient norm of a model that is spread over ranks.
 *
 * Every chunk of the optimizer's table has an index in one array: [tensor-parallel slice][expert-parallel rank][chunks
 * of the whole model in order, then those of sparse gradients (parallel/sparse_grad.h)]. For expert-parallel ranks
 * above 0 only the chunks of experts are used. The rank that owns a chunk writes its sum of squares there, all others
 * write zero. The array is all-reduced over all ranks, which is exact, and added up from front to back. So every rank
 * gets the same norm, with the same bits for any number of data-parallel ranks, any ZeRO stage and any pipeline depth.
 * A single rank gets the same norm from UPDATE_FUSED. */
#ifndef INGOT_OPTIM_GRAD_NORM_H
#define INGOT_OPTIM_GRAD_NORM_H
#include "parallel/sparse_grad.h"
#include "tensor/params.h"

struct grad_norm {
    const struct mesh *mesh;    /* not owned, nor is sparse_grad; NULL: one rank */
    const struct sparse_grad *sparse_grad;
    int64_t count, slice;       /* number of entries of `all`, and of one expert-parallel rank of one slice in it */
    double *own;                /* [chunk_count, then sparse_grad->chunk_count] sums of squares of this rank's chunks;
                                   NULL: every rank has all chunks in one array, and no communication is needed */
    double *all;                /* [count] sums of squares of all chunks */
    void *scratch;
};
/* Allocates the buffers, from counting or real arenas, after optim_layout and sparse_grad_layout. */
struct grad_norm_layout {
    const struct params *params;
    const struct sparse_grad *sparse_grad;
    const struct mesh *mesh;
    struct arena *arena;
};
void grad_norm_layout(struct grad_norm *q, const struct grad_norm_layout *l);
/* Computes *sum on every rank, from `own` of all ranks; *sum is in the same memory as `own`. A GPU adds in an order of
 * its own, which does not depend on the mesh either. */
status grad_norm_sum(const struct grad_norm *q, const struct params *p, const struct ops *ops, double *sum,
                     dev_stream stream) WARN_UNUSED;
#endif
