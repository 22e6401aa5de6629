/* snapshot: copies a GPU's state to pinned host memory during the next step. The step's forward and backward only read
 * weights and moments; its optimizer waits until they are copied.
 *
 *   trainer   snapshot_begin │ batch │ snapshot_ready, launch │ forward, backward │ snapshot_hold │ optimizer
 *   copy thread queues copies on the side stream ─► snapshot_queued │ waits until the copies have run
 *
 * The GPU itself makes the optimizer wait, also inside a CUDA graph. The host waits only until the copies are queued,
 * which takes a few milliseconds. */
#ifndef INGOT_TRAIN_SNAPSHOT_H
#define INGOT_TRAIN_SNAPSHOT_H
#include "train/trainer.h"

/* On a GPU, before the first step. Further calls do nothing. */
status snapshot_open(struct trainer *t) WARN_UNUSED;
void snapshot_close(struct trainer *t);

/* Call between two steps, before a copy thread starts to queue copies. Does nothing without snapshot_open (CPU). */
void snapshot_begin(struct trainer *t);
/* The stream on which the copy thread queues the copies. */
struct stream *snapshot_stream(const struct trainer *t);
/* Called by the copy thread after enqueuing; `st` is its result. Returns `st`, or this call's own error. */
status snapshot_queued(struct trainer *t, status st) WARN_UNUSED;

/* In a step, before the update (or a graph that contains it) is queued: blocks until all copies are queued. Returns
 * whether it had to wait. Does nothing without snapshot_open, as the next two. */
bool snapshot_ready(struct trainer *t);
/* Queues the optimizer's wait for the copies. */
status snapshot_hold(struct trainer *t) WARN_UNUSED;
/* After the step: *waits says whether copies were made during it, *seconds for how long its optimizer waited. */
status snapshot_stall(struct trainer *t, bool *waits, double *seconds) WARN_UNUSED;
#endif
