/* save: checkpoints that are written while training goes on (ckpt.async).
 *
 *   trainer      save_begin: snapshot │ next step: forward, backward │ save_captured │ optimizer │ ...
 *   the writer                copy of the state, finite check ──────►│ write, fsync, manifest, rename
 *
 * The state changes only in the optimizer, so the writer copies it during the next step's forward and backward; the
 * optimizer waits for the copy, which is rarely anything. The files are those of trainer_save, byte by byte but for
 * times. One save at a time: the next one waits for the one before, and says so. On a GPU the copy, the wait of the
 * optimizer and the memory are those of snapshot.h and save_memory.h. Several ranks of a host copy their parts to
 * shared memory, from which rank 0 writes (save_ranks.h). Several hosts, or a copy that does not fit: save_begin is
 * trainer_save. */
#ifndef INGOT_TRAIN_SAVE_H
#define INGOT_TRAIN_SAVE_H
#include "train/trainer.h"

/* Collective, before the first step: memory for the saves of a GPU. Without it save_begin is trainer_save there. */
status save_prepare(struct trainer *t) WARN_UNUSED;
/* `flush` (NULL: none) is called by the writer before the checkpoint is committed. */
typedef void save_flush_fn(void *ctx);
status save_begin(struct trainer *t, const char *run_dir, save_flush_fn *flush, void *ctx) WARN_UNUSED;
/* Collective. Waits for the save that is being written; its error, once, on all ranks. */
status save_finish(struct trainer *t) WARN_UNUSED;
/* Before anything changes weights or moments: waits until they are copied; on a GPU queues a wait for that. */
status save_captured(struct trainer *t) WARN_UNUSED;
/* Before a graph that has such a wait is launched: until a GPU's copies are queued. */
status save_queued(struct trainer *t) WARN_UNUSED;
/* After a step: adds what its update waited for copies of the state to what training has waited. */
status save_overlapped(struct trainer *t) WARN_UNUSED;
/* The error of a save that has ended; STATUS_OK while one is being written. */
status save_look(struct trainer *t) WARN_UNUSED;
/* The same for this rank alone: on others than 0 it has ended when the copy is made. */
status save_end(struct trainer *t) WARN_UNUSED;
void save_close(struct trainer *t); /* the same, for trainer_close */
/* Milliseconds that the trainer has waited for saves and copies since the last call; NaN: there was none. */
double save_stall_ms(struct trainer *t);
/* Adds to them: training has waited since `begin` (clock_s) for another copy of the state. */
status save_stalled(struct trainer *t, double begin) WARN_UNUSED;
/* Collective: what a checkpoint says beside its tensors. *meta is the caller's; NULL on ranks above 0. */
status save_metadata(struct trainer *t, json_t **meta) WARN_UNUSED;
/* Few: the disk is slower than they are, and training needs the others. */
int save_threads(void);
/* For tests: sleeps for INGOT_SAVE_DELAY_MS, where a copy of the state is made. */
void save_delay(void);
#endif
