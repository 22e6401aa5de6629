/* grad_overlap: the data-parallel gradient all-reduce, overlapped with the backward pass.
 *
 * In the last micro-batch of a step, a unit's gradient is final when the unit's backward ends. Its all-reduce then
 * starts on the side stream (parallel/side_stream.h) while the backward of earlier units computes. The embedding comes
 * last, has nothing to overlap with, and uses the step's stream. The order of sums is that of grad_reduce.h, so overlap
 * does not change a bit.
 *
 * Only on a GPU, and only if the backward has no collectives of its own: collectives on two streams could wait for each
 * other. */
#ifndef INGOT_PARALLEL_GRAD_OVERLAP_H
#define INGOT_PARALLEL_GRAD_OVERLAP_H
#include "parallel/side_stream.h"
#include "parallel/grad_reduce.h"

struct grad_overlap {
    const struct grad_reduce *grad_reduce; /* not owned, nor are the other pointers; NULL: no overlap */
    struct params *params;
    const struct ops *ops;
    struct side_stream *side_stream;
    struct unit_hooks hooks;    /* installed during the last micro-batch */
    const struct unit_hooks *outer; /* installed at other times */
    const struct grad_reduce_sums *sums;
    int group;                  /* the last group, numbered as in grad_reduce_accumulate */
    bool *reduced;              /* [unit_count]: the unit's all-reduce was queued; owned */
};
/* Disables overlap, and owns nothing, in three cases: on the host; where the backward has collectives of its own
 * (tensor, context, expert, pipeline, ZeRO 2 and 3); and with several segments, because a unit is complete only after
 * the last segment's backward, which the hooks cannot identify. */
struct grad_overlap_args {
    const struct grad_reduce *grad_reduce;
    struct params *params;
    const struct ops *ops;
    struct side_stream *side_stream;
    int64_t segments;           /* number of segments of a micro-batch (model_segments) */
};
status grad_overlap_open(struct grad_overlap *b, const struct grad_overlap_args *a) WARN_UNUSED;
void grad_overlap_close(struct grad_overlap *b);
/* Call before the last micro-batch of the last group: from now on each unit is all-reduced when its backward ends. */
void grad_overlap_begin(struct grad_overlap *b, const struct grad_reduce_sums *sums);
/* Call after that micro-batch: work queued from now on sees all sums. *all false: there was no overlap, and the caller
 * must reduce the gradients. */
status grad_overlap_end(struct grad_overlap *b, bool *all) WARN_UNUSED;
#endif
