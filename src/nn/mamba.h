/* mamba2: the state space layer of Mamba-2 (Dao & Gu, arXiv:2405.21060) as in HF: one projection, a short causal
 * convolution with bias over x, B and C, a decaying state per head, S = e^(step A) S + B (step x)^T and o = S^T C, a
 * skip, a gate, a norm, the output projection. B, C and the norm belong to a group of heads, so ranks that shard the
 * groups need no communication between the projections.
 *
 *   tensor   shape          dtype  memory                          backward
 *   y        [N, D]         dt     act, by caller                  dy =  (may be dout's memory: it is written last)
 *   in       [N, W]         dt     act; scratch under full         rows are [z H P | x H P | B G S | C G S | step H]
 *   conv     [N, C]         dt     act; scratch from selective     C: x, B, C columns after conv and SiLU; recomputed
 *   step, g  [N, H]         A      act; scratch under full         softplus(step + dt_bias), -exp(A_log) step
 *   v        [N, H P]       dt     act; scratch from selective     step x; recomputed
 *   saved    bytes          U8     act; scratch under full         saved by the op set (ops.delta_bytes)
 *   o        [N, H P]       dt     act; scratch under full
 *   gated    [N, H P]       dt     act; scratch from selective     (o + skip x) silu(z); recomputed
 *   rstd     [G, N]         A      act; scratch under full         group after group, without gaps
 *   normed   [N, H P]       dt     act; scratch from selective     input of the output projection; recomputed
 *   out      [N, D]         dt     scratch, by caller              dout read
 *   din, dconv, ds, dv, dg         scratch                         gradients of the above; ds: of o + skip x
 *   A_log, dt_bias, D [H]          param                           read in fp32 for exp
 *   conv.weight [C, K], conv.bias [C], norm.weight [H P]           param
 *
 * FLOPs per token: 2 D W + 2 H P D + H (4 S P + 2C (S + P)), with chunks of C = 64. */
#ifndef INGOT_NN_MAMBA_H
#define INGOT_NN_MAMBA_H
#include "nn/context_heads.h"
#include "nn/linear.h"
#include "nn/layer_ctx.h"

struct mamba {
    struct linear in, out;
    int conv, conv_bias, a_log, dt_bias, skip, norm; /* parameter rows */
    int64_t heads, d, groups, state, width;          /* d: head width P; state: S; heads and groups of this rank */
    double eps;
    int share, shares;                               /* mamba_part: which part of the parameters' heads and groups this
                                                        is; 0 shares: all of them */
};
struct mamba_saved {
    struct tensor in, conv, step, g, v, saved, o, gated, rstd, normed;
    struct tensor din, dconv, ds, dv, dg;            /* scratch of backward */
    struct tensor scratch_fwd, scratch_bwd;
    bool kept;                                       /* conv, v, gated and normed are kept in act */
    struct linear_saved in_saved, out_saved;
    /* With context parallelism the tensors above except `normed` have all rows and this rank's heads
     * (nn/context_heads.h), and the next four have this rank's rows. Otherwise the next four are `in`, `din`, `ds` and
     * `normed`. */
    struct tensor rows_in, rows_din, rows_ds, all_normed;
    struct context_heads heads_moved;
    int ranks;
};

extern const struct layer_traits mamba_traits; /* spec/layer_traits.h */
void mamba_init(struct mamba *m, struct params *p, const char *name, const struct model_spec *spec, int64_t layer);
static inline const struct linear *mamba_in(const struct mamba *m) { return &m->in; }
void mamba_layout(const struct mamba *m, struct mamba_saved *s, const struct layout *l);
void mamba_rows(struct mamba_saved *s, int64_t rows);
status mamba_fwd(const struct mamba *m, struct mamba_saved *s, const struct layer_ctx *c, struct tensor y,
                 struct branch_dst out, const struct exec *r) WARN_UNUSED;
status mamba_bwd(const struct mamba *m, struct mamba_saved *s, const struct layer_ctx *c, struct tensor y,
                 struct tensor dout, struct tensor dy, const struct exec *r) WARN_UNUSED;

/* Generation (mamba_cache.c): of each sequence the last rows before the convolution [K-1, C], and the state
 * [H, S, P]. */
struct mamba_cache {
    struct tensor before, state;
};
void mamba_cache_layout(const struct mamba *m, struct mamba_cache *k, const struct cache_layout *l);
status mamba_cache_fill(const struct mamba *m, const struct mamba_saved *s, struct mamba_cache *k,
                        const struct cache_at *at, const struct exec *r) WARN_UNUSED;
status mamba_step(const struct mamba *m, struct mamba_saved *s, struct mamba_cache *k, const struct layer_ctx *c,
                  const struct cache_at *at, struct tensor y, struct tensor out, const struct exec *r) WARN_UNUSED;

/* Computes `normed` from `in`; shared with generation. For each document: `before`: rows before the first row of the
 * convolution; state_in, state_out: may be NULL. */
struct mamba_carry {
    const void *before;
    const void *state_in;
    void *state_out;
};
status mamba_core(const struct mamba *m, const struct mamba_saved *s, const struct batch *b,
                  const struct mamba_carry *carry, const struct exec *r) WARN_UNUSED;
/* The first column of `in` that the convolution reads, and the number of its channels. */
int64_t mamba_conv_at(const struct mamba *m);
int64_t mamba_channels(const struct mamba *m);
#endif
