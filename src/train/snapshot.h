/* snapshot: copies of a GPU's state to pinned host memory, made beside the next step. Its forward and backward only
 * read weights and moments; its optimizer waits until they are copied.
 *
 *   trainer   snapshot_begin │ batch │ snapshot_ready, launch │ forward, backward │ snapshot_hold │ optimizer
 *   a thread    queues copies on the side stream ─► snapshot_queued │ waits for them, goes on with the copy
 *
 * The optimizer's wait is the GPU's own, in a CUDA graph too: the host waits only until the copies are queued, which
 * takes a few milliseconds. */
#ifndef INGOT_TRAIN_SNAPSHOT_H
#define INGOT_TRAIN_SNAPSHOT_H
#include "train/trainer.h"

/* On a GPU, before the first step; again: nothing. */
status snapshot_open(struct trainer *t) WARN_UNUSED;
void snapshot_close(struct trainer *t);

/* Between two steps: a thread is about to queue copies. Without snapshot_open (the CPU) nothing. */
void snapshot_begin(struct trainer *t);
/* The stream to queue them on. */
struct stream *snapshot_stream(const struct trainer *t);
/* On that thread: they are queued, or `st` says why not; returned, or the error of this call. */
status snapshot_queued(struct trainer *t, status st) WARN_UNUSED;

/* In a step; without snapshot_open nothing. Until all copies are queued, before the update is, or a graph with it.
 * Returns whether it had to wait. */
bool snapshot_ready(struct trainer *t);
/* Queues the optimizer's wait for them. */
status snapshot_hold(struct trainer *t) WARN_UNUSED;
/* After the step: *waits, whether copies were made beside it, and for how many seconds its optimizer stood still. */
status snapshot_stall(struct trainer *t, bool *waits, double *seconds) WARN_UNUSED;
#endif
