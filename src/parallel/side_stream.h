/* side_stream: a GPU stream for communication that overlaps the compute of the step's stream.
 *
 * Rules that prevent deadlock:
 *   - All overlapped collectives of a rank use this one stream, and all ranks queue them in the same order. On several
 *     streams two collectives could wait for each other.
 *   - A collective on the step's stream must follow a side_stream_wait for everything queued here.
 *
 * Collectives on this stream leave the multiprocessors to compute: copy engines move all but small messages
 * (comm/gpu/cuda/p2p_comm.c). An op may be queued on it if it needs no workspace; the workspace belongs to the step's
 * stream.
 *
 * On the host nothing overlaps: each call runs when it is made. */
#ifndef INGOT_PARALLEL_SIDE_STREAM_H
#define INGOT_PARALLEL_SIDE_STREAM_H
#include "dev/dev.h"
#include "ops/ops.h"

struct side_stream {
    dev_stream main;        /* the step's stream, not owned; NULL: the host */
    struct stream queue;
    struct event forked, joined;
    bool apart;             /* forked, and not joined since */
};
status side_stream_open(struct side_stream *a, dev_stream main) WARN_UNUSED;
void side_stream_close(struct side_stream *a);
/* Sets *s to the side stream, and makes it wait for everything queued on the step's stream so far. */
status side_stream_fork(struct side_stream *a, dev_stream *s) WARN_UNUSED;
/* Makes the step's stream wait for everything queued on the side stream. Nothing happens without a fork since the last
 * join: a graph that is captured may not wait for a stream that has not forked in it. */
status side_stream_join(struct side_stream *a) WARN_UNUSED;
/* side_stream_record records an event on the side stream; side_stream_wait makes the step's stream wait for it. The
 * caller owns events: side_stream_event_open, _close. */
status side_stream_record(struct side_stream *a, struct event *event) WARN_UNUSED;
status side_stream_wait(struct side_stream *a, const struct event *event) WARN_UNUSED;
status side_stream_event_open(const struct side_stream *a, struct event *event) WARN_UNUSED;
void side_stream_event_close(const struct side_stream *a, struct event *event);
#endif
