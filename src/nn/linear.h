/* linear: y = x W^T + b
 *
 *   tensor  shape      dtype  memory           backward
 *   x       [N, in]    dt     act, by caller   dx =  (dgrad: dy W)
 *   W       [out, in]  dt     param            dW = or += dy^T x, A (exec.accum)
 *   b       [out]      dt     param, optional  db += column sums of dy, A
 *   y       [N, out]   dt     act, by caller   dy read
 *
 * 2 N out in FLOPs forward, twice that backward. A GEMM reads x, W and dy as struct operand (tensor/operand.h); only
 * this file makes operands from tensors. With RECIPE_PLAIN an operand is the tensor itself, and a linear allocates
 * nothing. */
#ifndef INGOT_NN_LINEAR_H
#define INGOT_NN_LINEAR_H
#include "parallel/exec.h"

struct linear {
    int64_t out, in;    /* of this rank's shard */
    int w, b;           /* parameter rows; b = -1: no bias */
    int adds;           /* this rank adds the bias: true for the first rank of a sum over ranks */
};
/* Memory of one linear from forward to backward: operands in another form than the tensors. Plain: none. */
struct linear_saved {
    enum recipe recipe;         /* of the x and dy that it holds; the weight's: params.recipe */
};

enum bias { BIAS_NONE, BIAS_ADD };
/* Declares NAME.weight and NAME.bias. */
void linear_init(struct linear *m, struct params *p, const char *name, enum role role, int64_t out, int64_t in,
                 enum bias bias);
/* Sets how tensor-parallel ranks shard the weight (params.h), and the logical matrices stacked in it. A bias is
 * sharded with the weight's rows. If the weight is sharded by columns, every rank holds the full bias and computes
 * the same gradient from the full dy. */
void linear_split(struct linear *m, struct params *p, enum split split, const int64_t *parts, int part_count);
/* Allocates what the recipe keeps of this linear; the planner counts it like every X_lay. */
void linear_lay(const struct linear *m, struct linear_saved *s, const struct lay *l);

status linear_fwd(const struct linear *m, const struct linear_saved *s, struct tensor x, struct tensor y,
                  const struct exec *r) WARN_UNUSED;
/* The last GEMM of a branch. With out.sum it also computes the residual add (EPILOGUE_ADD) if linear_adds. */
status linear_last(const struct linear *m, const struct linear_saved *s, struct tensor x, struct sink out,
                   const struct exec *r) WARN_UNUSED;
bool linear_adds(const struct linear *m, const struct exec *r);
status linear_dgrad(const struct linear *m, const struct linear_saved *s, struct tensor dy, struct tensor dx,
                    const struct exec *r) WARN_UNUSED;
/* dx += dy W, dx in A. */
status linear_dgrad_add(const struct linear *m, const struct linear_saved *s, struct tensor dy, struct tensor dx,
                        const struct exec *r) WARN_UNUSED;
/* Computes the weight gradient now or, with exec.defer, copies the operands of x and dy there (ZB-H1). */
status linear_wgrad(const struct linear *m, const struct linear_saved *s, struct tensor x, struct tensor dy,
                    const struct exec *r) WARN_UNUSED;

/* The GEMM of forward or dgrad (pass), with bias, not launched: for a caller that adds an epilogue after asking
 * ops.gemm_supports. in and out are x and y, or dy and dx. Not for sequence-parallel ranks: their rows arrive in
 * blocks. */
struct gemm_args linear_gemm(const struct linear *m, const struct linear_saved *s, enum gemm_pass pass,
                             struct tensor in, struct tensor out, const struct exec *r);

/* Deferred weight gradients of one micro-batch, computed later in the order of the calls. In ZB-H1 no other rank
 * waits for this half of backward. */
struct deferred {
    struct arena copies;
    struct deferred_item { const struct linear *m; struct operand x, dy; int64_t rows; } *items; /* [capacity], owned */
    int count, capacity;
};
/* Allocates from `a` (counting or real) for all linears of the parameter rows [first, last) with `n` rows of x.
 * deferred_fini frees. */
struct deferred_lay { const struct params *params; int first, last; int64_t n; dtype dt; struct arena *a; };
status deferred_lay(struct deferred *q, const struct deferred_lay *l) WARN_UNUSED;
void deferred_fini(struct deferred *q);
/* Computes the deferred gradients of the parameter rows [first, last). deferred_empty drops all. */
status deferred_flush(const struct deferred *q, int first, int last, const struct exec *r) WARN_UNUSED;
void deferred_empty(struct deferred *q);
#endif
