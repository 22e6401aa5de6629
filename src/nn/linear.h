/* linear: y = x W^T + b
 *
 *   tensor  shape      dtype  lives            backward
 *   x       [N, in]    dt     act, by caller   dx =  (dgrad: dy W)
 *   W       [out, in]  dt     param            dW = or += dy^T x, A (exec.accum)
 *   b       [out]      dt     param, optional  db += column sums of dy, A
 *   y       [N, out]   dt     act, by caller   dy read
 *
 * 2 N out in FLOPs forward, twice that backward. What a GEMM reads of x, W and dy is a struct operand (tensor/operand.h): this file alone
 * turns tensors into operands. With RECIPE_PLAIN an operand is the tensor itself, and a linear lays out nothing of its own. */
#ifndef INGOT_NN_LINEAR_H
#define INGOT_NN_LINEAR_H
#include "parallel/exec.h"

struct linear {
    int64_t out, in;    /* of this rank's slice */
    int w, b;           /* rows of the parameter table; b = -1: no bias */
    int adds;           /* this rank adds the bias: of a sum over ranks, the first rank alone */
};
/* Memory of one linear between forward and backward: operands in another form than the tensors'. Plain: none. */
struct linear_saved {
    enum recipe recipe;
};

enum bias { BIAS_NONE, BIAS_ADD };
/* Declares NAME.weight and NAME.bias. */
void linear_init(struct linear *m, struct params *p, const char *name, enum role role, int64_t out, int64_t in, enum bias bias);
/* How tensor-parallel ranks shard the weight (params.h), and the logical matrices that are stacked in it. The bias is sharded with its rows;
 * of a weight split by columns every rank holds the whole bias, and computes the same gradient from the whole dy. */
void linear_split(struct linear *m, struct params *p, enum split split, const int64_t *parts, int part_count);
/* Allocates what the recipe keeps of this linear; counted by the planner like all X_lay. */
void linear_lay(const struct linear *m, struct linear_saved *s, const struct lay *l);

status linear_fwd(const struct linear *m, const struct linear_saved *s, struct tensor x, struct tensor y, const struct exec *r) WARN_UNUSED;
/* The last GEMM of a branch. With out.sum it also does the residual add (EPILOGUE_ADD), where linear_adds. */
status linear_last(const struct linear *m, const struct linear_saved *s, struct tensor x, struct sink out, const struct exec *r) WARN_UNUSED;
bool linear_adds(const struct linear *m, const struct exec *r);
status linear_dgrad(const struct linear *m, const struct linear_saved *s, struct tensor dy, struct tensor dx, const struct exec *r) WARN_UNUSED;
/* dx += dy W, dx in A. */
status linear_dgrad_add(const struct linear *m, const struct linear_saved *s, struct tensor dy, struct tensor dx, const struct exec *r) WARN_UNUSED;
/* Now; or, with exec.defer, the operands of x and dy are copied there (ZB-H1). */
status linear_wgrad(const struct linear *m, const struct linear_saved *s, struct tensor x, struct tensor dy, const struct exec *r) WARN_UNUSED;

/* The GEMM of forward or dgrad (pass), with bias, not yet run: for a caller that adds an epilogue and asks ops.gemm_supports. in and out are
 * x and y, or dy and dx. Not with sequence-parallel ranks, whose rows come in blocks. */
struct gemm_args linear_gemm(const struct linear *m, const struct linear_saved *s, enum gemm_pass pass, struct tensor in, struct tensor out,
                             const struct exec *r);

/* Weight gradients of one micro-batch that are computed later, in the order in which they came (ZB-H1: half of a backward that no other rank
 * waits for). */
struct deferred {
    struct arena copies;
    struct deferred_item { const struct linear *m; struct operand x, dy; int64_t rows; } *items;   /* [capacity], owned */
    int count, capacity;
};
/* For all linears of the rows [first, last) of the table, with `n` rows of x: memory from `a`, counting or real. deferred_fini frees. */
struct deferred_lay { const struct params *params; int first, last; int64_t n; dtype dt; struct arena *a; };
status deferred_lay(struct deferred *q, const struct deferred_lay *l) WARN_UNUSED;
void deferred_fini(struct deferred *q);
/* Computes those whose weights are among the rows [first, last) of the table; deferred_empty forgets all. */
status deferred_flush(const struct deferred *q, int first, int last, const struct exec *r) WARN_UNUSED;
void deferred_empty(struct deferred *q);
#endif
