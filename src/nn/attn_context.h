/* attn_context: what the attention core of a layer reads and writes: the layer's own tensors, or, with context
 * parallelism, by parallel.context_kind:
 *
 *   all_gather   own queries; keys and values of all ranks (nn/context_rows.h)
 *   ulysses      queries, keys, values and outputs of all rows, for this rank's part of the heads
 *                (nn/context_heads.h)
 *
 * enter fills the place, leave brings results back to the layer's tensors. Without context parallelism both do
 * nothing more. */
#ifndef INGOT_NN_ATTN_CONTEXT_H
#define INGOT_NN_ATTN_CONTEXT_H
#include "nn/attn.h"

struct attn_place {
    struct attn_heads h;
    struct tensor o, do_;
    const struct batch *batch;      /* of the documents and rows */
    const struct attn_doc *split;   /* as in attn_fwd_args */
    int64_t docs, heads, heads_kv;
    void *dq, *dk, *dv;
    int64_t dq_stride, dk_stride, dv_stride;
};

void attn_context_lay(const struct attn *m, struct attn_saved *s, const struct lay *l);
/* What attention computes at once, for the op set's scratch. */
struct attn_shape attn_context_shape(const struct attn *m, const struct lay *l);
status attn_context_enter(const struct attn *m, struct attn_saved *s, const struct batch *b, struct attn_place *at,
                          const struct exec *r) WARN_UNUSED;
status attn_context_leave(const struct attn *m, struct attn_saved *s, const struct batch *b,
                          const struct exec *r) WARN_UNUSED;
/* The same in backward; s->do_ is given, s->dqkv's q, k and v are the result. */
status attn_context_enter_bwd(const struct attn *m, struct attn_saved *s, const struct batch *b, struct attn_place *at,
                              const struct exec *r) WARN_UNUSED;
status attn_context_leave_bwd(const struct attn *m, struct attn_saved *s, const struct batch *b,
                              const struct exec *r) WARN_UNUSED;
#endif
