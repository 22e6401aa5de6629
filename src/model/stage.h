/* stage: the decoder on a rank of a pipeline: a chunk of its blocks, forward and backward of one micro-batch apart.
 *
 * Between stages travels the stream with what is pending added to it, s1 of the next block, in dt: norm_fwd rounds that sum before it reads
 * it, so the next stage sees the same bits with no branch pending. Back travels G, the gradient of the stream. So a chain of stages does
 * what decoder_fwd_bwd does, on the same numbers, in the same order.
 *
 * What backward reads is kept in sets: as many as there are micro-batches of a chunk between forward and backward at once. All chunks
 * of a rank share them. Scratch, and a micro-batch's transients, are there once. The loss is formed in backward, where its gradient
 * is needed: the last stage keeps the final sum. */
#ifndef INGOT_MODEL_STAGE_H
#define INGOT_MODEL_STAGE_H
#include "model/decoder.h"

struct stage_set {
    struct block_saved *blocks; /* [layer_count], owned; those of the rank are laid out */
    struct tensor s;            /* [N, D]: the final sum, on the last stage */
};
struct stages {
    struct stage_set *sets;     /* [set_count], owned */
    struct deferred *stores;    /* [store_count], owned */
    int set_count, store_count;
};

/* What activations_lay calls for lay.sets > 0. */
status stages_lay(struct activations *a, const struct decoder *d, const struct lay *l) WARN_UNUSED;
void stages_fini(struct activations *a);

struct stage_at {
    const struct decoder *decoder;
    struct activations *acts;
    int chunk, set;
};
/* Whether the embedding is in front of the stage, or the loss behind it. */
bool stage_first(const struct stage_at *s);
bool stage_last(const struct stage_at *s);
/* From acts->x (first: from the tokens) to acts->x (last: to the final norm's output, acts->y). */
status stage_fwd(const struct stage_at *s, const struct batch *b, const struct exec *r) WARN_UNUSED;
/* From acts->grad (last: from the loss, which is added as decoder_fwd_bwd does) to acts->grad (first: to the embedding's gradient).
 * `fresh`: nothing was done since the set's stage_fwd. */
struct stage_bwd {
    double z_loss;
    bool fresh;
};
status stage_bwd(const struct stage_at *s, const struct batch *b, const struct stage_bwd *how,
                 const struct exec *r) WARN_UNUSED;
/* Evaluation, behind the last stage's stage_fwd: loss_sum and hits, as decoder_loss does. */
status stage_loss(const struct stage_at *s, const struct batch *b, const struct exec *r) WARN_UNUSED;
#endif
