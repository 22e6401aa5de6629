/* pipeline_schedule: which passes each pipeline rank runs, and in which order, as data (GPipe, 1F1B, interleaved 1F1B,
 * ZB-H1).
 *
 * The layers are cut into stages. Stage s is chunk s / p of rank s mod p; a rank has v chunks (v > 1 under the
 * interleaved schedule only). A micro-batch passes the stages forward (F), then backward (B). The backward may be
 * split: gradients of inputs (BI), which the previous stage waits for, and gradients of weights (W), which no stage
 * waits for.
 *
 *   schedule      order of rank i                            bubble of a rank       micro-batches held
 *   GPipe         all F, then all B                          (p - 1) (F + B)        m
 *   1F1B          p - i - 1 times F, then F and B alternate  (p - 1) (F + B)        p - i
 *   interleaved   the same over chunks, in groups of N >= p  (p - 1) (F + B) / v    (2 (p - i - 1) + (v - 1) N + 1) / v
 *   ZB-H1         1F1B with BI, each W i micro-batches late  (p - 1) (F + BI - W)   p - i, and i + 1 between BI and W
 *
 * The formulas hold for equal stages; F, B, BI and W are times of all chunks of a rank (ZB-H1: W <= F, W <= BI, m >= 2
 * p). (GPipe: arXiv:1811.06965; 1F1B: arXiv:2006.09503; interleaved: arXiv:2104.04473; ZB-H1: arXiv:2401.10241.) In
 * every schedule each chunk runs the micro-batches in ascending order, in F, in B and in W. So its gradients are the
 * same sums that one rank forms.
 *
 * Ranks form a ring. Outputs are sent to the next rank, gradients of inputs to the previous one; the last rank sends to
 * rank 0, for the next chunk. An action that needs a message takes the oldest one of its direction before it starts. */
#ifndef INGOT_PARALLEL_PIPELINE_SCHEDULE_H
#define INGOT_PARALLEL_PIPELINE_SCHEDULE_H
#include "base/status.h"
#include "spec/spec.h"

enum pipeline_pass { PIPELINE_F, PIPELINE_B, PIPELINE_BI, PIPELINE_W };
enum { PIPELINE_RANKS_MAX = 256 };

struct pipeline_action {
    enum pipeline_pass what;
    int micro, chunk;
    int slot;                       /* F, B, BI: which of the rank's sets of activations it uses */
    int store;                      /* BI, W: which of the rank's stores of operands for delayed weight-gradient GEMMs
                                       it uses. pipeline_schedule_check assigns slot and store */
};
struct pipeline_rank {
    struct pipeline_action *actions;    /* [count], owned */
    int count;
    int slots, stores;              /* maximum number in use at once. A slot is in use from F to B or BI, a store from
                                       BI to W */
};
struct pipeline_schedule {
    enum pipeline_kind kind;
    int ranks, micros, chunks;      /* p, m, v */
    int group;                      /* N: micro-batches that a chunk runs before the next chunk starts */
    struct pipeline_rank rank[PIPELINE_RANKS_MAX];
};

/* STATUS_CONFIG, in one line, for numbers that no schedule supports. Call pipeline_schedule_free after success and
 * failure. */
status pipeline_schedule_build(struct pipeline_schedule *s, enum pipeline_kind kind, int ranks, int micros,
                               int chunks) WARN_UNUSED;
/* N for m micro-batches: the smallest group without a remainder, or with one that keeps all ranks busy. */
int pipeline_schedule_group(int ranks, int micros);
void pipeline_schedule_free(struct pipeline_schedule *s);
/* Checks that each rank runs every pass once and after the passes it depends on; assigns slots and stores.
 * STATUS_CONFIG names the rank and the action. */
status pipeline_schedule_check(struct pipeline_schedule *s) WARN_UNUSED;

struct pipeline_stage_time { double forward, dgrad, wgrad; }; /* seconds of a stage; B takes dgrad + wgrad */
struct pipeline_simulate_args {
    const struct pipeline_stage_time *stages; /* [p v] */
    double message;                 /* latency: from the end of an action to the arrival */
    int depth;                      /* capacity of a mailbox: unread messages per direction; 0: unlimited */
    /* Returns how long this action takes, given its start time and its duration by `stages`. Called once per action, in
     * each rank's order. NULL: durations are those of `stages`. */
    double (*takes)(void *ctx, int rank, const struct pipeline_action *a, double start, double seconds);
    void *ctx;
};
struct pipeline_simulated {
    double makespan;
    double bubble;                  /* fraction of the ranks' time without compute */
    double waited[PIPELINE_RANKS_MAX];  /* each rank's wait for messages, mailbox space, and the other ranks' end */
    int unread;                     /* maximum number of messages of one direction that were unread at once */
};
/* Simulates all ranks of a checked schedule. STATUS_CONFIG on deadlock, or when a rank receives a message that it does
 * not expect: names the rank, the action and the message. The result does not depend on times, so one run proves it for
 * a depth. */
status pipeline_simulate(const struct pipeline_schedule *s, const struct pipeline_simulate_args *a,
                         struct pipeline_simulated *out) WARN_UNUSED;
/* Mailbox capacity per direction that the schedule needs: the unread messages of a simulation with equal stages, plus
 * one for stages that are not equal. With it no rank waits for space, and there is no deadlock. */
status pipeline_schedule_depth(const struct pipeline_schedule *s, int *depth) WARN_UNUSED;
#endif
