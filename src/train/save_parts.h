/* save_parts: a save by the ranks of several hosts, each its own part (train/checkpoint_parts.h), whether training
 * waits for it or not. */
#ifndef INGOT_TRAIN_SAVE_PARTS_H
#define INGOT_TRAIN_SAVE_PARTS_H
#include "train/checkpoint_parts.h"
#include "train/state.h"

struct save_host {
    char name[64];
};
struct save_parts {
    struct ckpt_begun begun;
    struct ckpt_full full;
};

/* Collective: rank 0 makes the directory that all write into. may_wait: as checkpoint_save. The first call of a trainer
 * also gathers the names of hosts (t->hosts). */
status save_parts_begin(struct save_parts *p, struct trainer *t, const char *run_dir,
                        ckpt_may_wait_fn *may_wait) WARN_UNUSED;
/* On any thread: writes this rank's part of the state; rank 0 then waits for the others, judges whether the state is
 * finite (state_judge), and commits. `first`: state_first_bad of this rank. */
struct save_parts_args {
    const char *run_dir;
    int64_t first;
    const json_t *meta;
};
status save_parts_write(struct save_parts *p, struct state *s, const struct save_parts_args *a) WARN_UNUSED;
/* On ranks above 0, before a job ends with an error: waits until rank 0 has committed what all have written, for the
 * end of one rank ends the others. Ten minutes at most. */
void save_parts_settle(const struct ckpt_begun *b, const struct comm *world, const char *run_dir);
#endif
