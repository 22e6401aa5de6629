/* squares: the sum of squares of all gradients of a model whose parts lie on several ranks.
 *
 * Every piece of the optimizer's table has a place in one array: [slice of tensor parallelism][pieces of the whole model, in their order].
 * The rank that answers for a piece puts its sum there, all others a zero; the array is summed over all ranks, which is exact, and added up
 * from front to back. So every rank has the same norm, and it is the same, bit for bit, for every number of data-parallel ranks, every
 * ZeRO stage and every depth of a pipeline; one rank alone gets it from UPDATE_WHOLE. */
#ifndef INGOT_OPTIM_SQUARES_H
#define INGOT_OPTIM_SQUARES_H
#include "ops/ops.h"
#include "parallel/mesh.h"
#include "tensor/params.h"

struct squares {
    const struct mesh *mesh;    /* not owned */
    int64_t count;              /* of `all` */
    double *own;                /* [chunk_count] of this rank's pieces; NULL: each rank has all of them, and nothing is to be exchanged */
    double *all;                /* [count] */
    void *scratch;
};
/* Takes the memory, counting or real, after optim_lay. mesh NULL: one rank. */
void squares_lay(struct squares *q, const struct params *p, const struct mesh *mesh, struct arena *a);
/* From `own` of this rank to *sum, which is where own is, of all, on every rank. A card adds up in an order of its own, which depends on
 * nothing else either. */
status squares_sum(const struct squares *q, const struct params *p, const struct ops *ops, double *sum, dev_stream stream) WARN_UNUSED;
#endif
