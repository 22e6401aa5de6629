/* zero: data-parallel ranks that share out one copy of a model's state instead of each holding all of it (Rajbhandari et al.,
 * arXiv:1910.02054), unit by unit of the parameter table: rank r of D has part r of each unit.
 *
 *   stage  whole on each rank          part of each unit               moved
 *   1      weights, gradients          master weights, moments         gradients reduce-scattered once per step, weights gathered once
 *   2      weights                     gradients, too                  gradients of a unit after each of its backwards
 *   3      -                           weights, too                    weights of a unit before each of its forwards and backwards
 *
 * What is not whole passes through slots: one for the embedding, one for what follows the blocks (the same one, where the embedding is
 * not needed again at the end), and one for the block, or the extra prediction, at work. A gather here is done when it returns; where one can be under way while the
 * block before computes, the blocks' slot becomes two, and zero_enter of a block begins that of the next.
 *
 * The sums are those of sync.h, in the same order: the bits of a run do not depend on the stage. Under stages 2 and 3 ranks are the deepest
 * level of the tree, so each takes consecutive micro-batches, and every micro-batch is a group of its own. */
#ifndef INGOT_PARALLEL_ZERO_H
#define INGOT_PARALLEL_ZERO_H
#include "parallel/sync.h"

enum { ZERO_SLOTS = 3 };
/* What a backward forms of a block's gradients: all; or, of schedules that put products off (pipe.h: BI and W), first what is not put off,
 * which is kept until the rest joins it. */
enum zero_half { ZERO_WHOLE, ZERO_INPUTS, ZERO_WEIGHTS };
struct zero_slot {
    void *weight;
    float *grad;
    int unit;                   /* whose weights lie in it; -1: nobody's */
};
struct zero {
    const struct mesh *mesh;    /* not owned, as the others */
    struct params *params;
    const struct sync *sync;
    const struct ops *ops;
    dev_stream stream;
    struct zero_slot slots[ZERO_SLOTS];
    struct unit_hooks hooks;
    int group;                  /* under stages 2 and 3: the one at work, as sync_fold counts them */
    enum zero_half half;
    int store;                  /* of the halves: which of the rank's stores */
    float *kept;                /* [stores][elements of all rows of blocks that are no weights of linears] */
    int end;                    /* the unit that follows the blocks */
    bool stays;                 /* the embedding is needed at the end, too: as the head, or by extra predictions; or the end at the beginning */
    void *scratch;              /* of params.exact on its way */
};

/* Takes the slots, counting or real, after the parameters. mesh NULL: one rank. */
struct zero_lay { const struct mesh *mesh; struct arena *param, *grad; int train, end, stores; bool stays; };
void zero_lay(struct zero *z, struct params *p, const struct zero_lay *l);
/* From then on the decoder's passes over units move what they need. Nothing to do below stage 2. */
void zero_open(struct zero *z, const struct sync *sync, const struct ops *ops, dev_stream stream);
/* Before the first pass of a step: what slots hold is not that of this step. */
void zero_begin(struct zero *z);
/* After the own parts have changed: whole weights again, under stages 1 and 2. */
status zero_gather(struct zero *z) WARN_UNUSED;
#endif
