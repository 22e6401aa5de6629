/* sync: what several micro-batches and several ranks add to a gradient: sums in an order that does not depend on how many ranks there are.
 *
 * The micro-batches of a step are dealt into G groups: number i belongs to group i mod G. Each group is summed in its own order, and
 * the groups by one rule: those with even numbers plus those with odd numbers, each by the same rule. With R ranks, rank r has the
 * micro-batches, and so the groups, that are r modulo R: it forms its part of the same tree (sync_fold), and comm_sum the rest. So
 * with the same G (train.gradient_groups), gradients and losses are the same bits for 1, 2, 4, ... G ranks. One rank with G groups keeps
 * log2(G) more gradients; with a group per rank, which is the default, nobody keeps any.
 *
 * Ranks that are the deepest level of the tree instead (parallel/zero.h) have micro-batches r n to r n + n - 1 of n R = G.
 *
 * G = m 2^k with m odd: such a tree for each residue modulo m, of the micro-batches that have it, and the m sums are added one after
 * the other. That is the same order for one rank and for ranks that are the deepest level, up to 2^k of them; ranks that come last need
 * G / R to be a power of two. */
#ifndef INGOT_PARALLEL_SYNC_H
#define INGOT_PARALLEL_SYNC_H
#include "base/arena.h"
#include "ops/ops.h"
#include "parallel/mesh.h"
#include "tensor/params.h"

enum { SYNC_LOSSES = 4 };
struct sync {
    const struct mesh *mesh;    /* not owned; NULL: one rank */
    int groups;                 /* of this rank: */
    int levels, trees;          /* trees 2^levels, trees odd */
    int64_t total;              /* elements of a gradient, or of its part that is here (parallel/zero.h) */
    float *grads;               /* [sync_pending][total] sums that wait: for their other half, and for the next tree */
    double *losses;             /* [sync_pending][SYNC_LOSSES] likewise, in the set's memory */
    void *scratch;              /* of the largest unit on its way */
};

/* Where in the tree ranks are added to each other: last, once per step; or first, in every micro-batch. */
enum sync_place { SYNC_LAST, SYNC_FIRST };
/* STATUS_CONFIG when G groups (0: a group per rank) cannot be dealt to the ranks, or micro-batches of a step to the groups. */
status sync_check(int64_t groups, int64_t micro_count, int ranks, enum sync_place place) WARN_UNUSED;
/* Gradients that wait, most of all at once, where a rank sums so many groups. */
int sync_pending(int64_t groups);
/* Takes the memory, counting or real, for checked numbers. */
void sync_lay(struct sync *s, const struct mesh *mesh, int64_t groups, const struct params *p, struct arena *a);

/* The k-th group to do: micro-batches sync_group(s, k), + groups, + 2 groups, ... of this rank. */
int sync_group(const struct sync *s, int k);
struct sync_sums {
    float *grad;                /* [total] */
    double *losses;             /* [SYNC_LOSSES]: loss_sum, aux_sum, mtp_loss_sum and halt_sum of the step's scalars */
};
/* After the k-th group: its sums take their place in the tree. Zero afterwards, but for the last group: then they are this rank's. */
status sync_fold(const struct sync *s, int k, const struct sync_sums *sums, const struct ops *ops, dev_stream stream) WARN_UNUSED;
/* The same for `count` elements of the gradient from `begin` on, with or without (sums->losses NULL) the losses: parts of a model whose
 * groups end at different times. */
struct sync_part { int64_t begin, count; };
status sync_fold_part(const struct sync *s, int k, const struct sync_part *part, const struct sync_sums *sums, const struct ops *ops,
                      dev_stream stream) WARN_UNUSED;
/* The sums of all ranks, on each of them, or on each the part that is its own. */
status sync_unit(const struct sync *s, const struct params *p, int unit, dev_stream stream) WARN_UNUSED;
status sync_losses(const struct sync *s, double *losses, dev_stream stream) WARN_UNUSED;
#endif
