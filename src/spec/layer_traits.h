/* Properties of a part of a layer (a mixer or a feed-forward part) that specs, meshes and plans need: checks, widths,
 * GEMMs, FLOPs. They are functions of the model spec alone. The file of each part in nn/ defines one struct beside
 * its functions (nn/attn.c: attn_traits); nn/mixer.c and nn/ffn.c list them by their word in model.layers. All
 * functions except `check` require a checked spec. */
#ifndef INGOT_SPEC_LAYER_TRAITS_H
#define INGOT_SPEC_LAYER_TRAITS_H
#include "spec/spec.h"

/* A GEMM [tokens, in] x [in, out] in a layer's forward pass. */
struct layer_gemm {
    int64_t in, out;
    double copies;              /* per token: the number of chosen experts; else 1 */
    bool grouped;               /* one matrix per expert */
};
enum { LAYER_GEMMS_MAX = 12 };  /* per layer */
static inline int layer_gemm_add(struct layer_gemm *out, int n, int64_t in, int64_t to)
{
    CHECK(n < LAYER_GEMMS_MAX, "a layer of more than %d GEMMs", LAYER_GEMMS_MAX);
    out[n].in = in, out[n].out = to, out[n].copies = 1, out[n].grouped = false;
    return n + 1;
}

/* A key whose value is divided by parallel.tensor. */
struct layer_width { const char *key; int64_t *value; };
enum { LAYER_WIDTHS_MAX = 4 };

/* Elements per token between the GEMMs of a mixer. Attention: those of the queries and of the keys, which are rotated
 * and kept. A delta rule: those of the values, and those of queries with keys. */
struct mixer_flow {
    double query, key;
    bool linear;                /* no softmax: the mixer keeps a recurrent state */
    int64_t head_dim;           /* of softmax attention */
    /* only RoPE is between the input projection and the core: a GEMM epilogue can apply it */
    bool rope_fused;
};
/* Head dimensions that RoPE rotates, per table (nn/rope.h): of whole heads, and of the head tails of mla. 0: none. */
struct rope_dims { int64_t heads, tails; };
/* Elements that the feed-forward part's own ops move per token: forward, backward, and those repeated by selective
 * recompute. */
struct ffn_flow {
    double forward, backward, recompute;
    bool adds;                  /* its last GEMM can add the residual stream in the epilogue */
};
/* What context-parallel ranks exchange of a mixer's layer. A mixer that does not say it is refused on such meshes. */
enum layer_context {
    LAYER_CONTEXT_NONE,         /* refused beside parallel.context */
    LAYER_CONTEXT_HEADS,        /* rows against heads (nn/context_heads.h): recurrences. The ranks divide `widths` */
    LAYER_CONTEXT_ROWS,         /* keys and values of all rows (nn/context_rows.h) */
    LAYER_CONTEXT_KIND          /* as parallel.context_kind says: rows, rows on a ring, or heads */
};
enum { LAYER_PARTS_MAX = 0
#define WORD(prefix, value, word) + 1
       MIXER_WORDS(WORD) FFN_WORDS(WORD)
#undef WORD
};

struct layer_traits {
    /* STATUS_CONFIG in one line: key values that this part does not allow. Called where a layer has the part. */
    status (*check)(const struct model_spec *m);
    /* called instead of `check` where no layer has the part: keys that have no effect then; NULL: none */
    status (*check_unused)(const struct model_spec *m);
    status (*check_gpu)(const struct model_spec *m);            /* checks limits of the GPU kernels; NULL: none */
    int (*widths)(struct model_spec *m, struct layer_width out[LAYER_WIDTHS_MAX]);
    /* Appends the part's GEMMs to out[n...]; the GEMM that writes to the residual stream is last. Returns the new
     * count. */
    int (*gemms)(const struct model_spec *m, struct layer_gemm *out, int n);
    /* Mixers: forward FLOPs per token between the GEMMs, averaged over a sequence of t tokens. square_flops counts
     * the full square of scores for mfu_full (a recurrent state costs the same). */
    double (*core_flops)(const struct model_spec *m, int64_t layer, int64_t t);
    double (*square_flops)(const struct model_spec *m, int64_t t);
    struct mixer_flow (*mixer_flow)(const struct model_spec *m);
    /* sets the rotated dimensions; NULL: none */
    void (*rope_dims)(const struct model_spec *m, struct rope_dims *dims);
    enum layer_context context; /* mixers */
    bool context_gpu;           /* and it does so between GPUs: else refused there */
    struct ffn_flow (*ffn_flow)(const struct model_spec *m);    /* feed-forward parts only */
    /* feed-forward parts: only linears read y and dout and write out and dy (nn/sequence_parallel.h) */
    bool sp_overlap;
};
const struct layer_traits *mixer_traits(enum mixer mixer);
const struct layer_traits *ffn_traits(enum ffn ffn);

/* Mean number of keys that a query attends to in a causal sequence of t tokens: (t + 1) / 2, or w - w (w - 1) / (2 t)
 * with a window w < t. */
static inline double layer_keys_seen(int64_t t, int64_t window)
{
    const double n = (double)t, w = (double)window;
    return window > 0 && window < t ? w - w * (w - 1) / (2 * n) : (n + 1) / 2;
}
#endif
