/* share: the gradients of what every rank of a tensor-parallel group holds whole and forms in part.
 *
 *   split (params.h)   held by a rank   its gradient there               here               counted in the norm
 *   NONE               whole            whole, of the same data          nothing            on the first rank
 *   SUM                whole            of its own tokens or heads       summed over ranks  on the first rank
 *   OUT, IN            a slice          of the slice                     nothing            on each rank, its slice
 *   FIRST              both             its first part as OUT, the others as SUM
 *
 * The sums come last, once per step, after those over data-parallel ranks: so each rank adds up what does not depend on how many of
 * those there are, and, where those share out the state, its own part alone. All rows go in one call. */
#ifndef INGOT_PARALLEL_TP_GRAD_H
#define INGOT_PARALLEL_TP_GRAD_H
#include "parallel/mesh.h"
#include "tensor/params.h"

struct tp_grad {
    struct comm *comm;  /* not owned */
    int64_t count;      /* elements of all such rows that the rank answers for; 0: nothing to do */
    float *flat;        /* [count] one behind the other */
    void *scratch;
};
/* Takes the memory, counting or real, after params_lay. mesh NULL: one rank. */
void tp_grad_lay(struct tp_grad *s, const struct params *p, const struct mesh *mesh, struct arena *a);
/* What it takes for `count` elements. */
static inline size_t tp_grad_bytes(int ranks, int64_t count)
{
    return (size_t)count * sizeof(float) + comm_sum_scratch(ranks, count, DTYPE_F32);
}
/* The sums of these rows' gradients, on every rank. */
status tp_grad_all_reduce(const struct tp_grad *s, const struct params *p, struct stream *stream) WARN_UNUSED;
#endif
