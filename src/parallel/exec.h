/* exec: what a block needs to run (ops, stream, parameters, communicators), and how blocks lay out their memory.
 *
 * A block allocates from two arenas; the planner counts both with the same code:
 *   act       what backward reads: one set per layer, in use from forward to backward
 *   scratch   what one block needs while it runs. All layers reuse the same memory: the decoder releases the arena
 *             after each layer's X_layout
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
    struct step_scalars *scalars; /* in the op set's memory; the losses read them */
    enum accum accum;             /* how weight-gradient GEMMs write: STORE in a step's first micro-batch, then ADD */
    struct deferred *defer;       /* where linear_wgrad saves its operands for later; NULL: it runs at once */
    const struct sparse_grad *sparse_grad; /* with params.sparse: receives the gradients of n-gram tables */
    int64_t micro;                /* index in the step of the micro-batch in progress, for sparse_grad */
    struct comm *tp;              /* the tensor-parallel ranks, which have the other slices of weights; NULL: none */
    struct comm *cp;              /* the context-parallel ranks, which have the other rows of sequences; NULL: none */
    struct comm *ep;              /* the expert-parallel ranks, which have the other experts; NULL: none */
    struct side_stream *side;     /* carries rows of context and expert ranks while compute runs; NULL: `stream` does */
    struct sp_overlap *sp_overlap; /* state of tensor-parallel communication that overlaps GEMMs; NULL: no overlap */
};

/* Where a branch writes its output. If residual.data is NULL: dst = output. Else (only if the branch can add, X_adds):
 * dst = residual + output, rounded once. */
struct branch_dst { struct tensor dst, residual; };

enum layout_mode { LAYOUT_TRAIN, LAYOUT_FORWARD }; /* FORWARD: evaluation and generation; nothing is saved for
                                                      backward */

struct layout {
    int64_t n;                  /* number of tokens of a micro-batch on this rank */
    int tp_size;                /* number of sequence-parallel ranks (0: one): each has n / tp_size rows of the residual
                                   stream */
    enum context_kind context_kind;
    int cp_size;                /* number of context-parallel ranks (0: one): the micro-batch has n x cp_size tokens */
    int64_t docs_max, len_max;  /* maximum number of documents of a micro-batch, and maximum length of one */
    const struct ops *ops;      /* the op set that scratch and workspace are for */
    dtype dt;
    enum recipe recipe;         /* params.recipe: how GEMMs read activations, nn/linear.h */
    const struct params *params;
    /* FP8: whether a branch's input y, and its output gradient dout, already carry codes (nn/linear.h); the memory for
     * the codes of dout, which all layers share */
    bool codes_y, codes_dout;
    void *dout_codes, *dout_codes_t;
    enum layout_mode mode;
    bool sparse;                /* params.sparse */
    bool z_loss;                /* train.z_loss is not 0: z_sum gets its terms */
    enum recompute recompute;
    struct arena *act, *scratch;
    /* Pipeline rank: number of sets of activations per chunk, and of micro-batches with delayed linear_wgrad. 0, 0: no
     * pipeline, one set for all layers */
    int sets, stores;
};

/* The arena of a saved activation. `cheapest` is the cheapest recompute policy that recomputes it. */
static inline struct arena *layout_arena(const struct layout *l, enum recompute cheapest)
{
    return l->mode == LAYOUT_TRAIN && l->recompute < cheapest ? l->act : l->scratch;
}
#endif
