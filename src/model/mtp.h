/* mtp: multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2). Module k = 1..K predicts the token k
 * positions after the head's target. Its inputs are the residual stream of the previous module (k = 1: of the last
 * block) and the embedding of token t + k.
 *
 *     h'_t = E enorm(embed(token[t+k])) + H hnorm(h^{k-1}_t);   h^k = block(h')
 *     logits^k = head(norm(h^k)) against target[t+k]
 *
 * E and H are the two halves of the paper's matrix over [embedding | residual stream]: two GEMMs, added by the first
 * norm of the block. Embedding and head are the model's. The block is layer L + k - 1 of model.layers. If token t + k
 * is not in the document, the row has a zero embedding and no target; every mixer is causal, so no other row reads
 * it.
 *
 * With tensor parallelism a rank has its rows of all these [N, D] tensors, and the full E and H; it computes their
 * gradients from its rows.
 *
 * The loss is weight / K times the sum over k of the cross-entropies, each divided by the number of valid targets of
 * the head in the step, as in the paper; no z-loss. Evaluation and generation skip the modules. Kept per token and
 * module besides the block (decoder.h), in elements: s D, y D and two ids always; e D, ne D, nh D with recompute
 * none. */
#ifndef INGOT_MODEL_MTP_H
#define INGOT_MODEL_MTP_H
#include "model/decoder.h"
#include "nn/linear.h"

struct mtp {
    struct norm_block enorm, hnorm, norm;
    struct linear e, h;
    struct block block;
    int unit;       /* the module's own unit of the parameter table */
};
struct mtp_saved {
    struct tensor tokens, targets;      /* [N] I32: shifted by k */
    struct tensor ahead;                /* I32, scratch; context parallelism: shifted ids of the rows of all ranks */
    struct tensor embedded, e, h, s, y; /* [N, D]: embedding, its norm, the residual stream's norm; sum after the
                                           block, its norm */
    struct norm_saved enorm, hnorm, norm;
    struct block_saved block;
    struct linear_saved e_saved, h_saved;
};

/* Declares d->spec.mtp_depth modules in d->mtp. */
status mtp_init(struct decoder *d) WARN_UNUSED;
status mtp_layout(struct activations *a, const struct decoder *d, const struct layout *l) WARN_UNUSED;
void mtp_rows(struct activations *a, const struct decoder *d, int64_t rows);
/* Forward and backward of all modules. Call it after decoder_fwd and before the head's loss, with the units of
 * embedding and head entered for backward. `stream`: the last block's sum. exec.scalars->mtp_loss_sum +=; parameter
 * gradients of mtp_loss_sum * mtp_scale as in decoder_fwd_bwd; a->grad = the gradient of `stream`. Overwrites a->x and
 * a->branch. */
status mtp_fwd_bwd(const struct decoder *d, struct activations *a, const struct batch *b, struct tensor stream,
                   const struct exec *r) WARN_UNUSED;
#endif
