/* exec: what a block needs to run (ops, stream, parameters, communicators), and how blocks lay out their memory.
 *
 * A block allocates from two arenas; the planner counts both with the same code:
 *   act      what backward reads: one set per layer, in use from forward to backward
 *   scratch what one block needs while it runs. All layers reuse the same memory: the decoder releases the arena after
 *   each layer's X_lay
 *
 * The recompute policy (activation checkpointing) decides for each saved activation which of the two it is allocated
 * from. */
#ifndef INGOT_PARALLEL_EXEC_H
#define INGOT_PARALLEL_EXEC_H
#include "base/arena.h"
#include "comm/comm.h"
#include "ops/ops.h"
#include "spec/spec.h"
#include "tensor/params.h"
#include "tensor/tensor.h"

struct deferred; /* nn/linear.h */
struct side_stream; /* parallel/side_stream.h */
struct sp_overlap; /* nn/sequence_parallel.h */
struct sparse_grad; /* parallel/sparse_grad.h */
struct exec {
    const struct ops *ops;
    dev_stream stream;
    const struct params *params;
    struct step_scalars *scalars; /* in the op set's memory; read by the losses */
    enum accum accum;             /* of weight-gradient GEMMs: STORE in a step's first micro-batch, then ADD */
    struct deferred *defer;       /* where linear_wgrad saves its operands for later; NULL: it runs at once */
    const struct sparse_grad *sparse_grad; /* with params.sparse: where gradients of n-gram tables go, */
    int64_t micro;                /* for the micro-batch of this index in the step */
    struct comm *tp;              /* tensor-parallel ranks, with the other slices of weights and sequence; NULL: none */
    struct comm *cp;              /* context-parallel ranks, with the other rows of each sequence; NULL: none */
    struct comm *ep;              /* expert-parallel ranks, which have other experts; NULL: none */
    struct side_stream *side;     /* where rows of context and expert ranks travel beside compute; NULL: the stream */
    struct sp_overlap *sp_overlap; /* state of tensor-parallel communication that overlaps GEMMs; NULL: no overlap */
};

/* Where a branch writes: to = output; with `sum` (data not NULL, if the branch can add): to = sum + output, rounded
 * once. */
struct sink { struct tensor to, sum; };

enum lay_mode { LAY_TRAIN, LAY_FORWARD }; /* FORWARD: evaluation and generation; nothing is saved for backward */

struct lay {
    int64_t n;                  /* tokens of a micro-batch */
    int shares;                 /* sequence-parallel ranks, with n / shares rows of the residual stream; 0: one */
    enum context_kind context_kind;
    int context;                /* context-parallel ranks: a micro-batch has n x context tokens; 0: one */
    int64_t docs_max, len_max;  /* documents of a micro-batch, and the length of the longest, at most */
    const struct ops *ops;      /* the op set that scratch and workspace are for */
    dtype dt;
    enum recipe recipe;         /* params.recipe: how GEMMs read activations, nn/linear.h */
    const struct params *params;
    /* FP8: whether y, and dout, of a branch bring their codes (nn/linear.h); memory for those of dout, of all layers */
    bool codes_y, codes_dout;
    void *dout_codes, *dout_codes_t;
    enum lay_mode mode;
    bool sparse;                /* params.sparse */
    bool z_loss;                /* train.z_loss is not 0: its terms are summed apart */
    enum recompute recompute;
    struct arena *act, *scratch;
    /* Of a pipeline rank: sets of activations per chunk, and micro-batches with delayed linear_wgrad. 0, 0: all layers,
     * once */
    int sets, stores;
};

/* The arena of a saved activation: `cheapest` is the first policy that recomputes it. */
static inline struct arena *lay_place(const struct lay *l, enum recompute cheapest)
{
    return l->mode == LAY_TRAIN && l->recompute < cheapest ? l->act : l->scratch;
}
#endif
