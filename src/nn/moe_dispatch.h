/* moe_dispatch: expert parallelism (parallel/mesh.h: ep). Each rank routes its own tokens, sends each chosen row to the
 * rank that has the expert, and gets the expert's output back. Dropless: every buffer has room for the worst case.
 *
 *   forward    rows of y -> | experts | -> outputs
 *   backward   rows of dout -> | experts | -> gradients of rows of y, and of weights
 *
 * Slots of a rank are sorted by expert (ops_moe.h), so those of one rank are consecutive: that is the order of what is
 * sent, and of what comes back. Rows arrive rank by rank; `source` and `place` sort them by expert, within an expert by
 * rank, within a rank by token. A row is a token of its own here: top_k of the expert ops is 1.
 *
 * S: rows that may arrive, ranks N min(k, experts of a rank), or with model.moe_capacity what that lets pass.
 *
 *   tensor       shape       dtype  memory
 *   every        [ranks, E]  i32    act                      rows of each rank for each expert
 *   pairs     [2 ranks, ranks] i64  act                      rows from each rank to each; the same transposed
 *   source       [S']        i32    act                      arrived row of each sorted row; S': S with padding
 *   place        [S]         i32    act                      sorted row of each arrived one
 *   offsets, counts          i32    act                      as in ops_moe.h (dispatch_sort), of this rank's experts
 *   weight       [S]         A      act
 *   rows         [S, D]      dt     act; scratch under full  rows of y that arrived
 *   back         [S, D]      dt     scratch                  arrived rows of dout; outputs in the order of arrival
 *   sent         [N k, D]    dt     scratch                  rows to send; rows that came back
 *   tokens       [N k]       i32    act                      token of each row to send
 *   sent_weight  [N k]       A      scratch                  weights to send; gradients that came back
 *   dweight      [S]         A      scratch of backward
 *
 * Communication per layer, in bytes of a rank: forward 2, backward 2 times N k D dt (ranks - 1) / ranks, if all experts
 * are chosen alike; recompute full: forward's first again. */
#ifndef INGOT_NN_MOE_DISPATCH_H
#define INGOT_NN_MOE_DISPATCH_H
#include "parallel/exec.h"

struct dispatch_shape {
    int ranks;
    int64_t experts, top_k, d;  /* experts: number on all ranks */
    int64_t n;                  /* number of tokens of this rank */
    int context;                /* number of context-parallel ranks, whose micro-batch the capacity refers to; 0: 1 */
    double capacity;            /* model.moe_capacity; 0: dropless */
};
struct dispatch {
    struct dispatch_shape shape;
    struct tensor every, pairs, source, place, offsets, counts, weight, rows, back, sent, tokens, sent_weight, dweight;
};
/* The routing of this rank's tokens, with align 1. */
struct dispatch_route {
    const int32_t *source, *place, *counts;
    const void *weight;         /* [N, k] A */
    int64_t slots;              /* N k */
};

/* S, the number of rows that may arrive. */
int64_t dispatch_rows_max(const struct dispatch_shape *s);
/* S', the number of sorted rows if each expert's rows begin at a multiple of `align`. */
int64_t dispatch_sorted_max(const struct dispatch_shape *s, int64_t align);
void dispatch_layout(struct dispatch *s, const struct dispatch_shape *shape, const struct layout *l);
/* Number of rows that arrive, after dispatch_begin. If the host does not know it: the number that may arrive. */
int64_t dispatch_arrived(const struct dispatch *s, const struct exec *r);
/* Where the device has their number (combine_args.count). */
const int32_t *dispatch_count(const struct dispatch *s);
/* Exchanges the counts and the weights. Call it before all functions below. */
status dispatch_begin(struct dispatch *s, const struct dispatch_route *route, const struct exec *r) WARN_UNUSED;
/* Sends the rows of x [N, D] to the experts, into `to`, which is s->rows or s->back. `name` as in comm.h. */
status dispatch_rows(const struct dispatch *s, const struct dispatch_route *route, const char *name, struct tensor x,
                     struct tensor to, const struct exec *r) WARN_UNUSED;
/* Sends the experts' rows, sorted [S, D], back to their tokens, into s->sent, in the slots' order. Overwrites
 * s->back. */
status dispatch_return(const struct dispatch *s, const char *name, struct tensor sorted,
                       const struct exec *r) WARN_UNUSED;
/* Sends s->dweight back to the slots, into to [N, k]; dropped slots get 0. */
status dispatch_return_weights(const struct dispatch *s, const struct dispatch_route *route, void *to,
                               const struct exec *r) WARN_UNUSED;
#endif
