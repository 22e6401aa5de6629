/* sync: what several micro-batches and several ranks add to a gradient: sums in an order that does not depend on how many ranks there are.
 *
 * The micro-batches of a step are dealt into G groups: number i belongs to group i mod G. Each group is summed in its own order, and
 * the groups by one rule: those with even numbers plus those with odd numbers, each by the same rule. With R ranks, rank r has the
 * micro-batches, and so the groups, that are r modulo R: it forms its part of the same tree (sync_fold), and comm_sum the rest. So
 * with the same G (train.gradient_groups), gradients and losses are the same bits for 1, 2, 4, ... G ranks. One rank with G groups keeps
 * log2(G) more gradients; with a group per rank, which is the default, nobody keeps any. */
#ifndef INGOT_PARALLEL_SYNC_H
#define INGOT_PARALLEL_SYNC_H
#include "base/arena.h"
#include "ops/ops.h"
#include "parallel/mesh.h"

enum { SYNC_LEVELS_MAX = 10, SYNC_LOSSES = 4 };
struct sync {
    struct comm *comm;          /* not owned; NULL: one rank */
    int groups, levels;         /* of this rank: a power of two, and its logarithm */
    int64_t total;              /* elements of a gradient */
    float *grads;               /* [levels][total] sums that wait for their other half */
    double *losses;             /* [levels][SYNC_LOSSES] likewise, in the set's memory */
    void *scratch;              /* comm_sum_scratch(total, F32)*/
};

/* STATUS_CONFIG when G groups (0: a group per rank) cannot be dealt to the ranks, or micro-batches of a step to the groups. */
status sync_check(int64_t groups, int64_t micro_count, int ranks) WARN_UNUSED;
/* Takes the memory, counting or real, for checked numbers. */
void sync_lay(struct sync *s, const struct mesh *mesh, int64_t groups, int64_t total, struct arena *a);

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
/* The sums of all ranks, on each of them. Memory of the host. */
status sync_ranks(const struct sync *s, const struct sync_sums *sums) WARN_UNUSED;
#endif
