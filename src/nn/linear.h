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
 * nothing.
 *
 * With RECIPE_FP8 the GEMMs of a weight with param.fp8 read codes, if params.fp8.use says so and N is a multiple of 16
 * (fp8_reads). The op that wrote x or dy may have written its codes too (tensor.q). If not, the op `quantize` writes
 * them into memory of this linear:
 *   codes of x, then their transpose    [N, in], [in, N]      scratch
 *   codes of dy, their transpose        [N, out], [out, N]    scratch
 * While a linear computes in bf16, `quantize` only measures amax.
 *
 * With RECIPE_CURRENT the GEMMs of a weight with param.current read x, W and dy rounded to codes whose scales come from
 * themselves (tensor/current_linears.h): the op `quantize_blocks` writes the decoded codes in bf16, once for each GEMM,
 * into memory that all linears share. */
#ifndef INGOT_NN_LINEAR_H
#define INGOT_NN_LINEAR_H
#include "parallel/exec.h"

struct linear {
    int64_t out, in;    /* widths of this rank's shard */
    int w, b;           /* parameter rows; b = -1: no bias */
    int adds;           /* this rank adds the bias: true for the first rank of a sum over ranks */
};
/* Memory of one linear from forward to backward, for operands whose form differs from the tensor's. Plain: none. */
struct linear_saved {
    void *x, *dy, *dy_t;        /* FP8: codes; NULL if the tensor carries its own. x: forward's codes, then their
                                   transpose */
    const void *made;           /* the dy data whose FP8 codes are cached. The pass in `by` made them; the other pass
                                   consumes them */
    enum gemm_pass by;          /* GEMM_DGRAD or GEMM_WGRAD */
    bool by_blocks;             /* dgrad quantized dy block by block: wgrad must still make the transposed codes */
};
/* Which tensors carry their FP8 form (tensor.q), so that a linear needs no memory for it. */
enum linear_given { LINEAR_NONE, LINEAR_X = 1, LINEAR_DY = 2 };

enum bias { BIAS_NONE, BIAS_ADD };
/* Declares NAME.weight and NAME.bias. */
void linear_init(struct linear *m, struct params *p, const char *name, enum role role, int64_t out, int64_t in,
                 enum bias bias);
/* Sets how tensor-parallel ranks shard the weight (params.h), and the logical matrices stacked in it. A bias is
 * sharded with the weight's rows. If the weight is sharded by columns, every rank holds the full bias and computes
 * the same gradient from the full dy. */
void linear_split(struct linear *m, struct params *p, enum split split, const int64_t *parts, int part_count);
static inline int linear_given_y(const struct layout *l) { return l->codes_y ? LINEAR_X : LINEAR_NONE; }
static inline int linear_given_dout(const struct layout *l) { return l->codes_dout ? LINEAR_DY : LINEAR_NONE; }
/* Allocates the memory that the recipe needs for this linear; the planner counts it like every X_layout. `given`: bits
 * of enum linear_given. */
void linear_layout(const struct linear *m, struct linear_saved *s, int given, const struct layout *l);
/* linear_fp8: true if forward and dgrad read codes when there are so many rows. linear_fp8_all: true if all three GEMMs
 * do; then nothing reads the values of x. */
bool linear_fp8(const struct linear *m, int64_t rows, const struct exec *r);
bool linear_fp8_all(const struct linear *m, int64_t rows, const struct exec *r);
/* True if GEMMs of so many rows read operands of RECIPE_CURRENT. linear_gemm must not be called then. */
bool linear_current(const struct linear *m, int64_t rows, const struct exec *r);
/* The FP8 form of the linear's x or dy, for the op that writes that tensor; empty if its GEMMs never read codes. */
struct quantized linear_quantized(const struct linear *m, enum fp8_tensor t, void *codes, void *codes_t,
                                  const struct params *p);

status linear_fwd(const struct linear *m, struct linear_saved *s, struct tensor x, struct tensor y,
                  const struct exec *r) WARN_UNUSED;
/* The last GEMM of a branch. With out.residual it also computes the residual add (EPILOGUE_ADD); only if linear_adds.
 * linear_adds: the weight has no bias, is not sharded, and the op set fuses the add. */
status linear_last(const struct linear *m, struct linear_saved *s, struct tensor x, struct branch_dst out,
                   const struct exec *r) WARN_UNUSED;
bool linear_adds(const struct linear *m, const struct exec *r);
status linear_dgrad(const struct linear *m, struct linear_saved *s, struct tensor dy, struct tensor dx,
                    const struct exec *r) WARN_UNUSED;
/* dx += dy W, dx in A. */
status linear_dgrad_add(const struct linear *m, struct linear_saved *s, struct tensor dy, struct tensor dx,
                        const struct exec *r) WARN_UNUSED;
/* Computes the weight gradient now or, with exec.defer, copies the operands of x and dy there (ZB-H1). */
status linear_wgrad(const struct linear *m, struct linear_saved *s, struct tensor x, struct tensor dy,
                    const struct exec *r) WARN_UNUSED;

static inline bool linear_codes(struct tensor t) { return t.q && t.q->codes; }
/* Returns the GEMM of forward or dgrad (pass), with bias, without launching it: for a caller that adds an epilogue
 * after it has asked ops.gemm_supports. in and out are x and y, or dy and dx. With linear_fp8, `in` must carry its
 * codes. Not for sequence-parallel ranks, whose rows arrive in blocks. */
struct gemm_args linear_gemm(const struct linear *m, enum gemm_pass pass, struct tensor in, struct tensor out,
                             const struct exec *r);

/* Deferred weight gradients of one micro-batch, computed later in the order of the calls. In ZB-H1 no other rank
 * waits for this half of backward. */
struct deferred {
    struct arena copies;
    struct deferred_item { const struct linear *m; void *x, *dy; int64_t rows; } *items; /* [capacity], owned */
    int count, capacity;
};
/* Allocates from `a` (counting or real) for all linears of the parameter rows [first, last) with `n` rows of x.
 * deferred_fini frees. */
struct deferred_layout { const struct params *params; int first, last, context; int64_t n; dtype dt; struct arena *a; };
status deferred_layout(struct deferred *q, const struct deferred_layout *l) WARN_UNUSED;
void deferred_fini(struct deferred *q);
/* Computes the deferred gradients of the parameter rows [first, last). deferred_empty drops all. */
status deferred_flush(const struct deferred *q, int first, int last, const struct exec *r) WARN_UNUSED;
void deferred_empty(struct deferred *q);
#endif
