/* aside: what ranks exchange while something is computed, on a stream of a GPU beside that of the step.
 *
 * All exchanges of a rank that are under way beside its computing are queued here, in the same order on all ranks: two that ranks see in
 * different order, on streams of their own, could wait for each other. For the same reason an exchange on the step's stream comes after
 * side_stream_wait of all that was queued here. Exchanges here leave the GPU's multiprocessors to what is computed: copy engines move all but what is
 * little (comm/gpu/cuda/p2p.c).
 * Ops may be queued here that need no workspace, which is the step's.
 *
 * On the host there is nothing beside: all is done in the order of the calls. */
#ifndef INGOT_PARALLEL_SIDE_STREAM_H
#define INGOT_PARALLEL_SIDE_STREAM_H
#include "dev/dev.h"
#include "ops/ops.h"

struct side_stream {
    dev_stream main;        /* of the step, not owned; NULL: the host */
    struct stream queue;
    struct event behind, all;
};
status side_stream_open(struct side_stream *a, dev_stream main) WARN_UNUSED;
void side_stream_close(struct side_stream *a);
/* What is queued on *s from now on comes after all that is queued on the step's stream. */
status side_stream_fork(struct side_stream *a, dev_stream *s) WARN_UNUSED;
/* The step's stream goes on behind all that was queued aside: something, while a graph is captured. */
status side_stream_join(struct side_stream *a) WARN_UNUSED;
/* A mark behind all that was queued aside, and the step's stream goes on behind a mark. Marks are the caller's: side_stream_event_open, _close. */
status side_stream_record(struct side_stream *a, struct event *mark) WARN_UNUSED;
status side_stream_wait(struct side_stream *a, const struct event *mark) WARN_UNUSED;
status side_stream_event_open(const struct side_stream *a, struct event *mark) WARN_UNUSED;
void side_stream_event_close(const struct side_stream *a, struct event *mark);
#endif
