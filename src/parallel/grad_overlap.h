/* beside: the sums of gradients over ranks while the backward goes on.
 *
 * In the last micro-batch of a step each unit of the parameter table is complete when its backward is done: from then on its sum over the
 * data-parallel ranks is under way (parallel/side_stream.h) beside the backward of the units in front of it. The embedding's
 * has nothing beside it, and goes on the step's stream. The order of all sums is that of sync.h: the bits of a run do not depend on it.
 *
 * On a GPU, where no other collectives are in the backward: those of two streams could wait for each other. */
#ifndef INGOT_PARALLEL_GRAD_OVERLAP_H
#define INGOT_PARALLEL_GRAD_OVERLAP_H
#include "parallel/side_stream.h"
#include "parallel/sync.h"

struct grad_overlap {
    const struct sync *sync;    /* not owned, as the others; NULL: nothing goes on beside */
    struct params *params;
    const struct ops *ops;
    struct side_stream *side_stream;
    struct unit_hooks hooks;
    const struct unit_hooks *outer; /* at other times */
    const struct sync_sums *sums;
    int group;                  /* the last one, as sync_fold counts them */
    bool *summed;               /* [unit_count], owned */
};
/* Nothing to do, and nothing to close, where sums do not go on beside: on the host, where the backward has collectives, with segments
 * (only the last one's backward completes a unit, and the hooks do not say which it is). */
struct grad_overlap_args {
    const struct sync *sync;
    struct params *params;
    const struct ops *ops;
    struct side_stream *side_stream;
    int64_t segments;           /* of a micro-batch (model_segments): with several, a unit's first backward leaves it incomplete */
};
status grad_overlap_open(struct grad_overlap *b, const struct grad_overlap_args *a) WARN_UNUSED;
void grad_overlap_close(struct grad_overlap *b);
/* Before the last micro-batch of the last group: its units are summed as they are left. */
void grad_overlap_begin(struct grad_overlap *b, const struct sync_sums *sums);
/* After it: what is queued from now on sees all sums of gradients. *all false: sums do not go on beside, and are still to be formed. */
status grad_overlap_end(struct grad_overlap *b, bool *all) WARN_UNUSED;
#endif
