/* save_ranks: the copies of the state that several ranks of a host make for one save, in memory that they share.
 *
 *   rank r     copies its part ──► save_ranks_put(number of the save)
 *   rank 0     copies its part ──► save_ranks_wait: all have put ──► reads their copies, writes the files
 *
 * A rank overwrites its copy only in the next save, which rank 0 allows once this save's files are written
 * (save_wait_all_ranks). */
#ifndef INGOT_TRAIN_SAVE_RANKS_H
#define INGOT_TRAIN_SAVE_RANKS_H
#include "base/arena.h"
#include "train/trainer.h"

struct save_ranks {
    struct comm *world; /* NULL: one rank */
    void *base;         /* NULL: not shared yet */
    size_t bytes;
    struct rank_copy *state; /* [ranks], at the start of `base`: what each rank has put */
    char **copies;           /* [ranks]: where each rank's copies begin in `base`; owned */
};

/* Collective, once. Sets *memory to this rank's part of the shared memory (state_bytes). If the copies do not fit
 * beside the run, or the system refuses the memory, every rank returns STATUS_OUT_OF_MEMORY. */
status save_ranks_open(struct save_ranks *r, struct trainer *t, struct arena *memory) WARN_UNUSED;
void save_ranks_close(struct save_ranks *r);
/* Reports that this rank's copy for save `number` is complete. `bad`: its state_first_bad; -1: the copy failed. */
void save_ranks_put(struct save_ranks *r, int64_t number, int64_t bad);
/* On rank 0: waits until all ranks have put. *first is the minimum of their `bad`. STATUS_COMM if a rank ends
 * instead. */
status save_ranks_wait(const struct save_ranks *r, int64_t number, int64_t *first) WARN_UNUSED;
#endif
