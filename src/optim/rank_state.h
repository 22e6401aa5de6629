/* rank_state: the buffers that a rank needs for a training step in addition to parameters and activations.
 *
 * Each member owns buffers in the run's arenas. rank_state_layout() lays out all of them, and is the only function that
 * does: the planner calls it with counting arenas, the trainer with real ones. Opening and closing (streams, events)
 * stay with each member. */
#ifndef INGOT_OPTIM_RANK_STATE_H
#define INGOT_OPTIM_RANK_STATE_H
#include "optim/grad_norm.h"
#include "optim/offload.h"
#include "parallel/sparse_grad.h"
#include "parallel/grad_reduce.h"
#include "parallel/tp_grad.h"
#include "parallel/zero.h"

struct rank_state {
    struct grad_reduce grad_reduce; /* gradient accumulation, and the all-reduce over data-parallel ranks */
    struct sparse_grad sparse_grad; /* gradients of n-gram tables, as rows */
    struct tp_grad tp_grad;         /* all-reduce over tensor-parallel ranks */
    struct grad_norm grad_norm;     /* norm of the whole model's gradient */
    struct zero zero;               /* buffers of FSDP units */
    struct offload offload;         /* device slots for optimizer state in host memory */
    float *kept;                    /* train.verify: the gradient while a micro-batch is computed twice; else NULL */
};

struct rank_state_layout {
    const struct mesh *mesh;        /* NULL: one rank */
    bool train;                     /* false: weights alone (FSDP units under ZeRO 3) */
    bool muon;                      /* allocate Muon's work area in `scratch`, which forward and backward share */
    bool verify;                    /* train.verify */
    int64_t gradient_groups;        /* train.gradient_groups */
    int64_t table_reads;            /* number of n-gram rows that a micro-batch reads */
    int64_t step_micros;            /* number of micro-batches of a step on all data-parallel ranks */
    int end, stores;                /* passed to zero_layout unchanged, */
    bool embedding_resident;        /* as is this one */
    struct arena *param, *grad, *optim, *scratch;
};
/* Lays out everything, after the parameters and before the activations; also the optimizer's tables in `p`. */
void rank_state_layout(struct rank_state *s, struct params *p, const struct rank_state_layout *l);
#endif
