/* gdn: Gated DeltaNet (Yang et al., arXiv:2412.06464) as in Qwen3-Next and fla: one projection, a short causal
 * convolution over q, k and v, the gated delta rule per value head, a gated norm, the output projection.
 *
 *   tensor   shape          dtype  memory                          backward
 *   y        [N, D]         dt     act, by caller                  dy =  (may be dout's memory: it is written last)
 *   in       [N, W]         dt     act; scratch under full         rows: [q Hk dk | k Hk dk | v Hv dv | z Hv dv |
 *                                                                 b Hv | a Hv]
 *   conv     [N, C]         dt     act; scratch from selective     C: q, k, v columns after conv and SiLU; recomputed
 *   g, beta  [N, Hv]        A      act; scratch under full
 *   saved    bytes          U8     act; scratch under full         saved by the op set (ops.delta_bytes)
 *   o        [N, Hv dv]     dt     act; scratch under full
 *   rstd     [N, Hv]        A      the same
 *   gated    [N, Hv dv]     dt     act; scratch from selective     input of the output projection; recomputed
 *   out      [N, D]         dt     scratch, by caller              dout read
 *   din, dconv, do_, dg, dbeta     scratch                         gradients of the above
 *   A_log, dt_bias [Hv], conv.weight [C, K], norm.weight [dv]      param; A_log and dt_bias are read in fp32 for exp
 *
 * FLOPs per token: 2 D W + 2 Hv dv D + Hv (6 dk dv + 2C (3 dk + 2 dv) + 2 C^2 / 3), with chunks of C = 64. */
#ifndef INGOT_NN_GDN_H
#define INGOT_NN_GDN_H
#include "nn/context_heads.h"
#include "nn/linear.h"
#include "nn/layer_ctx.h"

struct gdn {
    struct linear in, out;
    int conv, a_log, dt_bias, norm; /* parameter rows */
    int64_t heads_k, heads, dk, dv, width;
    double eps;
    int share, shares;              /* gdn_part: which part of the parameters' heads this is; 0 shares: all heads */
};
struct gdn_saved {
    struct tensor in, conv, g, beta, saved, o, rstd, gated;
    struct tensor din, dconv, do_, dg, dbeta;   /* scratch of backward */
    struct tensor scratch_fwd, scratch_bwd;
    bool conv_kept;                             /* conv and gated are kept in act */
    struct linear_saved in_saved, out_saved;
    /* With context parallelism the tensors above except `gated` have all rows and this rank's heads
     * (nn/context_heads.h), and the next four have this rank's rows. Otherwise the next four are `in`, `din`, `do_` and
     * `gated`. */
    struct tensor rows_in, rows_din, rows_do, all_gated;
    struct context_heads heads;
    int ranks;
};

extern const struct layer_traits gdn_traits; /* spec/layer_traits.h */
void gdn_init(struct gdn *m, struct params *p, const char *name, const struct model_spec *spec, int64_t layer);
static inline const struct linear *gdn_in(const struct gdn *m) { return &m->in; }
void gdn_layout(const struct gdn *m, struct gdn_saved *s, const struct layout *l);
void gdn_rows(struct gdn_saved *s, int64_t rows);
status gdn_fwd(const struct gdn *m, struct gdn_saved *s, const struct layer_ctx *c, struct tensor y,
               struct branch_dst out, const struct exec *r) WARN_UNUSED;
status gdn_bwd(const struct gdn *m, struct gdn_saved *s, const struct layer_ctx *c, struct tensor y, struct tensor dout,
               struct tensor dy, const struct exec *r) WARN_UNUSED;

/* Generation (gdn_cache.c): of each sequence the last rows before the convolution [K-1, C], and the state
 * [Hv, dk, dv]. */
struct gdn_cache {
    struct tensor before, state;
};
void gdn_cache_layout(const struct gdn *m, struct gdn_cache *k, const struct cache_layout *l);
status gdn_cache_fill(const struct gdn *m, const struct gdn_saved *s, struct gdn_cache *k, const struct cache_at *at,
                      const struct exec *r) WARN_UNUSED;
status gdn_step(const struct gdn *m, struct gdn_saved *s, struct gdn_cache *k, const struct layer_ctx *c,
                const struct cache_at *at, struct tensor y, struct tensor out, const struct exec *r) WARN_UNUSED;

/* The part of forward that generation shares. For each document: `before`: rows before the first row of the
 * convolution; state_in, state_out: may be NULL. */
struct gdn_carry {
    const void *before;
    const void *state_in;
    void *state_out;
};
status gdn_core(const struct gdn *m, const struct gdn_saved *s, const struct batch *b, const struct gdn_carry *carry,
                const struct exec *r) WARN_UNUSED;
#endif
