/* tp_grad: all-reduces gradients over tensor-parallel ranks, for parameters that every rank holds in full but whose
 * gradient each rank computes only in part (norm weights under sequence parallelism, biases).
 *
 *   split (params.h)   weight on a rank   gradient on a rank                all-reduced here    counted in the norm
 *   NONE               replicated         full, from the same data          no                  on the first rank
 *   PARTIAL_GRAD       replicated         from its own tokens or heads      yes                 on the first rank
 *   *_PARALLEL         a slice            of the slice                      no                  on each rank, its slice
 *   FIRST              both               the first part as COLUMN_PARALLEL, the others as PARTIAL_GRAD
 *
 * It runs once per step, after the data-parallel reduction. So its input does not depend on the number of data-parallel
 * ranks, and under ZeRO each rank reduces only its shard. One call covers all rows. */
#ifndef INGOT_PARALLEL_TP_GRAD_H
#define INGOT_PARALLEL_TP_GRAD_H
#include "parallel/mesh.h"
#include "tensor/params.h"

struct tp_grad {
    struct comm *comm;  /* not owned */
    int64_t count;      /* number of elements to all-reduce, of the rows that this rank holds; 0: nothing to do */
    float *flat;        /* [count] these elements, contiguous */
    void *scratch;
};
/* Allocates the buffers, from counting or real arenas, after params_layout. mesh NULL: one rank. */
void tp_grad_layout(struct tp_grad *s, const struct params *p, const struct mesh *mesh, struct arena *a);
/* Bytes of the buffers for `count` elements. */
static inline size_t tp_grad_bytes(int ranks, int64_t count)
{
    return (size_t)count * sizeof(float) + comm_all_reduce_scratch(ranks, count, DTYPE_F32);
}
/* All-reduces the gradients: every rank gets the sums. */
status tp_grad_all_reduce(const struct tp_grad *s, const struct params *p, struct stream *stream) WARN_UNUSED;
#endif
