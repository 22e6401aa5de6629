/* whole: the rows of a micro-batch that the other ranks of a tensor-parallel group hold (sequence parallelism, arXiv:2205.05198).
 *
 * Of t ranks, rank r holds rows [r n/t, (r + 1) n/t) of the residual stream: norms, residual adds and what backward keeps of them are of
 * these alone. Between the stream and the products of a branch lie two exchanges, the same forward and backward:
 *
 *     y [n/t, D] -- whole_gather --> in [n, D] -- the branch, with this rank's heads or columns --> out [n, D] -- whole_sum --> [n/t, D]
 *
 * out is a part of a sum: the ranks' parts are added up in F32, in an order that depends on t alone, rounded once, and each rank gets its
 * rows. What backward reads is the stream's part, which is gathered again. These two functions are where exchanges and products will
 * overlap on devices that can do both at once.
 *
 * One rank: there is nothing to exchange, and `in` and `out` are the stream's own tensors. */
#ifndef INGOT_NN_WHOLE_H
#define INGOT_NN_WHOLE_H
#include "nn/run.h"

struct whole { int shares; struct tensor in, out; };    /* ranks; [N, D] dt, scratch: not there with one rank */

/* Rows of the stream: `l` is of a micro-batch. */
struct lay whole_part(const struct lay *l);
void whole_lay(struct whole *w, int64_t d, const struct lay *l);
void whole_rows(struct whole *w, int64_t rows);

/* *all: the rows of all ranks, in `to` (w's in or out); `part` itself with one rank. */
status whole_gather(struct tensor to, struct tensor part, struct tensor *all, const struct run *r) WARN_UNUSED;
/* Where a branch stores what is summed into `part`. */
static inline struct tensor whole_out(const struct whole *w, struct tensor part) { return w->out.rank ? w->out : part; }
/* part = this rank's rows of the sum of the ranks' w->out. Overwrites w->in. */
status whole_sum(const struct whole *w, struct tensor part, const struct run *r) WARN_UNUSED;
/* The same where all ranks have formed all of w->out. */
status whole_keep(const struct whole *w, struct tensor part, const struct run *r) WARN_UNUSED;

/* What all must have the same bits of: each rank forms its rows, whole_own, of what is gathered in its place. */
struct tensor whole_own(struct tensor all, const struct run *r);
status whole_fill(struct tensor all, const char *name, const struct run *r) WARN_UNUSED;
#endif
