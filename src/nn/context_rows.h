/* context_rows: context-parallel ranks (parallel/context.h) exchange rows: a layer's keys and values, and their
 * gradients.
 *
 *     own [n, W] --- context_rows_gather ---> all [N, W]     rows of the whole micro-batch, in the order of sequences
 *     dall [N, W] -- context_rows_reduce ---> own [n, W]     this rank's rows of the sum over ranks: F32, a fixed tree,
 *                                                            rounded once
 *
 * N = n cp. All memory is scratch: backward gathers again. */
#ifndef INGOT_NN_CONTEXT_ROWS_H
#define INGOT_NN_CONTEXT_ROWS_H
#include "parallel/context.h"
#include "parallel/exec.h"

struct context_rows {
    const char *name;           /* name of the collective, as in comm.h */
    struct tensor own;          /* [n, W]; not allocated with one rank */
    struct tensor all, dall;    /* [N, W] */
    struct tensor sum;          /* scratch of the reduction, in bytes */
};
void context_rows_layout(struct context_rows *w, int64_t width, const struct layout *l);
/* Fills `all` from `own`. Overwrites dall. */
status context_rows_gather(struct context_rows *w, const struct context_batch *b, const struct exec *r) WARN_UNUSED;
/* Fills `own` from every rank's dall. Overwrites all. */
status context_rows_reduce(struct context_rows *w, const struct context_batch *b, const struct exec *r) WARN_UNUSED;
/* Copies `width` columns of a projection to their place in rows that ranks exchange, or back, for all rows of `to`. */
status context_columns_copy(struct tensor to, int64_t to_at, struct tensor from, int64_t from_at, int64_t width,
                            const struct exec *r) WARN_UNUSED;
/* own [n, W] = this rank's rows of all [N, W], which every rank has; without W: W = 1. */
status context_rows_take(struct tensor own, struct tensor all, const struct context_batch *b,
                         const struct exec *r) WARN_UNUSED;
#endif
