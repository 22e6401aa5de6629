/* What specs, meshes and plans ask about a part of a layer (a mixer or a feed-forward part), from the model spec alone: checks, widths,
 * GEMMs, FLOPs. Each part's file in nn/ defines one of these beside its functions (nn/attn.c: attn_traits); nn/mixer.c and nn/ffn.c list
 * them by word of model.layers. The functions are called with a checked spec, except check. */
#ifndef INGOT_SPEC_LAYER_TRAITS_H
#define INGOT_SPEC_LAYER_TRAITS_H
#include "spec/spec.h"

/* A GEMM [tokens, in] x [in, out] in a layer's forward pass. */
struct layer_gemm {
    int64_t in, out;
    double copies;              /* per token: chosen experts; else 1 */
    bool grouped;               /* one matrix per expert */
};
enum { LAYER_GEMMS_MAX = 12 };  /* of a whole layer */
static inline int layer_gemm_add(struct layer_gemm *out, int n, int64_t in, int64_t to)
{
    CHECK(n < LAYER_GEMMS_MAX, "a layer of more than %d GEMMs", LAYER_GEMMS_MAX);
    out[n].in = in, out[n].out = to, out[n].copies = 1, out[n].grouped = false;
    return n + 1;
}

/* A key whose value parallel.tensor divides. */
struct layer_width { const char *key; int64_t *value; };
enum { LAYER_WIDTHS_MAX = 4 };

/* What passes between the GEMMs of a mixer, in elements per token: rotated and kept; of a delta rule values, and queries with keys. */
struct mixer_flow {
    double query, key;
    bool linear;                /* no softmax: a state */
    int64_t head_dim;           /* of softmax attention */
    bool rope_fused;            /* RoPE alone is between the input projection and the core: a GEMM epilogue can do it */
};
/* Dimensions of a head that RoPE rotates, by table (nn/rope.h): of whole heads, and of the tails of mla's. 0: none. */
struct rope_dims { int64_t heads, tails; };
/* Elements that a feed-forward part's own ops move per token: forward, backward; and what selective recompute repeats. */
struct ffn_flow {
    double forward, backward, recompute;
    bool adds;                  /* its last GEMM can add the residual stream in its epilogue */
};
enum { LAYER_PARTS_MAX = 0
#define WORD(prefix, value, word) + 1
       MIXER_WORDS(WORD) FFN_WORDS(WORD)
#undef WORD
};

struct layer_traits {
    /* STATUS_CONFIG in one line: what the keys of this part do not allow. Called where a layer has the part, or (moe) has_not. */
    status (*check)(const struct model_spec *m);
    status (*check_unused)(const struct model_spec *m);         /* keys that do nothing where no layer has the part; NULL: none */
    status (*check_gpu)(const struct model_spec *m);            /* what a GPU's kernels cannot do; NULL: nothing */
    int (*widths)(struct model_spec *m, struct layer_width out[LAYER_WIDTHS_MAX]);
    /* Appends the part's GEMMs to out[n...], the one that writes to the residual stream last; returns the new count. */
    int (*gemms)(const struct model_spec *m, struct layer_gemm *out, int n);
    /* Mixers: forward FLOPs per token between the GEMMs, on average over a sequence of t tokens; with the full square of scores for
     * mfu_full (a state costs the same). */
    double (*core_flops)(const struct model_spec *m, int64_t layer, int64_t t);
    double (*square_flops)(const struct model_spec *m, int64_t t);
    struct mixer_flow (*mixer_flow)(const struct model_spec *m);
    void (*rope_dims)(const struct model_spec *m, struct rope_dims *dims);  /* sets what it rotates; NULL: nothing */
    struct ffn_flow (*ffn_flow)(const struct model_spec *m);    /* feed-forward parts */
    bool sp_overlap;            /* feed-forward parts: linears alone read y and dout and write out and dy (nn/sequence_parallel.h) */
};
const struct layer_traits *mixer_traits(enum mixer mixer);
const struct layer_traits *ffn_traits(enum ffn ffn);

/* Mean number of keys that a query sees in a causal sequence of t tokens: (t + 1) / 2, or w - w (w - 1) / (2 t) with a window w < t. */
static inline double layer_keys_seen(int64_t t, int64_t window)
{
    const double n = (double)t, w = (double)window;
    return window > 0 && window < t ? w - w * (w - 1) / (2 * n) : (n + 1) / 2;
}
#endif
