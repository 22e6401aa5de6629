/* attn: the attention branch of a block: fused qkv projection, QK-norm and RoPE, causal attention, an output gate
 * with model.attention_gate (Qwen3-Next; arXiv:2505.06708), output projection. G below is H with a gate, else 0.
 *
 *   tensor  shape              dtype  memory                     backward
 *   y       [N, D]             dt     act, by caller             dy =  (may be dout's memory: it is written last)
 *   qkv     [N, (H+2K+G) hd]   dt     act; scratch under full    rows: [q heads | k heads | v heads | gates of q heads]
 *   rot     [N, (H+K) hd]      dt     the same                   is qkv itself without QK-norm (RoPE in place)
 *   qk_rstd [N, H+K]           A      the same                   with QK-norm only
 *   o       [N, H hd]          dt     the same
 *   lse     [H, N]             A      the same
 *   gated   [N, H hd]          dt     scratch                    o sigmoid(gate), recomputed in backward; else o
 *   out     [N, D]             dt     scratch, by caller         dout read
 *   dqkv, do_                  dt     scratch
 *   kv      [N, 2K hd]         dt     scratch                    context parallelism: k, v of all ranks
 *   scratch_fwd, scratch_bwd   bytes  scratch                    sized by the op set (ops.attn_scratch)
 *
 * FLOPs per token: 2 D (H+2K+G) hd + 2 H hd D + 4 H hd S_eff forward. Backward: 2 times the first two terms and 2.5
 * times the last. */
#ifndef INGOT_NN_ATTN_H
#define INGOT_NN_ATTN_H
#include "nn/context_heads.h"
#include "nn/context_rows.h"
#include "nn/linear.h"
#include "nn/layer_ctx.h"

struct attn {
    struct linear qkv, out;
    int q_norm, k_norm;             /* parameter rows; -1: no QK-norm */
    int64_t heads, heads_kv, head_dim, window;
    bool gate;
    bool rope_alone;                /* nothing but RoPE of whole heads is between projection and attention */
    double eps, scale, shift;       /* shift: added to the weights of the QK-norm */
};
struct attn_saved {
    struct tensor qkv, rot, qk_rstd, o, lse, gated;
    struct tensor dqkv, do_;                /* scratch of backward */
    struct tensor scratch_fwd, scratch_bwd; /* sized by the op set */
    struct linear_saved qkv_saved, out_saved;
    /* Context parallelism (nn/attn_context.h) */
    struct context_rows kv;                      /* all_gather: rows are [k heads | v heads] */
    struct context_heads exchange;               /* ulysses */
    struct tensor heads_qkv, heads_o, heads_do, heads_dqkv; /* ulysses: all rows of this rank's heads */
    struct tensor ring_kv, ring_dkv, ring_terms; /* ring: kv and dkv [n, 2K hd] of one other rank; terms [N, 2K hd] */
};

extern const struct layer_traits attn_traits; /* spec/layer_traits.h */
void attn_init(struct attn *m, struct params *p, const char *name, const struct model_spec *spec, int64_t layer);
static inline const struct linear *attn_in(const struct attn *m) { return &m->qkv; }
void attn_layout(const struct attn *m, struct attn_saved *s, const struct layout *l);
void attn_rows(struct attn_saved *s, int64_t rows);
status attn_fwd(const struct attn *m, struct attn_saved *s, const struct layer_ctx *c, struct tensor y,
                struct branch_dst out, const struct exec *r) WARN_UNUSED;
status attn_bwd(const struct attn *m, struct attn_saved *s, const struct layer_ctx *c, struct tensor y,
                struct tensor dout, struct tensor dy, const struct exec *r) WARN_UNUSED;

/* Generation (attn_cache.c): keys after RoPE, and values, [sequences x capacity, K hd]. */
struct attn_cache {
    struct tensor k, v;
};
void attn_cache_layout(const struct attn *m, struct attn_cache *k, const struct cache_layout *l);
status attn_cache_fill(const struct attn *m, const struct attn_saved *s, struct attn_cache *k,
                       const struct cache_at *at, const struct exec *r) WARN_UNUSED;
status attn_step(const struct attn *m, struct attn_saved *s, struct attn_cache *k, const struct layer_ctx *c,
                 const struct cache_at *at, struct tensor y, struct tensor out, const struct exec *r) WARN_UNUSED;

/* Projection and RoPE only: fills s->qkv and s->rot. */
status attn_project(const struct attn *m, struct attn_saved *s, const struct layer_ctx *c, struct tensor y,
                    const struct exec *r) WARN_UNUSED;
/* Gate and output projection, from s->o. */
status attn_output(const struct attn *m, struct attn_saved *s, struct branch_dst out, const struct exec *r) WARN_UNUSED;
/* The q, k and v heads of the saved tensors; strides are in elements from row to row. */
struct attn_heads { const void *q, *k, *v; int64_t q_stride, k_stride, v_stride; };
struct attn_heads attn_heads(const struct attn *m, const struct attn_saved *s);
#endif
