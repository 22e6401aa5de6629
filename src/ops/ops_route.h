/* Routers of mixtures of experts: a part of ops_moe.h, which says how slots are sorted. */
#ifndef INGOT_OPS_OPS_ROUTE_H
#define INGOT_OPS_OPS_ROUTE_H
#include "tensor/dtype.h"
#include <stdbool.h>
#include <stdint.h>

/* Routing: from logits l to choices and weights. Scores: s = softmax(l) or sigmoid(l). Choices: the k experts with
 * the highest s + bias; ties go to the lower index; NaN counts as -infinity. With groups, only the groups_kept groups
 * with the highest sum of their two best s + bias are considered. Weights: v = s of the chosen experts; w = scale v /
 * (sum of the chosen v + 1e-20) with `normalize`, else scale v. The bias affects choices, not weights. */
enum route_score { ROUTE_SOFTMAX, ROUTE_SIGMOID };
struct route_rule {
    enum route_score score;
    int64_t experts, top_k;
    int64_t groups, groups_kept;    /* groups divides experts; 1, 1: no groups; top_k experts must fit in the groups
                                       kept */
    bool normalize;
    double scale;
};
/* Context parallelism: the rows of a call are a rank's part of a micro-batch: of each sequence of `length` tokens, two
 * chunks (parallel/context.h). What is counted over the micro-batch is counted over all ranks' choices. */
struct route_whole {
    const int32_t *expert;          /* [rows, k] of the whole micro-batch, in the order of sequences */
    int64_t rows, length;
    int rank, ranks;
    const int32_t *cu_seqlens;      /* documents of the whole micro-batch; read by route_bwd */
    int64_t docs;
};
/* The token of the micro-batch that a row of the call is. It grows with the row. */
static inline int64_t route_token_of(const struct route_whole *w, int64_t row)
{
    const int64_t share = w->length / w->ranks, chunk = share / 2, at = row % share;
    const int64_t which = at < chunk ? w->rank : 2 * w->ranks - 1 - w->rank;
    return row / share * w->length + which * chunk + at % chunk;
}
/* The document of a token: the last that begins at or before it, after empty ones. */
static inline int64_t route_document_of(const int32_t *cu_seqlens, int64_t docs, int64_t token)
{
    int64_t low = 0, high = docs;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (cu_seqlens[middle] <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* CHOOSE fills expert and weight; PLACE, from expert, all the rest. */
enum route_part { ROUTE_ALL, ROUTE_CHOOSE, ROUTE_PLACE };
struct route_fwd_args {
    enum route_part part;
    const struct route_whole *whole; /* PLACE with a capacity: of whose tokens the first fit; NULL: the call's */
    const void *logits;             /* [rows, experts] A */
    const void *bias;               /* [experts] A; NULL: none */
    struct route_rule rule;
    int64_t rows;
    int64_t capacity;               /* maximum rows of an expert, first tokens first; 0: unlimited */
    int64_t align;                  /* where experts read the result, a multiple of the set's expert_align */
    int32_t *expert;                /* [rows, k] = */
    void *weight;                   /* [rows, k] A = */
    int32_t *place;                 /* [rows, k] = */
    int32_t *source;                /* [moe_rows_max] = */
    int32_t *offsets, *counts;      /* [experts + 1], [experts] = */
    int32_t *demand;                /* [experts] =: slots that chose the expert, including dropped ones */
    void *scratch;                  /* moe_scratch(MOE_ROUTE_FWD) */
    dtype dt;
};

/* dl = the backward of the weights, plus grad_scale times the gradient of the sum over t of
 *   cost_t = aux sum_e (experts c_e / (k T)) q_te + z lse_t^2
 *   q_t = s_t / sum_e s_te (softmax: s_t),    lse_t = log sum exp l_t
 * c_e counts the slots that chose e among T tokens: those of the call (ROUTE_AUX_SWITCH: Fedus et al.,
 * arXiv:2101.03961) or of the token's document (ROUTE_AUX_SEQUENCE: DeepSeek-V3). c has no gradient. dweight of a
 * dropped slot is not read; it counts as 0. */
enum route_aux { ROUTE_AUX_SWITCH, ROUTE_AUX_SEQUENCE };
struct route_bwd_args {
    const struct route_whole *whole; /* with aux: whose choices c counts; NULL: the call's */
    const void *dweight;            /* [rows, k] A */
    const void *logits;
    const int32_t *expert, *place, *demand;
    struct route_rule rule;
    int64_t rows;
    enum route_aux aux_kind;
    double aux, z;                  /* coefficients; 0: none */
    const double *grad_scale;       /* one value in the set's memory, read only with aux or z; NULL: 0: costs only,
                                       another rank adds their gradient */
    const int32_t *cu_seqlens;      /* ROUTE_AUX_SEQUENCE: docs + 1, of the call's rows; else not read */
    int64_t docs;
    void *dlogits;                  /* [rows, experts] dt = */
    void *cost;                     /* [rows] A = cost_t; NULL: not stored */
    void *load;                     /* [experts] A += demand. Counted here because evaluation and recomputation do
                                       not run it; NULL: not counted */
    double *dropped;                /* [2] in the set's memory += slots without a place, all slots; NULL: not counted */
    void *scratch;                  /* moe_scratch(MOE_ROUTE_BWD) */
    dtype dt;
};
#endif
