/* The ops of mixtures of experts (Shazeer et al., arXiv:1701.06538; routers as in Qwen3 and DeepSeek-V3, arXiv:2412.19437).
 * Included by ops.h; its conventions hold. Nothing here is read by the host: how many rows an expert has stays on the device.
 *
 * Slot t*k + j is the j-th choice of token t. Slots are sorted by expert, within an expert by token:
 *
 *   offsets[e]              offsets[e] + counts[e]     offsets[e+1]          a multiple of `align`
 *   | rows of expert e, by t | padding up to `align`   | rows of expert e+1 ...
 *
 *   expert   [rows, k]  of each slot, best choice first          source   [rows_max] slot of each sorted row; -1: padding, also
 *   weight   [rows, k]  A, its weight                                     behind offsets[experts]
 *   place    [rows, k]  its sorted row; -1: dropped by capacity  offsets  [experts + 1], counts [experts]: rows, without padding
 *
 * Arrays "of sorted rows" are [rows_max, ...]: padding rows of an input are read into no result, those of an output become 0; what lies
 * behind offsets[experts] is neither read nor written. */
#ifndef INGOT_OPS_OPS_MOE_H
#define INGOT_OPS_OPS_MOE_H
#include "ops/accum.h"
#include "tensor/operand.h"
#include <stdbool.h>

enum { MOE_EXPERTS_MAX = 512, MOE_TOP_K_MAX = 16 };

/* Sorted rows that `rows` tokens may need: each expert's last tile may be nearly empty. */
static inline int64_t moe_rows_max(int64_t rows, int64_t top_k, int64_t experts, int64_t align)
{
    return (rows * top_k + experts * (align - 1) + align - 1) / align * align;
}

/* From logits l to choices and weights. Scores: s = softmax(l) or sigmoid(l). Choices: the k experts of the highest s + bias, of equal
 * ones the lower index, NaN as -infinity; with groups, out of the groups_kept groups whose two best s + bias have the highest sum.
 * Weights: v = s of the chosen; w = scale v / (sum of the chosen v + 1e-20) when `normalize`, else scale v. The bias is in no weight. */
enum route_score { ROUTE_SOFTMAX, ROUTE_SIGMOID };
struct route_rule {
    enum route_score score;
    int64_t experts, top_k;
    int64_t groups, groups_kept;    /* groups divides experts; 1, 1: no groups; top_k fits into the groups kept */
    bool normalize;
    double scale;
};
struct route_fwd_args {
    const void *logits;             /* [rows, experts] A */
    const void *bias;               /* [experts] A; NULL: none */
    struct route_rule rule;
    int64_t rows;
    int64_t capacity;               /* rows that an expert takes, the first tokens before the last; 0: all */
    int64_t align;                  /* a multiple of the set's expert_align */
    int32_t *expert;                /* [rows, k] = */
    void *weight;                   /* [rows, k] A = */
    int32_t *place;                 /* [rows, k] = */
    int32_t *source;                /* [moe_rows_max] = */
    int32_t *offsets, *counts;      /* [experts + 1], [experts] = */
    int32_t *demand;                /* [experts] =: slots that chose the expert, dropped ones too */
    void *scratch;                  /* moe_scratch(MOE_ROUTE_FWD) */
    dtype dt;
};

/* dl = the backward of the weights, plus grad_scale times the gradient of sum over t of
 *   cost_t = aux sum_e (experts c_e / (k T)) q_te + z lse_t^2,    q_t = s_t / sum_e s_te (softmax: s_t),    lse_t = log sum exp l_t
 * where c_e counts the slots that chose e among T tokens: those of the call (ROUTE_AUX_SWITCH: Fedus et al., arXiv:2101.03961) or of the
 * token's document (ROUTE_AUX_SEQUENCE: DeepSeek-V3). c has no gradient. dweight of a dropped slot is not read: it is 0. */
enum route_aux { ROUTE_AUX_SWITCH, ROUTE_AUX_SEQUENCE };
struct route_bwd_args {
    const void *dweight;            /* [rows, k] A */
    const void *logits;
    const int32_t *expert, *place, *demand;
    struct route_rule rule;
    int64_t rows;
    enum route_aux aux_kind;
    double aux, z;                  /* coefficients; 0: none */
    const double *grad_scale;       /* one value, in the set's memory; read only with aux or z. NULL: 0: costs, whose gradient another forms */
    const int32_t *cu_seqlens;      /* ROUTE_AUX_SEQUENCE: docs + 1; else not read */
    int64_t docs;
    void *dlogits;                  /* [rows, experts] dt = */
    void *cost;                     /* [rows] A = cost_t; NULL: not wanted */
    void *load;                     /* [experts] A += demand: here, for evaluation and recomputation come by without; NULL: nobody counts */
    void *scratch;                  /* moe_scratch(MOE_ROUTE_BWD) */
    dtype dt;
};

