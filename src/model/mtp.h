/* mtp: multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2): module k = 1..K predicts the token k further on than the head
 * does, from the stream that the module before it left (k = 1: the last block's) and the embedding of token t + k.
 *
 *     h'_t = E enorm(embed(token[t+k])) + H hnorm(h^{k-1}_t);   h^k = block(h');   logits^k = head(norm(h^k)) against target[t+k]
 *
 * E and H are the two halves of the paper's one matrix over [embedding | stream]: two GEMMs, whose sum the block's first norm forms.
 * Embedding and head are the model's. The block is layer L + k - 1 of model.layers. Rows whose token t + k is not in their document
 * have an embedding of zeros and no target; every mixer is causal, so no other row sees them.
 *
 * With tensor parallelism a rank has its rows of all of these [N, D], and whole E and H, of whose gradients it forms its rows' part.
 *
 * The loss is weight / K times the sum over k of the cross-entropies, each divided by the step's valid targets of the head, as in
 * the paper; no z-loss. Evaluation and generation pass the modules over. Kept per token and module beside the block's own (decoder.h), in
 * elements: s D, y D, two ids always; e D, ne D, nh D under recompute none. */
#ifndef INGOT_MODEL_MTP_H
#define INGOT_MODEL_MTP_H
#include "model/decoder.h"
#include "nn/linear.h"

struct mtp {
    struct norm_block enorm, hnorm, norm;
    struct linear e, h;
    struct block block;
    int unit;       /* of the parameter table: its own */
};
struct mtp_saved {
    struct tensor tokens, targets;      /* [N] I32: k further on */
    struct tensor embedded, e, h, s, y; /* [N, D]: embedding, its norm, the stream's norm; sum after the block, its norm */
    struct norm_saved enorm, hnorm, norm;
    struct block_saved block;
    struct linear_saved e_saved, h_saved;
};

/* Declares the modules of d->spec.mtp_depth into d->mtp. */
status mtp_init(struct decoder *d) WARN_UNUSED;
status mtp_lay(struct activations *a, const struct decoder *d, const struct lay *l) WARN_UNUSED;
void mtp_rows(struct activations *a, const struct decoder *d, int64_t rows);
/* All modules forward and backward, after decoder_fwd and before the head's loss, with the units of embedding and head entered for backward: run.scalars->mtp_loss_sum +=, parameter gradients of
 * mtp_loss_sum * mtp_scale as decoder_fwd_bwd says, and a->grad = the gradient of a->s. */
status mtp_fwd_bwd(const struct decoder *d, struct activations *a, const struct batch *b,
                   const struct exec *r) WARN_UNUSED;
#endif
