/* save: checkpoints that are written while training goes on (ckpt.async).
 *
 *   trainer   save_begin: snapshot │ next step: forward, backward │ save_wait_before_update │ optimizer │ ...
 *   writer    copies the state, checks that it is finite ────►│ write, fsync, manifest, rename
 *
 * Only the optimizer changes the state, so the writer thread copies it during the next step's forward and backward. The
 * optimizer waits for the copy; that wait is usually zero. The files equal those of trainer_save byte for byte, except
 * for times. Only one save is in flight: the next one waits for it and logs that, or is skipped (ckpt.on_busy). On a
 * GPU, snapshot.h makes the copy and the optimizer's wait, and save_memory.h allocates the memory. If several ranks run
 * on one host, each copies its part to shared memory, and rank 0 writes the files from there (save_ranks.h). With
 * several hosts each rank writes its part from its own copy (save_parts.h). If the copy does not fit, save_begin calls
 * trainer_save. */
#ifndef INGOT_TRAIN_SAVE_H
#define INGOT_TRAIN_SAVE_H
#include "train/trainer.h"

/* Collective, before the first step: allocates the memory for a GPU's saves. Without this call, save_begin on a GPU
 * calls trainer_save. With several hosts: STATUS_IO if one does not see the run directory. */
status save_prepare(struct trainer *t) WARN_UNUSED;
/* Starts a save. The writer thread calls `flush` (NULL: none) before it commits the checkpoint. */
typedef void save_flush_fn(void *ctx);
status save_begin(struct trainer *t, const char *run_dir, save_flush_fn *flush, void *ctx) WARN_UNUSED;
/* Collective, before a save of ckpt.every: *skip says that it is skipped, because the one before is still being written
 * (ckpt.on_busy). The same on all ranks, and never at the last step. */
status save_skips(struct trainer *t, bool *skip) WARN_UNUSED;
/* Saves that were skipped since the last call; NaN: none. */
double save_skipped(struct trainer *t);
/* Collective. Waits until the save in flight is written on all ranks. If it failed on any rank, every rank returns the
 * error, once. */
status save_wait_all_ranks(struct trainer *t) WARN_UNUSED;
/* Call before anything changes weights or moments. On the CPU it blocks until the state is copied; on a GPU it queues
 * that wait on the step's stream. */
status save_wait_before_update(struct trainer *t) WARN_UNUSED;
/* Call before a launch of a graph that contains such a wait. Blocks until the GPU copies are enqueued. */
status save_wait_copies_queued(struct trainer *t) WARN_UNUSED;
/* Call after a step: adds the time that its optimizer waited for copies of the state to save_stall_ms. */
status save_account_stall(struct trainer *t) WARN_UNUSED;
/* If this rank's writer thread has ended, joins it and returns the error of its save. STATUS_OK while it runs. */
status save_poll(struct trainer *t) WARN_UNUSED;
/* Joins this rank's writer thread, and returns the error of its save. On ranks above 0 the thread ends once the copy is
 * made, or with several hosts its part written. */
status save_join_local(struct trainer *t) WARN_UNUSED;
/* The same before the job ends: returns when what was begun is committed, or given up, on any rank. */
status save_end(struct trainer *t) WARN_UNUSED;
/* Joins the writer thread and frees everything. */
void save_close(struct trainer *t);
/* Milliseconds that training has waited for saves and copies since the last call; NaN: there was none. */
double save_stall_ms(struct trainer *t);
/* Adds the time since `begin` (clock_s) to save_stall_ms: training waited for another copy of the state. */
status save_stalled(struct trainer *t, double begin) WARN_UNUSED;
/* Collective. *meta: the checkpoint's metadata, which the caller owns; NULL on ranks above 0. */
status save_metadata(struct trainer *t, json_t **meta) WARN_UNUSED;
/* Threads that write a checkpoint: a quarter of all, at most 4. The disk is the limit, and training needs the rest. */
int save_threads(void);
/* For tests: sleeps for INGOT_SAVE_DELAY_MS before the state is copied. */
void save_delay(void);
#endif
