/* verify: silent data corruption (docs/VERIFY.md). A share of the micro-batches, train.verify, is computed twice and
 * its bits are compared; weights and moments have checksums from one update to the next, and replicas compare them.
 *
 *   verify_begin, first micro-batch, verify_first: it is computed twice, replicas compare their state
 *   other micro-batches, verify_state: checksums hold
 *   sums over ranks, update, verify_updated: new checksums
 *
 * A difference ends the run: with STATUS_CORRUPT on the rank that was wrong, or on all when nobody knows which one,
 * else with STATUS_COMM; the line names the rank and its host. All functions return at once without train.verify. */
#ifndef INGOT_TRAIN_VERIFY_H
#define INGOT_TRAIN_VERIFY_H
#include "train/trainer.h"

/* STATUS_CONFIG, in one line, where train.verify cannot be. `gpu`: of the device that would be used. */
status verify_check(const struct trainer *t, bool gpu) WARN_UNUSED;
/* Collective. After the memory of the trainer is open. */
status verify_open(struct trainer *t) WARN_UNUSED;
void verify_close(struct trainer *t);

/* Of a step, in this order. */
void verify_begin(struct trainer *t);
/* When the gradients are those of the step's first micro-batch, `b`. Collective over the data axis in verified
 * steps. */
status verify_first(struct trainer *t, const struct batch *b) WARN_UNUSED;
/* Before gradients are summed over ranks. */
status verify_state(struct trainer *t) WARN_UNUSED;
/* After the update: what weights and moments are from now on. */
void verify_updated(struct trainer *t);

/* Weights and moments were read: there are no checksums of them yet. */
void verify_forget(struct trainer *t);
/* On any thread, before the next update: a copy of the state was made of what is sound. */
status verify_copied(struct trainer *t) WARN_UNUSED;
/* When nothing is being saved any more: checkpoints in doubt do not count from now on. */
void verify_end(const struct trainer *t);
/* What was done and what it cost. `seconds`: of the run. */
void verify_log(const struct trainer *t, double seconds);
#endif
