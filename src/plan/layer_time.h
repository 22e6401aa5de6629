/* Predicts compute time: seconds of a layer's forward and backward pass, by limiting resource.
 *
 * GEMMs run at the rate that the machine reaches for their smallest side, attention and the delta rule at their own
 * rates; norms, activations, RoPE and the loss are memory bound. The GEMMs of a layer are a list, and the spec is the
 * rank's own (heads and widths divided by tp), so this code needs no knowledge of parallelism. */
#ifndef INGOT_PLAN_LAYER_TIME_H
#define INGOT_PLAN_LAYER_TIME_H
#include "plan/machine.h"
#include "spec/layer_traits.h"

#define LAYER_PARTS(X) X(gemms, "GEMMs") X(mixing, "attention, states") X(memory, "memory-bound ops")
struct layer_time {
#define X(name, text) double name;
    LAYER_PARTS(X)
#undef X
};
double layer_time_sum(const struct layer_time *t);
void layer_time_add(struct layer_time *t, const struct layer_time *more, double times);

/* Seconds of the passes. recompute: what the recompute policy computes again before backward; wgrad: the part of
 * backward's GEMMs that computes weight gradients. */
struct layer_times {
    struct layer_time forward, backward, recompute;
    double wgrad;
    struct layer_edge { double forward, dgrad, wgrad; } enter, leave; /* GEMMs that read the residual stream, and
                                                                         that write it; mean over the branches */
};
/* train.precision=fp8: a linear of a layer whose GEMMs read codes, and which op makes the codes of its input and of its
 * output's gradient: a pass of their own, a norm (forward, backward), or SwiGLU. */
enum codes_by { CODES_BY_PASS, CODES_BY_NORM, CODES_BY_SWIGLU };
struct layer_linear {
    int64_t in, out;                /* of one expert's matrix, with copies > 0 */
    enum codes_by x, dy;
    double copies;                  /* experts: rows that a token has among all; 0: no experts */
    bool by_token;                  /* experts: codes of x are made by token and gathered (up); else of dy (down) */
};
enum { LAYER_LINEARS_MAX = 12 };
struct layer_fp8 {
    int count;                      /* 0: all GEMMs are bf16 */
    struct layer_linear linears[LAYER_LINEARS_MAX];
    bool wgrad;                     /* false: weight gradients are bf16 GEMMs (fp8.wgrad) */
    /* RECIPE_CURRENT: operands are rounded for each GEMM (tensor/current_linears.h), by passes of their own. */
    bool current;
    enum block_format x, w, dy;
    bool up, down, qkv;             /* these are among the linears, so no epilogue is fused with them */
};
/* Modules that backward recomputes in addition to the recompute policy (plan/assume.def). */
struct layer_extra_recompute { bool core_attn, layernorm, mla_up_proj, mlp, moe, shared_experts; };
struct layer_shape {
    const struct model_spec *model; /* the rank's own */
    const struct machine *machine;
    enum precision precision;
    struct layer_fp8 fp8;           /* of the layer that is timed */
    enum recompute recompute;
    struct layer_extra_recompute extra_recompute;
    double gemms;                   /* factor on the rate of the layers' GEMMs; 0: 1 */
    double imbalance;               /* moe: tokens of the fullest expert over the mean; 0: 1 */
    int64_t tokens, sequence;       /* tokens of a micro-batch; maximum keys */
    int64_t stream;                 /* residual stream rows of this rank: tokens / tp with sequence parallelism */
    int context;                    /* context-parallel ranks: latent attention forms keys of all their rows; 0: 1 */
    int experts;                    /* of this rank; 0: all of the model's */
};
struct layer_times layer_times_of(const struct layer_shape *s, int64_t layer);
/* Output head and loss; all of it is counted in backward. heads: 1 + MTP modules. */
struct layer_times layer_times_head(const struct layer_shape *s, int heads);
struct layer_times layer_times_embed(const struct layer_shape *s);

/* Seconds per step to make the codes of one weight of `count` elements: their amax, then codes and transposed codes. */
double layer_times_codes(const struct machine *m, double count);

/* Seconds of Muon's GEMMs for the matrices of a layer: 5 (4 n^2 k + 2 n^3) FLOPs each; n is the shorter side
 * (optim/muon.h). */
double layer_times_muon(const struct layer_shape *s, int64_t layer);

/* The GEMMs of a layer's mixer, then those of its feed-forward part. Returns their number. */
int layer_gemms(const struct model_spec *m, int64_t layer, struct layer_gemm out[LAYER_GEMMS_MAX]);
#endif
