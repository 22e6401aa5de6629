/* How long a pipeline takes, for many sets of times: what pipeline_simulate says of mailboxes without a limit, to the bit, in a fraction of its time. */
#ifndef INGOT_PARALLEL_PIPELINE_ORDER_H
#define INGOT_PARALLEL_PIPELINE_ORDER_H
#include "parallel/pipeline_schedule.h"

enum { PIPELINE_PASSES = PIPELINE_W + 1 };
struct pipeline_ordered {
    int rank, takes; /* takes: index of its seconds */
    int from;        /* the action whose message it takes */
};
struct pipeline_pair {
    double at[2];
}; /* times with each of two latencies */
struct pipeline_order {
    int ranks, stages;
    int depth;                        /* as pipeline_schedule_depth says */
    int count, most;                  /* count: of actions; equal once made */
    struct pipeline_ordered *actions; /* [count], owned */
    struct pipeline_pair *ended;      /* [count + 1], owned; the last: what is there from the beginning */
    double *seconds;                  /* [stages][PIPELINE_PASSES], owned */
};

/* Of a checked schedule. Errors as of pipeline_simulate. Call pipeline_order_free after success and failure. */
status pipeline_order_make(struct pipeline_order *o, const struct pipeline_schedule *s) WARN_UNUSED;
void pipeline_order_free(struct pipeline_order *o);
/* Makespans with these stage times, [p v], and each of two latencies. */
void pipeline_makespans(struct pipeline_order *o, const struct pipeline_stage_time *stages,
                        const double message[2], double makespan[2]);
#endif
