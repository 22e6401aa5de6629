/* squares: the sum of squares of all gradients of a model whose parts lie on several ranks.
 *
 * Every piece of the optimizer's table has a place in one array: [slice of tensor parallelism][pieces of the whole model, in their order;
 * then those of gradients of rows (parallel/sparse_grad.h)].
 * The rank that answers for a piece puts its sum there, all others a zero; the array is summed over all ranks, which is exact, and added up
 * from front to back. So every rank has the same norm, and it is the same, bit for bit, for every number of data-parallel ranks, every
 * ZeRO stage and every depth of a pipeline; one rank alone gets it from UPDATE_WHOLE. */
#ifndef INGOT_OPTIM_GRAD_NORM_H
#define INGOT_OPTIM_GRAD_NORM_H
#include "parallel/sparse_grad.h"
#include "tensor/params.h"

struct grad_norm {
    const struct mesh *mesh;    /* not owned, as the tables; NULL: one rank */
    const struct sparse_grad *tables;
    int64_t count, slice;       /* of `all`, and of it for each slice */
    double *own;                /* [chunk_count, then tables->chunk_count] of this rank's pieces; NULL: each rank has all of them in one
                                   array, and nothing is to be exchanged */
    double *all;                /* [count] */
    void *scratch;
};
/* Takes the memory, counting or real, after optim_lay and sparse_grad_lay. */
struct grad_norm_lay { const struct params *params; const struct sparse_grad *tables; const struct mesh *mesh; struct arena *arena; };
void grad_norm_lay(struct grad_norm *q, const struct grad_norm_lay *l);
/* From `own` of this rank to *sum, which is where own is, of all, on every rank. A GPU adds up in an order of its own, which depends on
 * nothing else either. */
status grad_norm_sum(const struct grad_norm *q, const struct params *p, const struct ops *ops, double *sum, dev_stream stream) WARN_UNUSED;
#endif
