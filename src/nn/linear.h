/* linear: y = x W^T + b
 *
 *   tensor  shape      dtype  lives            backward
 *   x       [N, in]    dt     act, by caller   dx =  (dgrad: dy W)
 *   W       [out, in]  dt     param            dW = or += dy^T x, A (run.accum)
 *   b       [out]      dt     param, optional  db += column sums of dy, A
 *   y       [N, out]   dt     act, by caller   dy read
 *
 * 2 N out in FLOPs forward, twice that backward. */
#ifndef INGOT_NN_LINEAR_H
#define INGOT_NN_LINEAR_H
#include "parallel/exec.h"

struct linear {
    int64_t out, in;    /* of this rank's slice */
    int w, b;           /* rows of the parameter table; b = -1: no bias */
    int adds;           /* the bias is added here: in a sum over ranks, on the first of them alone */
};

enum bias { BIAS_NONE, BIAS_ADD };
/* Declares NAME.weight and NAME.bias. */
void linear_init(struct linear *m, struct params *p, const char *name, enum role role, int64_t out, int64_t in, enum bias bias);
/* How tensor-parallel ranks share the weight (params.h), and the logical matrices that are stacked in it. The bias goes with its rows; of a
 * weight split by columns it is whole on every rank, and so is its gradient, of which all form the same from the whole dy. */
void linear_split(struct linear *m, struct params *p, enum split split, const int64_t *parts, int part_count);
status linear_fwd(const struct linear *m, struct tensor x, struct tensor y, const struct exec *r) WARN_UNUSED;
/* The last GEMM of a branch. A sum is added where linear_adds. */
status linear_last(const struct linear *m, struct tensor x, struct sink out, const struct exec *r) WARN_UNUSED;
bool linear_adds(const struct linear *m, const struct exec *r);
status linear_dgrad(const struct linear *m, struct tensor dy, struct tensor dx, const struct exec *r) WARN_UNUSED;
/* dx += dy W, dx in A. */
status linear_dgrad_add(const struct linear *m, struct tensor dy, struct tensor dx, const struct exec *r) WARN_UNUSED;
/* Now; or, with run.defer, x and dy are copied there. */
status linear_wgrad(const struct linear *m, struct tensor x, struct tensor dy, const struct exec *r) WARN_UNUSED;

/* The linear_wgrad of one micro-batch that are done later, in the order in which they came: half of its backward, which nobody waits for. */
struct deferred {
    struct arena copies;
    struct deferred_item { const struct linear *m; struct tensor x, dy; } *items;   /* [capacity], owned */
    int count, capacity;
};
/* For all linears of the rows [first, last) of the table, with `n` rows of x: memory from `a`, counting or real. deferred_fini frees. */
struct deferred_lay { const struct params *params; int first, last; int64_t n; dtype dt; struct arena *a; };
status deferred_lay(struct deferred *q, const struct deferred_lay *l) WARN_UNUSED;
void deferred_fini(struct deferred *q);
/* Does those whose weights are among the rows [first, last); and makes it empty. */
status deferred_flush(const struct deferred *q, int first, int last, const struct exec *r) WARN_UNUSED;
void deferred_empty(struct deferred *q);
#endif
