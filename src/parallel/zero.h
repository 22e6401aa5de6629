/* zero: data-parallel ranks that share out one copy of a model's state instead of each holding all of it (Rajbhandari et al.,
 * arXiv:1910.02054), unit by unit of the parameter table: rank r of D has part r of each unit.
 *
 *   stage  whole on each rank          part of each unit               moved
 *   1      weights, gradients          master weights, moments         gradients reduce-scattered once per step, weights gathered once
 *   2      weights                     gradients, too                  gradients of a unit after each of its backwards
 *   3      -                           weights, too                    weights of a unit before each of its forwards and backwards
 *
 * What is not whole passes through slots: one for the embedding, one for what follows the blocks (the same one, where the embedding is
 * not needed again at the end), one for tables of n-grams, and two for blocks and extra predictions: one of the unit at work, and one of that which comes next, whose
 * weights are on their way meanwhile, or of that which came before, whose gradients are.
 *
 *   step's stream   wait w(u) | forward u       | wait w(u + 1)...     wait w(u) | backward u         | wait w(u - 1) | backward u - 1
 *   aside                     | w(u + 1)        |                                | w(u - 1)           | sum g(u), fold | w(u - 2)
 *
 * All that ranks exchange here goes aside (parallel/side_stream.h), or in the same order on the step's stream where tensor parallelism or a
 * pipeline exchange there. What is under way is waited for before it is read, or its slot filled again; zero_end waits for all of it.
 *
 * The sums are those of sync.h, in the same order: the bits of a run do not depend on the stage. Under stages 2 and 3 ranks are the deepest
 * level of the tree, so each takes consecutive micro-batches, and every micro-batch is a group of its own. */
#ifndef INGOT_PARALLEL_ZERO_H
#define INGOT_PARALLEL_ZERO_H
#include "parallel/side_stream.h"
#include "parallel/sync.h"

enum { ZERO_SLOTS = 5 };
/* What a backward forms of a block's gradients: all; or, of schedules that put GEMMs off (pipeline_schedule.h: BI and W), first what is not put off,
 * which is kept until the rest joins it. */
enum zero_half { ZERO_WHOLE, ZERO_INPUTS, ZERO_WEIGHTS };
struct zero_slot {
    void *data;
    int unit;                   /* whose it is; -1: nobody's */
    bool busy;                  /* until `mark` it is written, or read, aside */
    struct event mark;
};
struct zero_slots {
    struct zero_slot slot[ZERO_SLOTS]; /* embedding, end, tables, two of blocks */
    int last;                   /* of the blocks' slots: that of the unit at work */
};
struct zero {
    const struct mesh *mesh;    /* not owned, as the others */
    struct params *params;
    const struct sync *sync;
    const struct ops *ops;
    struct side_stream *side_stream;
    struct zero_slots weights, grads;
    struct unit_hooks hooks;
    bool losses_busy;           /* until losses_mark they are summed aside */
    struct event losses_mark;
    bool on_the_way;            /* new weights of all units: the optimizer has told of them */
    int group;                  /* under stages 2 and 3: the one at work, as sync_fold counts them */
    enum zero_half half;
    int store;                  /* of the halves: which of the rank's stores */
    float *kept;                /* [stores][elements of all rows of blocks that are no weights of linears] */
    int end;                    /* the unit that follows the blocks */
    bool stays;                 /* the embedding is needed at the end, too: as the head, or by extra predictions; or the end at the beginning */
    void *scratch;              /* of derived F32 copies while they are gathered */
};

/* Takes the slots, counting or real, after the parameters. mesh NULL: one rank. */
struct zero_lay { const struct mesh *mesh; struct arena *param, *grad; int train, end, stores; bool stays; };
void zero_lay(struct zero *z, struct params *p, const struct zero_lay *l);
/* From then on the decoder's passes over units move what they need, and so does the optimizer's. */
struct zero_open { const struct sync *sync; const struct ops *ops; struct side_stream *side_stream; };
status zero_open(struct zero *z, const struct zero_open *a) WARN_UNUSED;
void zero_close(struct zero *z);
/* Before the first pass of a step: what slots hold is not that of this step. */
void zero_begin(struct zero *z);
/* Under stages 2 and 3: the losses of the micro-batch at work take their place in the tree, as gradients do. */
status zero_losses(struct zero *z, double *losses) WARN_UNUSED;
/* After the last pass: what is queued from now on sees all sums. */
status zero_end(struct zero *z) WARN_UNUSED;
/* After the own parts have changed: whole weights again, under stages 1 and 2, and under 3 of an embedding that has its slot for itself;
 * what the optimizer has called `moved` for is on its way already. */
status zero_gather(struct zero *z) WARN_UNUSED;
#endif
