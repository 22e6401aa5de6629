/* grad_reduce: gradient accumulation over micro-batches, and the gradient all-reduce over data-parallel ranks, as one
 * tree of sums.
 *
 * The same train.gradient_groups G gives the same bits of gradients and losses on 1, 2, 4, ... G ranks:
 *   - The micro-batches of a step form G groups. Micro-batch i belongs to group i mod G.
 *   - A group adds its micro-batches in order.
 *   - Groups are added as a tree: the even groups (by the same rule) plus the odd groups (by the same rule).
 *   - Rank r of R holds the groups that are r modulo R. It computes its part of the tree (grad_reduce_accumulate);
 *     comm_all_reduce computes the rest.
 *
 * Context-parallel ranks work on the same groups; their sums are a part of the tree over dp x cp ranks.
 *
 * One rank with G groups buffers log2(G) more gradients. One group per rank, the default, needs no buffer.
 *
 * Under ZeRO 2 and 3 (parallel/zero.h) ranks are the deepest level of the tree instead of the last: rank r holds
 * micro-batches r n to r n + n - 1, with n R = G.
 *
 * If G = m 2^k with m odd, there is one such tree for each residue modulo m, and the m results are added in order. One
 * rank and ranks at the deepest level (at most 2^k of them) then have the same order. Ranks at the last level need G /
 * R to be a power of two. */
#ifndef INGOT_PARALLEL_GRAD_REDUCE_H
#define INGOT_PARALLEL_GRAD_REDUCE_H
#include "base/arena.h"
#include "ops/ops.h"
#include "parallel/mesh.h"
#include "tensor/params.h"

enum { GRAD_REDUCE_LOSSES = 7 };
struct grad_reduce {
    const struct mesh *mesh;    /* not owned; NULL: one rank */
    int groups;                 /* number of groups of this rank */
    int levels, trees;          /* groups == trees * 2^levels, with `trees` odd */
    int64_t total;              /* number of elements of a gradient, or of this rank's shard of it (parallel/zero.h) */
    float *grads;               /* [grad_reduce_pending][total] partial sums: one per level, and the sum of the trees so
                                   far */
    double *losses;             /* [grad_reduce_pending][GRAD_REDUCE_LOSSES] partial sums of losses, in the op set's
                                   memory */
    void *scratch;              /* for the all-reduce or reduce-scatter of the largest unit */
};

/* Where ranks are added in the tree: last, once per step; or first, in every micro-batch. */
enum grad_reduce_place { GRAD_REDUCE_LAST, GRAD_REDUCE_FIRST };
/* STATUS_CONFIG when the ranks do not divide G groups (0: one per rank), or the groups do not divide the micro-batches
 * of a step. */
status grad_reduce_check(int64_t groups, int64_t micro_count, int ranks, enum grad_reduce_place place) WARN_UNUSED;
/* Number of gradients that a rank with so many groups must buffer. */
int grad_reduce_pending(int64_t groups);
/* Allocates the buffers, from counting or real arenas, for checked numbers. */
void grad_reduce_layout(struct grad_reduce *s, const struct mesh *mesh, int64_t groups, const struct params *p,
                        struct arena *a);

/* The k-th group to compute: micro-batches grad_reduce_group(s, k), + groups, + 2 groups, ... of this rank. */
int grad_reduce_group(const struct grad_reduce *s, int k);
struct grad_reduce_sums {
    float *grad;                /* [total] */
    double *losses;             /* [GRAD_REDUCE_LOSSES]: loss_sum to dropped_sum of the step's scalars */
};
/* Call after the k-th group: adds its sums to the tree, and sets them to zero; after the last group it sets them to
 * this rank's totals. */
status grad_reduce_accumulate(const struct grad_reduce *s, int k, const struct grad_reduce_sums *sums,
                              const struct ops *ops, dev_stream stream) WARN_UNUSED;
/* The same for `count` elements of the gradient from `begin` on, and for the losses unless sums->losses is NULL: for
 * parts of a model whose groups end at different times. */
struct grad_reduce_part { int64_t begin, count; };
status grad_reduce_accumulate_part(const struct grad_reduce *s, int k, const struct grad_reduce_part *part,
                                   const struct grad_reduce_sums *sums, const struct ops *ops,
                                   dev_stream stream) WARN_UNUSED;
/* All-reduces the gradient of a unit over the dp x cp ranks. Under ZeRO: reduce-scatters it, so each rank gets
 * its shard. */
status grad_reduce_unit(const struct grad_reduce *s, const struct params *p, int unit, dev_stream stream) WARN_UNUSED;
status grad_reduce_losses(const struct grad_reduce *s, double *losses, dev_stream stream) WARN_UNUSED;
#endif
