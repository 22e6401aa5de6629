/* memory_copy: a second copy of the state in host memory that outlives the ranks (ckpt.memory_every).
 *
 *   ingot launch     owns the memory (a memfd), and never reads it
 *   rank r, step s   copies its part into buffer s' mod 2, with a CRC-32C per chunk, then the copy's number
 *   a later start    every rank finds the newest buffer whose parts all have one number and pass; goes on from there
 *
 * A copy is committed when the parts of all ranks have its number. They are written between two barriers, so the other
 * buffer is whole while one is being written: a kill at any moment leaves a copy. The memory is the launcher's, and no
 * rank's: any ranks may die together. What is lost with it is the host.
 *
 * A part is read by ranks with the same key (state_raw.h): data-parallel replicas without ZeRO keep one part, and a
 * mesh with fewer of them goes on from it. Other meshes, and a damaged copy, read the checkpoint on disk, and say so.
 * Not with mpirun, srun and torchrun: no process of ours outlives their ranks. */
#ifndef INGOT_TRAIN_MEMORY_COPY_H
#define INGOT_TRAIN_MEMORY_COPY_H
#include "train/trainer.h"

/* The file descriptor of the memory, for the ranks. */
#define MEMORY_COPY_VARIABLE "INGOT_MEMORY"

struct memory_copy; /* NULL: there is none; all functions accept that */
/* Before a device is touched. STATUS_CONFIG: ckpt.memory_every without `ingot launch`. */
status memory_copy_check(const struct run_spec *r) WARN_UNUSED;
/* Finds the memory, with what an earlier start has left. */
status memory_copy_open(struct memory_copy **m, struct trainer *t) WARN_UNUSED;
void memory_copy_close(struct memory_copy *m);
/* Collective. Restores the newest copy that is whole, unless a checkpoint of the run is newer. *found false, on all
 * ranks: there is none, and the log says why. *saved: the step of the newest checkpoint, -1 none; set when found. */
status memory_copy_restore(struct memory_copy *m, bool *found, int64_t *saved) WARN_UNUSED;
/* Collective, once the state is known. Makes room for two copies, and forgets those that are not of this run so far.
 * STATUS_OUT_OF_MEMORY, on all ranks, when they do not fit beside the run. */
status memory_copy_begin(struct memory_copy *m) WARN_UNUSED;
/* Collective. What is there is not of this run any more: it has gone back. */
status memory_copy_forget(struct memory_copy *m) WARN_UNUSED;
/* Collective, after a step: a copy, if one is due. What training waits is a stall (save_stall_ms): on the CPU for the
 * copy, on a GPU for its beginning, and in the next step's update if that comes before its end (snapshot.h). */
status memory_copy_step(struct memory_copy *m) WARN_UNUSED;
/* Of the start: whether there was to be a copy in memory, and whether the run goes on from one; seconds it took. */
struct memory_copy_start {
    bool wanted, used;
    double seconds;
};
struct memory_copy_start memory_copy_start(const struct memory_copy *m);
#endif
