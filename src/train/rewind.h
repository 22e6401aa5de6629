/* rewind: obeys an order of a run's lineage (train/lineage.h) when the run begins: which checkpoint it goes on from,
 * what data it leaves out, and the branch that it leaves. */
#ifndef INGOT_TRAIN_REWIND_H
#define INGOT_TRAIN_REWIND_H
#include "train/lineage.h"
#include "train/trainer.h"

struct rewind {
    int64_t go_to; /* step of the checkpoint to resume from; -1: the newest */
    bool forks;    /* the order is to be obeyed: nothing says that it was */
};
/* Before the weights are read. `resume_step`: what --resume=STEP says, -1. */
status rewind_plan(struct rewind *w, const char *run_dir, const struct lineage_order *o, bool resume,
                   int64_t resume_step) WARN_UNUSED;
/* Behind it, on all ranks; `lead` keeps the records of the branch that is left (observe/forks.h). */
status rewind_apply(const struct rewind *w, struct trainer *t, const struct lineage_order *o, bool lead) WARN_UNUSED;
#endif