/* The GEMMs of all experts, one matrix b_e [n, k] each. row(r) = source[r] / top_k, a row per token, of the operand that `gather`
 * names, else r.
 *   FWD    c[r, n] =  a[row(r), k] b_e^T        gather: NONE or A
 *   DGRAD  c[r, k] =  a[row(r), n] b_e          gather: NONE or A
 *   WGRAD  c_e[n, k] = or += sum over the rows r of e of a[row(r), n]^T b[row(r), k];  an expert without rows: zeros, or unchanged */
enum expert_product { EXPERT_FWD, EXPERT_DGRAD, EXPERT_WGRAD };
enum expert_gather { EXPERT_GATHER_NONE, EXPERT_GATHER_A, EXPERT_GATHER_B /* WGRAD alone */ };
struct expert_gemm_args {
    enum expert_product product;
    enum expert_gather gather;
    struct operand a, b;            /* dt; trans is not read: `product` says the forms */
    void *c;                        /* dt; WGRAD: A */
    const int32_t *source, *offsets, *counts;
    int64_t rows, top_k, experts;   /* tokens; sorted rows are at most moe_rows_max of them and `align` */
    int64_t n, k, align;
    enum accum accum;               /* WGRAD; else ACCUM_STORE */
    void *scratch;                  /* moe_scratch(MOE_PRODUCT) */
    dtype dt;
};
/* dt, after a check that both operands are of it: a set that reads their data asks this first. */
static inline dtype expert_gemm_dt(const struct expert_gemm_args *a)
{
    const dtype dt = operands_dt(a->a, a->b);
    CHECK(dt == a->dt, "operands of experts in %s, their GEMM in %s", dtype_name(dt), dtype_name(a->dt));
    return dt;
}

/* m = w silu(gate) up per sorted row, up's row = [gate: f | up: f], w = weight[source[r]]. */
struct expert_act_fwd_args {
    const void *up;                 /* sorted rows [2 f] dt */
    void *m;                        /* sorted rows [f] dt = */
    const void *weight;             /* [rows, k] A */
    const int32_t *source, *offsets;
    int64_t rows, top_k, experts, f, align;
    dtype dt;
};
struct expert_act_bwd_args {
    const void *dm, *up, *weight;
    const int32_t *source, *offsets;
    void *dup;                      /* sorted rows [2 f] dt =; may be up's memory */
    void *m;                        /* sorted rows [f] dt =: forward's result once more, the same bits; may be dm's memory */
    void *dweight;                  /* [rows, k] A =: of each slot that has a row; of the others nothing is written */
    int64_t rows, top_k, experts, f, align;
    dtype dt;
};

/* y[t] = sigmoid(gate[t]) base[t] + x[place[t, 0]] + ... + x[place[t, k-1]], in this order in A, rounded once. Forward: x = what the
 * experts give, base = the shared expert. Backward: x = their gradients, base = the other ones of y. */
struct combine_args {
    const void *x;                  /* sorted rows [d] dt */
    const int32_t *place;           /* [rows, k] */
    const void *base;               /* [rows, d] base_dt; NULL: 0 */
    const void *gate;               /* [rows] A; NULL: 1 */
    void *y;                        /* [rows, d] dt =; may be base's memory when base_dt is dt */
    int64_t rows, top_k, d;
    dtype dt, base_dt;              /* base_dt: dt or A */
};
/* The gate of combine: dbase = sigmoid(gate) dy;  dgate = sigmoid'(gate) <dy, base>. */
struct combine_gate_bwd_args {
    const void *dy, *base;          /* [rows, d] dt */
    const void *gate;               /* [rows] A */
    void *dbase;                    /* [rows, d] dt =; may be base's memory */
    void *dgate;                    /* [rows] dt = */
    int64_t rows, d;
    dtype dt;
};

/* Balancing without a loss (Wang et al., arXiv:2408.15664), once per step, for each router: with the slots c_e of the step in `load`,
 *   b_e += rate sign(mean(c) - c_e), sign(0) = 0;   c = 0;   scalars: load_max, load_min = of all c_e / mean(c)
 * Routers without slots are left out; if grad_norm is not finite (ops.h: update), nothing changes. */
struct balance_args {
    float *bias, *load;             /* flat arrays, as update's p and g; a row's element i has bias[i - no_v] */
    const struct update_chunk *rows;    /* [row_count], in the set's memory: one per router, at most MOE_EXPERTS_MAX elements each */
    int64_t row_count;
    double rate;
    struct step_scalars *scalars;   /* in the set's memory */
};

/* What a set needs during one of these ops. Pure, as attn_scratch. MOE_PRODUCT: gathered rows have d elements at most. */
enum moe_memory { MOE_ROUTE_FWD, MOE_ROUTE_BWD, MOE_PRODUCT };
struct moe_shape {
    int64_t rows, experts, top_k, d, f, docs;   /* tokens; width and inner width; documents at most, 0: no ROUTE_AUX_SEQUENCE */
    dtype dt;
};
#endif
