/* engram: an n-gram memory before the mixer of a layer (Engram, arXiv:2601.07372, without branches). Hashes of the
 * last 2, 3, ... N tokens select table rows. A gate scales their contents by how well they match the residual stream.
 *
 *     e = selected rows, concatenated;  k = Wk e;  v = Wv e;  alpha = gate(<knorm(k), hnorm(h)> / sqrt(D))
 *     u = alpha v;  out = u + silu(conv(unorm(u)));  h <- h + out     conv: width 4, taps N rows apart, initially 0
 *
 *   tensor    shape      dtype  memory                       backward
 *   ids       [T, R]     I32    act; scratch from selective  R = (N-1) heads rows per token; recomputed
 *   h         [T, D]     dt     act                          residual stream; its gradient passes through, plus hnorm's
 *   e         [T, R dh]  dt     act; scratch from selective  recomputed
 *   k, v, u   [T, D]     dt     act; scratch under full
 *   nk, nh, x [T, D]     dt     act; scratch from selective  norms of k, h, u
 *   delta     [T]        A      act; scratch under full
 *   sum, out  [T, D]     dt     scratch                      h + u, the convolution's output; the next norm adds both
 *   dx, dk, dh, dv, de          scratch of backward          de in A: two GEMMs add to it; with params.sparse it is in
 *                                                            exec.sparse_grad
 *   table     [rows, dh]        param of role TABLE          row gradients are summed in token order
 *
 * Tensor parallelism over t ranks: a rank has dh / t columns of the tables and the partial k and v of those columns,
 * for all tokens. k and v are summed over the ranks. The rest works on the rank's T / t rows, except the convolution,
 * which reads earlier rows: every rank computes it for all rows.
 *
 * Context parallelism: a rank hashes the ids of the whole micro-batch and takes its rows. For the convolution ranks
 * exchange rows against channels (nn/context_heads.h), so each has all rows of D / cp channels.
 *
 * Head j of order n has its own table with a prime number of rows (spec/ngram.c); all tables are one parameter. Its
 * gradient is an array of the same size, or only the rows that the step reads (parallel/sparse_grad.h). Rows that no
 * token of the step reads do not change. FLOPs per token: 4 R dh D. */
#ifndef INGOT_NN_ENGRAM_H
#define INGOT_NN_ENGRAM_H
#include "nn/context_heads.h"
#include "nn/linear.h"
#include "nn/layer_ctx.h"
#include "nn/norm.h"
#include "nn/sequence_parallel.h"

enum { ENGRAM_CONV = 4 };   /* taps */
struct engram {
    struct linear k, v;
    struct norm_block k_norm, h_norm, u_norm;
    int table, conv;
    int64_t d, width, rows; /* width: elements of a table row on this rank; rows: number of table rows */
    struct ngram_hash hash;
    const int32_t *map;     /* [vocab], in the op set's memory; NULL: ids are hashed directly */
};
struct engram_saved {
    struct tensor ids, h, e, k, v, u, nk, nh, x, delta, sum, out;
    struct norm_saved k_norm, h_norm, u_norm;
    struct tensor dx, dk, dh, dv, de;   /* scratch of backward; every rank has all rows of dx */
    struct linear_saved k_saved, v_saved;
    /* Context parallelism, scratch, for all rows: ids, and this rank's channels of x, of the output or its gradient,
     * and of dx. */
    struct tensor all_ids, all_x, all_y, all_dx;
    struct context_heads exchange;
};

void engram_init(struct engram *m, struct params *p, const char *name, const struct model_spec *spec, int64_t layer);
/* Declares the table, in a unit of its own: call it after all other units. `block`: the unit of engram_init. */
void engram_table_init(struct engram *m, struct params *p, const char *name, const struct model_spec *spec, int block);
void engram_layout(const struct engram *m, struct engram_saved *s, const struct layout *l);
/* Sets the number of rows: `rows` of all ranks, `part` of this rank's part of the residual stream. */
void engram_rows(struct engram_saved *s, int64_t rows, int64_t part);
/* Adds the memory to the residual stream x + branch (data NULL: x). The result is s->sum + s->out; the next norm adds
 * them. w: buffers of the sequence-parallel collectives. */
status engram_fwd(const struct engram *m, struct engram_saved *s, const struct layer_ctx *c, struct tensor x,
                  struct tensor branch, const struct sp *w, const struct exec *r) WARN_UNUSED;
/* Recomputes what `policy` did not keep; call it before engram_bwd. */
status engram_recompute(const struct engram *m, struct engram_saved *s, enum recompute policy,
                        const struct layer_ctx *c, const struct sp *w, const struct exec *r) WARN_UNUSED;
/* g: on input the gradient of s->sum + s->out, on output that of the residual stream. */
status engram_bwd(const struct engram *m, struct engram_saved *s, const struct layer_ctx *c, struct tensor g,
                  const struct sp *w, const struct exec *r) WARN_UNUSED;

/* Number of rows before the current one that the convolution reads. */
static inline int64_t engram_look_back(const struct engram *m) { return (ENGRAM_CONV - 1) * m->hash.order; }

/* Generation (engram_cache.c): for each sequence, the last N-1 tokens and the earlier rows that the convolution
 * reads. */
struct engram_cache {
    struct tensor tokens, before;
};
void engram_cache_layout(const struct engram *m, struct engram_cache *k, const struct cache_layout *l);
status engram_cache_fill(const struct engram *m, const struct engram_saved *s, struct engram_cache *k,
                         const struct cache_at *at, const struct exec *r) WARN_UNUSED;
/* As engram_fwd, for one more row of every sequence. */
status engram_step(const struct engram *m, struct engram_saved *s, struct engram_cache *k, const struct layer_ctx *c,
                   const struct cache_at *at, struct tensor x, struct tensor branch, const struct exec *r) WARN_UNUSED;

/* engram_fwd with the cached tokens and rows of generation. */
struct engram_carry {
    const int32_t *tokens;
    const void *before;
};
status engram_core(const struct engram *m, struct engram_saved *s, const struct batch *b,
                   const struct engram_carry *carry, const struct sp *w, const struct exec *r) WARN_UNUSED;
#endif
