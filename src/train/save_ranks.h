/* save_ranks: the copies of the state that several ranks of a host make for one save, in memory that they share.
 *
 *   rank r     copy of its part ──► save_ranks_put(number of the save)
 *   rank 0     copy of its part ──► save_ranks_wait: all have put ──► reads their copies, writes the files
 *
 *   rank 0     copy of its part ──► save_ranks_wait: all have put ──► reads their copies, writes files
 * which rank 0 allows when the files of this one are written (save_finish). */
#ifndef INGOT_TRAIN_SAVE_RANKS_H
#define INGOT_TRAIN_SAVE_RANKS_H
#include "base/arena.h"
#include "train/trainer.h"

struct save_ranks {
    struct comm *world; /* NULL: one rank */
    void *base;         /* NULL: not shared yet */
    size_t bytes;
    struct rank_copy *state; /* [ranks], in it */
    char **copies;           /* [ranks]: where each rank's memory begins; owned */
};

/* Collective, once. *memory is this rank's: state_bytes. On all ranks alike STATUS_FIT, when the copies do not fit
 * beside the run or are refused. */
status save_ranks_open(struct save_ranks *r, struct trainer *t, struct arena *memory) WARN_UNUSED;
void save_ranks_close(struct save_ranks *r);
/* This rank's copy of save `number` is complete. `bad`: state_first_bad of it, or -1: it could not be made. */
void save_ranks_put(struct save_ranks *r, int64_t number, int64_t bad);
/* On rank 0: until all have put. *first: the least of all `bad`. STATUS_COMM when the ranks end instead. */
status save_ranks_wait(const struct save_ranks *r, int64_t number, int64_t *first) WARN_UNUSED;
#endif
