/* pipeline_order: computes how long a pipeline takes, for many sets of stage times. The result equals that of
 * pipeline_simulate with unlimited mailboxes, bit for bit, in a fraction of its time. */
#ifndef INGOT_PARALLEL_PIPELINE_ORDER_H
#define INGOT_PARALLEL_PIPELINE_ORDER_H
#include "parallel/pipeline_schedule.h"

enum { PIPELINE_PASSES = PIPELINE_W + 1 };
struct pipeline_ordered {
    int rank, takes; /* takes: index of the action's duration in `seconds` */
    int from;        /* the action whose message it receives */
};
struct pipeline_pair {
    double at[2];
}; /* times with each of two latencies */
struct pipeline_order {
    int ranks, stages;
    int depth;                        /* mailbox capacity: pipeline_schedule_depth */
    int count, most;                  /* number of actions so far, and in all; equal after pipeline_order_make */
    struct pipeline_ordered *actions; /* [count], owned */
    struct pipeline_pair *ended;      /* [count + 1]: when each action ends; the last entry means "no message"; owned */
    double *seconds;                  /* [stages][PIPELINE_PASSES], owned */
};

/* Orders the actions of a checked schedule. Errors are those of pipeline_simulate. Call pipeline_order_free after
 * success and failure. */
status pipeline_order_make(struct pipeline_order *o, const struct pipeline_schedule *s) WARN_UNUSED;
void pipeline_order_free(struct pipeline_order *o);
/* Computes the makespans with these stage times, [p v], and each of two latencies. */
void pipeline_makespans(struct pipeline_order *o, const struct pipeline_stage_time *stages,
                        const double message[2], double makespan[2]);
#endif
