/* zero: ZeRO and FSDP. Data-parallel ranks shard one copy of the model's state instead of replicating it (Rajbhandari
 * et al., arXiv:1910.02054). The FSDP unit is a unit of the parameter table: rank r of D holds shard r of each unit.
 *
 *   stage      replicated           sharded                   communication
 *   1          weights, gradients   master weights, moments   per step: reduce-scatter gradients, all-gather weights
 *   2          weights              gradients, too            reduce-scatter a unit's gradient after each backward
 *   3 (FSDP)   -                    weights, too              all-gather a unit's weights before each forward, backward
 *
 * An unsharded unit is held in a slot. There is one slot for the embedding, one for the head (the embedding's, if the
 * embedding is not needed again at the end), one for n-gram tables, one for a block's experts (with expert parallelism,
 * where a block's experts form their own unit), and two for blocks and MTP modules. Of these two, one holds the unit in
 * use; the other holds the next unit, whose weights are prefetched, or the previous one, whose gradient is
 * reduce-scattered.
 *
 *   forward    step's stream   wait w(u) | forward u       | wait w(u + 1) | forward u + 1   | ...
 *              side stream               | gather w(u + 1) |               | gather w(u + 2) | ...
 *   backward   step's stream   wait w(u) | backward u      | wait w(u - 1)     | backward u - 1  | ...
 *              side stream               | gather w(u - 1) | reduce g(u), fold | gather w(u - 2) | ...
 *
 * All collectives use the side stream (parallel/side_stream.h). Under tensor or pipeline parallelism, which have
 * collectives on the step's stream, they use that stream in the same order and do not overlap. A slot is read or
 * refilled only after its collective has ended; zero_end waits for all of them.
 *
 * In FP8 stage 3 all-gathers codes (zero_codes.h).
 *
 * The sums are those of grad_reduce.h in the same order, so the stage does not change a bit. Under stages 2 and 3 ranks
 * are the deepest level of the tree: each takes consecutive micro-batches, and every micro-batch is a group of its
 * own. */
#ifndef INGOT_PARALLEL_ZERO_H
#define INGOT_PARALLEL_ZERO_H
#include "parallel/side_stream.h"
#include "parallel/grad_reduce.h"
#include "parallel/zero_codes.h"

enum { ZERO_SLOTS = 6 };
/* Which gradients of a block a backward pass computes: WHOLE: all. Schedules that delay the GEMMs of weight gradients
 * (pipeline_schedule.h: BI and W) run INPUTS first, whose gradients are saved, and WEIGHTS later, which adds the
 * delayed ones. */
enum zero_half { ZERO_WHOLE, ZERO_INPUTS, ZERO_WEIGHTS };
struct zero_slot {
    void *data;
    int unit;                   /* the unit that the slot holds; -1: none */
    bool transposed;            /* of weights in FP8: the transposes are there, too */
    bool busy;                  /* the side stream reads or writes the slot until `done` */
    struct event done;
};
struct zero_slots {
    struct zero_slot slot[ZERO_SLOTS]; /* embedding, end, tables, experts, two of blocks */
    int last;                   /* which of the two slots of blocks holds the unit in use */
};
struct zero {
    const struct mesh *mesh;    /* not owned, as the others */
    struct params *params;
    const struct grad_reduce *grad_reduce;
    const struct ops *ops;
    struct side_stream *side_stream;
    struct zero_slots weights, grads;
    struct unit_hooks hooks;
    bool losses_busy;           /* the side stream sums the losses until losses_done */
    struct event losses_done;
    bool gathering;             /* the all-gathers of new weights were queued during the optimizer step */
    int group;                  /* under stages 2 and 3: the current group, numbered as in grad_reduce_accumulate */
    enum zero_half half;
    int store;                  /* with INPUTS and WEIGHTS: which of the rank's stores they use */
    float *saved_grads;         /* [stores][elements]: saved gradients of those parameters of blocks that are not
                                   weights of linears (norms, biases), one copy per store */
    int end;                    /* the unit that follows the blocks */
    bool embedding_resident;    /* embedding and end have a slot each: both are needed at once (tied head, MTP, HRM) */
    void *scratch;              /* for derived copies while they are all-gathered */
    struct zero_codes codes;    /* stage 3 with FP8 */
};

/* Allocates the slots, from counting or real arenas, after the parameters. mesh NULL: one rank. */
struct zero_layout {
    const struct mesh *mesh;
    struct arena *param, *grad;
    int train, end, stores;
    bool embedding_resident;
};
void zero_layout(struct zero *z, struct params *p, const struct zero_layout *l);
/* Installs the unit hooks: passes of the decoder and of the optimizer then start the collectives of each unit. */
struct zero_open { const struct grad_reduce *grad_reduce; const struct ops *ops; struct side_stream *side_stream; };
status zero_open(struct zero *z, const struct zero_open *a) WARN_UNUSED;
void zero_close(struct zero *z);
/* Before the first pass of a step: marks all slots as empty. */
void zero_invalidate(struct zero *z);
/* Under stages 2 and 3: sums the losses of the current micro-batch over the ranks, and adds them to the tree as its
 * gradients were. */
status zero_reduce_losses(struct zero *z, double *losses) WARN_UNUSED;
/* After the last pass: work queued from now on sees all sums. */
status zero_end(struct zero *z) WARN_UNUSED;
/* After the update of this rank's shards: all-gathers the weights under stages 1 and 2, and a resident embedding under
 * 3. Units for which the optimizer called the hook `after_update` are already in progress. */
status zero_all_gather_weights(struct zero *z) WARN_UNUSED;
#endif
