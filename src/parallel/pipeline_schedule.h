/* pipe: what each rank of a pipeline does, and in which order, as data.
 *
 * The layers of a model are cut into stages; stage s lies on rank s mod p as its chunk s / p, of v chunks (v = 1 but for the interleaved
 * schedule). A micro-batch passes the stages forward (F), then backward (B), or backward in two halves: the gradient of the input (BI),
 * which the stage before waits for, and the gradients of the weights (W), which nobody waits for.
 *
 *   schedule       order of a rank i                                            bubble, of a rank       micro-batches held
 *   GPipe          all F, all B                                                 (p - 1) (F + B)         m
 *   1F1B           p - i - 1 times F, then F and B in turn                      (p - 1) (F + B)         p - i
 *   interleaved    the same over chunks, in groups of N >= p micro-batches      (p - 1) (F + B) / v     (2 (p - i - 1) + (v - 1) N + 1) / v
 *   ZB-H1          1F1B with BI, each W i micro-batches later                   (p - 1) (F + BI - W)    p - i, and i + 1 between BI and W
 *
 * for equal stages, F, B, BI, W being the times of all chunks of a rank (ZB-H1: W <= F, W <= BI, m >= 2 p). (GPipe: arXiv:1811.06965; 1F1B:
 * arXiv:2006.09503; interleaved: arXiv:2104.04473; ZB-H1: arXiv:2401.10241.) In every schedule, each chunk sees the micro-batches in
 * ascending order, forward, backward and in W, so that its gradients are the sums that one rank forms.
 *
 * Messages travel along the ring of ranks: outputs to the next rank, gradients of inputs to the previous one; the last rank's next is rank
 * 0, for the next chunk. Before it begins, an action with a stage in front of it takes the oldest message of its way. */
#ifndef INGOT_PARALLEL_PIPELINE_SCHEDULE_H
#define INGOT_PARALLEL_PIPELINE_SCHEDULE_H
#include "base/status.h"
#include "spec/spec.h"

enum pipe_what { PIPE_F, PIPE_B, PIPE_BI, PIPE_W };
enum { PIPE_RANKS_MAX = 64 };

struct pipe_action {
    enum pipe_what what;
    int micro, chunk;
    int slot;                       /* F, B, BI: which of the rank's sets of activations */
    int store;                      /* BI, W: which of its stores of what GEMMs of weights' gradients need. Both: pipe_check */
};
struct pipe_rank {
    struct pipe_action *actions;    /* [count], owned */
    int count;
    int slots, stores;              /* most that are used at once: micro-batches of a chunk between F and B or BI; between BI and W */
};
struct pipe_schedule {
    enum pipe kind;
    int ranks, micros, chunks;      /* p, m, v */
    int group;                      /* N: micro-batches that pass a chunk before the next chunk's turn */
    struct pipe_rank rank[PIPE_RANKS_MAX];
};

/* STATUS_CONFIG in one line when the numbers do not fit each other. pipe_free after either end. */
status pipe_build(struct pipe_schedule *s, enum pipe kind, int ranks, int micros, int chunks) WARN_UNUSED;
void pipe_free(struct pipe_schedule *s);
/* Whether each rank does everything once and in an order that its own actions allow; deals slots and stores. STATUS_CONFIG names rank and action. */
status pipe_check(struct pipe_schedule *s) WARN_UNUSED;

struct pipe_time { double forward, dgrad, wgrad; }; /* of a stage; B takes dgrad + wgrad */
struct pipe_simulate_args {
    const struct pipe_time *stages; /* [p v] */
    double message;                 /* from the end of an action to the arrival */
    int depth;                      /* messages of one way that may be unread; 0: any number */
};
struct pipe_simulated {
    double makespan;
    double bubble;                  /* part of the ranks' time in which nothing is computed */
    double waited[PIPE_RANKS_MAX];  /* of each rank, for messages and for room in mailboxes, its wait for the others at the end included */
    int unread;                     /* most messages of one way that were unread at once */
};
/* Walks all ranks of a checked schedule. STATUS_CONFIG when they wait for each other for ever, or one finds another message than it expects: names rank, action
 * and what it waits for. That does not depend on times, so one walk proves it for a depth. */
status pipe_simulate(const struct pipe_schedule *s, const struct pipe_simulate_args *a, struct pipe_simulated *out) WARN_UNUSED;
/* Unread messages of one way that mailboxes have room for: what a walk with stages of equal times has unread, and one for stages that are not
 * equal. Then nobody waits for room, and nobody can wait for ever. */
status pipe_depth(const struct pipe_schedule *s, int *depth) WARN_UNUSED;
#endif
