/* Ops beside the experts: rows that go to the ranks of other experts, and the balance of their load. Included by
 * ops_moe.h, which defines the order of slots and its arrays. */
#ifndef INGOT_OPS_OPS_DISPATCH_H
#define INGOT_OPS_OPS_DISPATCH_H
#include <stdint.h>

struct update_chunk;
struct step_scalars;

/* Expert parallelism (nn/moe_dispatch.h): every rank sends its slots, sorted by expert, to the ranks of the experts,
 * each of which has experts / ranks of them. Rows arrive rank by rank, of a rank by expert, then by token. Experts read
 * them by expert, then by rank, then by token. */
struct dispatch_sort_args {
    const int32_t *every;           /* [ranks, experts] rows of each rank for each expert */
    const int32_t *slots;           /* [slot_count] `source` of route_fwd with align 1 */
    int64_t ranks, rank, experts, top_k, slot_count;    /* ranks divides experts */
    int64_t align;                  /* a multiple of the set's expert_align */
    int64_t *pairs;                 /* [2, ranks, ranks] =: rows from each rank to each; the same transposed */
    int32_t *tokens;                /* [slot_count] =: token of each row that is sent; -1: no row */
    int32_t *source;                /* of sorted rows =: arrived row; -1: padding */
    int32_t *place;                 /* of arrived rows =: sorted row */
    int32_t *offsets;               /* [experts / ranks + 1] =, as above */
    int32_t *counts;                /* [experts / ranks] =, and behind them how many rows arrived */
};

/* Loss-free balancing (Wang et al., arXiv:2408.15664), once per step and router. With the step's slot counts c_e in
 * `load`:
 *   b_e += rate sign(mean(c) - c_e), sign(0) = 0;   c = 0
 *   scalars: load_max, load_min = maximum and minimum over all c_e / mean(c)
 * Routers without slots are skipped. If grad_norm is not finite (ops.h: update), nothing changes. */
struct balance_args {
    float *bias, *load;             /* flat arrays, as p and g of update; element i of a row has bias[i - v_offset] */
    const struct update_chunk *rows;    /* [row_count], in the set's memory: one per router, with at most
                                           MOE_EXPERTS_MAX elements */
    int64_t row_count;
    double rate;
    struct step_scalars *scalars;   /* in the set's memory */
};
#endif
