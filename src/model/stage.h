/* stage: the decoder on a pipeline rank: a chunk of its blocks, with forward and backward of a micro-batch as
 * separate calls.
 *
 * A stage sends the residual stream including the pending add, s1 of the next block, in dt. norm_fwd rounds that sum
 * before it reads it, so the next stage has the same bits and no pending branch. Backward sends G, the gradient of
 * the residual stream. A chain of stages therefore computes decoder_fwd_bwd on the same numbers in the same order.
 *
 * Activations for backward are kept in sets, one per micro-batch and chunk that is between forward and backward. All
 * chunks of a rank share the sets. Scratch and transient tensors exist once. The loss is computed in backward, which
 * needs its gradient: the last stage keeps the final sum. */
#ifndef INGOT_MODEL_STAGE_H
#define INGOT_MODEL_STAGE_H
#include "model/decoder.h"

struct stage_set {
    struct block_saved *blocks; /* [layer_count], owned; only this rank's are allocated */
    struct tensor s;            /* [N, D]: the final sum, on the last stage */
};
struct stages {
    struct stage_set *sets;     /* [set_count], owned */
    struct deferred *stores;    /* [store_count], owned */
    int set_count, store_count;
};

/* activations_layout calls it if layout.sets > 0. */
status stages_layout(struct activations *a, const struct decoder *d, const struct layout *l) WARN_UNUSED;
void stages_fini(struct activations *a);

/* The last stage has the embedding, too: a tied head or MTP modules read it. */
static inline bool stage_shares_table(const struct model_spec *m) { return m->tied_embeddings || m->mtp_depth > 0; }

struct stage_at {
    const struct decoder *decoder;
    struct activations *acts;
    int chunk, set;
};
/* stage_first: the embedding belongs to the stage. stage_last: the loss does. */
bool stage_first(const struct stage_at *s);
bool stage_last(const struct stage_at *s);
/* From acts->x (first stage: from the tokens) to acts->x (last stage: to the final norm's output, acts->y). */
status stage_fwd(const struct stage_at *s, const struct batch *b, const struct exec *r) WARN_UNUSED;
/* From acts->grad (last stage: from the loss, added as in decoder_fwd_bwd) to acts->grad (first stage: to the
 * embedding's gradient). `fresh`: no other call was made since stage_fwd of this set. */
struct stage_bwd {
    double z_loss;
    bool fresh;
};
status stage_bwd(const struct stage_at *s, const struct batch *b, const struct stage_bwd *how,
                 const struct exec *r) WARN_UNUSED;
/* Evaluation, after the last stage's stage_fwd: loss_sum and hits, as in decoder_loss. */
status stage_loss(const struct stage_at *s, const struct batch *b, const struct exec *r) WARN_UNUSED;
#endif
