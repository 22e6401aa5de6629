/* pipeline: a rank's part of a step when the layers are cut into stages: the interpreter of the schedule of parallel/pipeline_schedule.h.
 *
 * An action waits for its message, computes (model/stage.h), and sends. Micro-batches are taken in the order in which one rank takes them,
 * group by group (parallel/sync.h), so gradients and losses are the same sums; ranks agree on loss, norm and loads afterwards. A tied table
 * is stored by the first and by the last rank, each with its half of the gradient: they are exchanged and added once per step, so that both
 * copies stay the same. One rank adds to one table in turn, which rounds otherwise. */
#ifndef INGOT_TRAIN_PIPELINE_H
#define INGOT_TRAIN_PIPELINE_H
#include "dev/dev.h"
#include "model/stage.h"
#include "parallel/pipeline_schedule.h"

enum pipeline_spent { SPENT_SPAN, SPENT_WAITED, SPENT_FORWARD, SPENT_DGRAD, SPENT_WGRAD, SPENT_ELSE, SPENT_COUNT }; /* seconds; whole B: DGRAD */
/* The border between two parts of a step, and which part it ends. On a GPU all are read when the step is over. */
struct pipeline_lap { enum pipeline_spent what; struct event at; };
struct pipeline {
    struct pipe_schedule schedule;  /* ranks == 0: no pipeline */
    size_t message;                 /* bytes */
    double spent[SPENT_COUNT];      /* of this rank, in the step at hand */
    double last;                    /* on the host: the last border */
    struct pipeline_lap *laps;      /* [lap_room], owned; on a GPU: the borders of a step, the first one its beginning */
    int lap_count, lap_room;
    double bubble;                  /* of the last step, all ranks: part of their time, from the first action of any to the last, without work */
    double total[PIPE_RANKS_MAX][SPENT_COUNT]; /* of each rank, since the run began */
    double span;                               /* of the longest of each step, likewise */
};

struct trainer;
/* For a laid out trainer; collective over its pipeline. Without one: nothing. */
status pipeline_open(struct trainer *t) WARN_UNUSED;
void pipeline_close(struct trainer *t);
/* The micro-batches of a step, forward and backward: gradients and losses of this rank's stages. */
status pipeline_fwd_bwd(struct trainer *t, int micro_count) WARN_UNUSED;
/* After the sums over data-parallel ranks: the two halves of a tied table's gradient; losses. */
status pipeline_reduce(struct trainer *t) WARN_UNUSED;
/* When a step is over: its bubble, and, where it `counts`, its times among those of the run. Collective over the pipeline. */
status pipeline_times(struct trainer *t, bool counts) WARN_UNUSED;
/* Evaluation of the batch in the feed: loss_sum and hits, on the last rank. */
status pipeline_loss(struct trainer *t) WARN_UNUSED;
/* Logs the bubble of the run so far beside the schedule's. */
void pipeline_log(const struct pipeline *p);
#endif
