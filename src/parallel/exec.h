/* What a block needs to execute, and how blocks lay out their memory.
 *
 * Memory of a block comes from two arenas, both counted by the planner with the same code:
 *   act      what backward reads: one set per layer, alive from forward to backward
 *   scratch  what one block needs for itself; every layer gets the same place, because the decoder releases the scratch arena after
 *            each layer's X_lay. Recompute policies decide, tensor by tensor, which of the two a saved activation goes to. */
#ifndef INGOT_PARALLEL_EXEC_H
#define INGOT_PARALLEL_EXEC_H
#include "base/arena.h"
#include "comm/comm.h"
#include "ops/ops.h"
#include "spec/spec.h"
#include "tensor/params.h"
#include "tensor/tensor.h"

struct deferred; /* nn/linear.h */
struct sp_overlap; /* nn/sequence_parallel.h */
struct sparse_grad; /* parallel/sparse_grad.h */
struct exec {
    const struct ops *ops;
    dev_stream stream;
    const struct params *params;
    struct step_scalars *scalars; /* in the set's memory; read where a loss is formed */
    enum accum accum;             /* of GEMMs that form parameter gradients: STORE in a step's first micro-batch, then ADD */
    struct deferred *defer;       /* where linear_wgrad keeps what it will need; NULL: it is done at once */
    const struct sparse_grad *tables;  /* of params.sparse: where gradients of tables go; */
    int64_t micro;                /* and the number in the step of the micro-batch at work */
    struct comm *tp;              /* the ranks that hold the other slices of the weights and rows of the stream; NULL: nobody */
    struct sp_overlap *way;        /* what they exchange beside GEMMs; NULL: nothing */
};

/* Where a branch goes: to = its output, or, with `sum` (data not NULL: where the branch adds), to = sum + output, rounded once. */
struct sink { struct tensor to, sum; };

enum lay_mode { LAY_TRAIN, LAY_FORWARD }; /* FORWARD: evaluation and generation; nothing is saved */

struct lay {
    int64_t n;                  /* tokens of a micro-batch */
    int shares;                 /* ranks that hold n / shares rows of the stream each (sequence_parallel.h); 0: one */
    int64_t docs_max, len_max;  /* documents that it may hold, and the length of the longest */
    const struct ops *ops;      /* whose scratch and workspace are laid out */
    dtype dt;
    enum recipe recipe;         /* how GEMMs read activations: nn/linear.h */
    enum lay_mode mode;
    bool sparse;                /* params.sparse */
    enum recompute recompute;
    struct arena *act, *scratch;
    /* A rank of a pipeline: sets of activations of a chunk, and micro-batches whose linear_wgrad waits. 0, 0: all layers, once */
    int sets, stores;
};

/* Where a saved activation goes: `cheapest` is the first policy under which it is computed again instead of kept. */
static inline struct arena *lay_place(const struct lay *l, enum recompute cheapest)
{
    return l->mode == LAY_TRAIN && l->recompute < cheapest ? l->act : l->scratch;
}
#endif
