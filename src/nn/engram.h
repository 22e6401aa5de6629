/* engram: a memory of n-grams before the mixer of a layer (Engram, arXiv:2601.07372, without branches). Hashes of the last 2, 3, ... N
 * tokens choose rows of tables; what they hold is gated by how well it fits the stream.
 *
 *     e = rows of the tables, side by side;  k = Wk e;  v = Wv e;  alpha = gate(<knorm(k), hnorm(h)> / sqrt(D))
 *     u = alpha v;  out = u + silu(conv(unorm(u)));  h <- h + out              conv: width 4, taps N rows apart, begins at 0
 *
 *   tensor   shape      dtype  lives                        backward
 *   ids      [T, R]     I32    act; scratch from selective  R = (N-1) heads rows per token; formed again
 *   h        [T, D]     dt     act                          the stream; its gradient passes through, hnorm's is added
 *   e        [T, R dh]  dt     act; scratch from selective  formed again
 *   k, v, u  [T, D]     dt     act; scratch under full
 *   nk, nh, x [T, D]    dt     act; scratch from selective  norms of k, h, u
 *   delta    [T]        A      act; scratch under full
 *   sum, out [T, D]     dt     scratch                      h + u and the convolution's part: the next norm adds them
 *   dx, dk, dh, dv, de  scratch of backward; de in A, because two GEMMs add up in it; with params.sparse it lies in exec.sparse_grad
 *   table    [rows, dh]        param of role TABLE          the rows' gradients are summed in token order
 *
 * With t ranks that share it a rank has dh / t columns of the tables and of what k and v make of them, for all tokens; k and v are sums over
 * ranks, and the rest is of its T / t rows, but the convolution, which looks back beyond them: every rank does it for all rows.
 *
 * Head j of order n has a table of its own, of a prime number of rows (spec/ngram.c), all in one parameter. Its gradient is an array as
 * large as it is, or the rows that the step reads (parallel/sparse_grad.h); rows that no token of the step read stay as they are. FLOPs per
 * token: 4 R dh D. */
#ifndef INGOT_NN_ENGRAM_H
#define INGOT_NN_ENGRAM_H
#include "nn/linear.h"
#include "nn/mix.h"
#include "nn/norm.h"
#include "nn/sequence_parallel.h"

enum { ENGRAM_CONV = 4 };   /* taps */
struct engram {
    struct linear k, v;
    struct norm_block k_norm, h_norm, u_norm;
    int table, conv;
    int64_t d, width, rows; /* width of the table's rows that are here; rows of the table */
    struct ngram_hash hash;
    const int32_t *map;     /* [vocab], of the op set's memory; NULL: ids are hashed as they are */
};
struct engram_saved {
    struct tensor ids, h, e, k, v, u, nk, nh, x, delta, sum, out;
    struct norm_saved k_norm, h_norm, u_norm;
    struct tensor dx, dk, dh, dv, de;   /* scratch of backward; dx is of all rows on every rank */
    struct linear_saved k_saved, v_saved;
};

void engram_init(struct engram *m, struct params *p, const char *name, const struct model_spec *spec, int64_t layer);
/* Its table, in a unit of its own: after all other units. `block`: the unit of engram_init. */
void engram_table_init(struct engram *m, struct params *p, const char *name, const struct model_spec *spec, int block);
void engram_lay(const struct engram *m, struct engram_saved *s, const struct lay *l);
/* rows of all ranks, of which `part` are of the stream here. */
void engram_rows(struct engram_saved *s, int64_t rows, int64_t part);
/* The stream x + branch (data NULL: x) into s->sum and s->out, which are to be added. w: memory to exchange rows with. */
status engram_fwd(const struct engram *m, struct engram_saved *s, const struct mix *c, struct tensor x, struct tensor branch,
                  const struct sp *w, const struct exec *r) WARN_UNUSED;
/* What `policy` did not keep, before engram_bwd. */
status engram_recompute(const struct engram *m, struct engram_saved *s, enum recompute policy, const struct mix *c, const struct sp *w,
                    const struct exec *r) WARN_UNUSED;
/* g: gradient of s->sum + s->out in, of the stream out. */
status engram_bwd(const struct engram *m, struct engram_saved *s, const struct mix *c, struct tensor g, const struct sp *w,
                  const struct exec *r) WARN_UNUSED;

/* Rows that the convolution looks back on. */
static inline int64_t engram_look_back(const struct engram *m) { return (ENGRAM_CONV - 1) * m->hash.order; }

/* Generation (engram_cache.c): the last N-1 tokens, and the rows that the convolution looks back on. */
struct engram_cache {
    struct tensor tokens, before;
};
void engram_cache_lay(const struct engram *m, struct engram_cache *k, const struct cache_lay *l);
status engram_cache_fill(const struct engram *m, const struct engram_saved *s, struct engram_cache *k, const struct cache_at *at,
                         const struct exec *r) WARN_UNUSED;
/* As engram_fwd, for one more row. */
status engram_step(const struct engram *m, struct engram_saved *s, struct engram_cache *k, const struct mix *c, const struct cache_at *at,
                   struct tensor x, struct tensor branch, const struct exec *r) WARN_UNUSED;

/* engram_fwd with what generation kept. */
struct engram_carry {
    const int32_t *tokens;
    const void *before;
};
status engram_core(const struct engram *m, struct engram_saved *s, const struct batch *b, const struct engram_carry *carry,
                   const struct sp *w, const struct exec *r) WARN_UNUSED;
#endif
