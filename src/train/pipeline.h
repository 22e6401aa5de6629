/* pipeline: runs a rank's pipeline schedule (parallel/pipeline_schedule.h) in a step: receive, compute (model/stage.h),
 * send.
 *
 * Micro-batches run in the order of one rank, group by group (parallel/grad_reduce.h). So gradients and losses are the
 * same sums. Afterwards all ranks agree on loss, norm and loads.
 *
 * An embedding that both ends read (tied, or by MTP modules) is stored by the first and by the last rank; each computes
 * part of its gradient. They all-reduce it once per step, so both copies stay equal. One rank accumulates both parts in
 * one buffer, which rounds differently. */
#ifndef INGOT_TRAIN_PIPELINE_H
#define INGOT_TRAIN_PIPELINE_H
#include "dev/dev.h"
#include "model/stage.h"
#include "parallel/pipeline_schedule.h"

/* Where the seconds of a step go; SPAN: all of them. A backward that is not split counts as DGRAD. */
enum pipeline_spent {
    SPENT_SPAN, SPENT_WAITED, SPENT_FORWARD, SPENT_DGRAD, SPENT_WGRAD, SPENT_ELSE, SPENT_COUNT
};
/* A time stamp, and what the time since the previous one was spent on. On a GPU they are read after the step. */
struct pipeline_lap { enum pipeline_spent what; struct event at; };
struct pipeline {
    struct pipeline_schedule schedule;  /* ranks == 0: no pipeline */
    size_t message;                 /* bytes */
    double spent[SPENT_COUNT];      /* by this rank, in the current step */
    double last;                    /* on the host: the last time stamp */
    struct pipeline_lap *laps;      /* [lap_capacity], owned; GPU: time stamps of a step; the first is its beginning */
    int lap_count, lap_capacity;
    double bubble;                  /* of the last step: fraction of all ranks' time without compute */
    double total[PIPELINE_RANKS_MAX][SPENT_COUNT]; /* of each rank, since the run started */
    double span;                               /* sum of the slowest rank's time of each step */
};

struct trainer;
/* After the memory is laid out; collective over the pipeline. Without a pipeline: nothing. */
status pipeline_open(struct trainer *t) WARN_UNUSED;
void pipeline_close(struct trainer *t);
/* The micro-batches of a step, forward and backward: gradients and losses of this rank's stages. */
status pipeline_fwd_bwd(struct trainer *t, int micro_count) WARN_UNUSED;
/* After the data-parallel reduction: all-reduces the tied embedding's gradient, and the losses. Without a pipeline:
 * nothing. */
status pipeline_reduce(struct trainer *t) WARN_UNUSED;
/* After a step: computes its bubble and, if it `counts`, adds its times to those of the run. Collective over the
 * pipeline. */
status pipeline_times(struct trainer *t, bool counts) WARN_UNUSED;
/* Evaluation of the batch in the feed: loss_sum and hits, on the last rank. */
status pipeline_loss(struct trainer *t) WARN_UNUSED;
/* Logs the measured bubble of the run and that of the schedule. */
void pipeline_log(const struct pipeline *p);
#endif
