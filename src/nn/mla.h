/* mla: multi-head latent attention (DeepSeek-V2, arXiv:2405.04434). Keys and values of all heads are computed from
 * one short vector c per token. RoPE applies only to a tail of dr elements of each head, and all k heads share one
 * tail.
 *
 *   tensor    shape               dtype  memory                     contents, backward
 *   y         [N, D]              dt     act, by caller             dy =  (may be dout's memory: it is written last)
 *   in        [N, W]              dt     act; scratch under full    [q_a Rq | c R | k_rope dr]; without a q rank:
 *                                                                   q H hd, tails after RoPE, instead of q_a
 *   q_rstd, c_rstd  [N]           A      the same                   norms of q_a and c; epsilon is 1e-6 in every model
 *   q_normed  [N, Rq]             dt     act; scratch from selective  with a q rank: the norm of q_a
 *   q         [N, H hd]           dt     the same                   with a q rank: its GEMM, tails after RoPE
 *   c_normed  [N, R]              dt     the same
 *   kv        [N, H (dn+dv)]      dt     the same                   [k_nope of all heads | v of all heads]: v is a view
 *   k         [N, H hd]           dt     the same                   [k_nope | k_rope after RoPE] per head
 *   o, lse    [N, H dv], [H, N]   dt, A  act; scratch under full
 *   out       [N, D]              dt     scratch, by caller         dout read
 *   din, dq, dk, dkv, dq_normed, dc_normed, do_  scratch            gradients of the above
 *   in.weight [W, D], q_norm [Rq], q.weight [H hd, Rq], kv_norm [R], kv.weight [H (dn+dv), R], out.weight [D, H dv]
 *                                      param
 *
 * With tensor parallelism, H and the tensors per head are those of a rank; every rank has all rows of c, k_rope and
 * q_a. hd = dn + dr. Selective recompute computes q, k and v from `in`: two GEMMs of small depth. YaRN with
 * mscale_all_dim multiplies the scale of the scores (rope_softmax_factor).
 *
 * FLOPs per token: 2 D W + 2 Rq H hd + 2 R H (dn + dv) + 2 H dv D + 2 H (hd + dv) S_eff forward. */
#ifndef INGOT_NN_MLA_H
#define INGOT_NN_MLA_H
#include "nn/context_rows.h"
#include "nn/linear.h"
#include "nn/layer_ctx.h"

struct mla {
    struct linear in, q, kv, out;   /* q: only with a q rank */
    int q_norm, kv_norm;            /* parameter rows; q_norm -1: no q rank */
    int64_t heads, q_rank, rank, nope, rope, value;
    double scale, shift;            /* shift: added to the weights of the norms */
};
struct mla_saved {
    struct tensor in, q_rstd, c_rstd, q_normed, q, c_normed, kv, k, o, lse;
    struct tensor din, dq, dk, dkv, dq_normed, dc_normed, do_;  /* scratch of backward */
    struct tensor scratch_fwd, scratch_bwd;                     /* sized by the op set */
    bool kept;                                                  /* q, k and v are kept in act */
    struct linear_saved in_saved, q_saved, kv_saved, out_saved;
    /* Context parallelism: ranks exchange [c_normed | k_rope], and each computes keys and values of all rows. kv, k,
     * dkv and dk then have N rows and are scratch, as are `latents` [N, R] (c_normed of all rows) and its gradient.
     * Without context parallelism these two are c_normed and dc_normed. */
    struct context_rows exchange;
    struct tensor latents, dlatents;
};

extern const struct layer_traits mla_traits; /* spec/layer_traits.h */
void mla_init(struct mla *m, struct params *p, const char *name, const struct model_spec *spec, int64_t layer);
static inline const struct linear *mla_in(const struct mla *m) { return &m->in; }
void mla_layout(const struct mla *m, struct mla_saved *s, const struct layout *l);
void mla_rows(struct mla_saved *s, int64_t rows);
status mla_fwd(const struct mla *m, struct mla_saved *s, const struct layer_ctx *c, struct tensor y,
               struct branch_dst out, const struct exec *r) WARN_UNUSED;
status mla_bwd(const struct mla *m, struct mla_saved *s, const struct layer_ctx *c, struct tensor y, struct tensor dout,
               struct tensor dy, const struct exec *r) WARN_UNUSED;

/* Generation (mla_cache.c) caches only c and the rotated tail, [capacity, R + dr], and absorbs the up-projection.
 * Scores are <W_k^T q, c> + <q_rope, k_rope>, and the output is W_v (sum of p c). A step therefore reads R + dr
 * elements per token for all heads. Expanding the cache would cost a GEMM with all of kv.weight for every cached
 * token. */
struct mla_cache {
    struct tensor rows; /* [sequences x capacity, R + dr]: c after its norm, k_rope after RoPE */
    struct tensor q, o; /* of one step: [sequences x H, R + dr], [sequences x H, R] */
};
void mla_cache_layout(const struct mla *m, struct mla_cache *k, const struct cache_layout *l);
status mla_cache_fill(const struct mla *m, const struct mla_saved *s, struct mla_cache *k, const struct cache_at *at,
                      const struct exec *r) WARN_UNUSED;
status mla_step(const struct mla *m, struct mla_saved *s, struct mla_cache *k, const struct layer_ctx *c,
                const struct cache_at *at, struct tensor y, struct tensor out, const struct exec *r) WARN_UNUSED;

/* The parts of forward that generation shares: mla_form_queries computes the queries of the rows of `in`, with rotated
 * tails; mla_norm_c writes the norm of c to `to` [rows, R]. */
struct mla_view { void *data; int64_t stride; };
struct mla_view mla_queries(const struct mla *m, const struct mla_saved *s);
struct mla_view mla_tail(const struct mla *m, const struct mla_saved *s);   /* k_rope in `in` */
status mla_form_queries(const struct mla *m, struct mla_saved *s, const struct exec *r) WARN_UNUSED;
status mla_norm_c(const struct mla *m, struct mla_saved *s, void *to, const struct exec *r) WARN_UNUSED;
#endif
