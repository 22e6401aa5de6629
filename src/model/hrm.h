/* hrm: hierarchical reasoning (Hierarchical Reasoning Model, arXiv:2506.21734, section 2): two stacks of blocks, L (the first
 * hrm_low_layers layers) and H (the others), go over the same tokens again and again, each with a state of its own.
 *
 *     x = norm(embedding);  z_L = z_H = 0 at first
 *     a segment:  N times { T times { z_L <- L(z_L + z_H + x) };  z_H <- H(z_H + z_L) }        logits = head(z_H)
 *
 * A stack is its blocks and a norm behind them: the decoder's own norm is H's. Blocks are the decoder's pre-norm ones and states begin at
 * 0, as in HRM-Text (transformers' hrm_text); the paper has post-norm blocks and draws the first states once. The norm of the embedding
 * stands for the factor sqrt(D) there: beside states of about 1 an embedding of about init_std would not be heard.
 *
 * One-step gradient (the paper's equation 4): a segment's loss goes back through the last pass over H and the last over L, in which the
 * states that came in are constants, to x and the embedding. So backward is that of a decoder of these layers with one more norm, and
 * what blocks keep is one set for a pass over each layer: earlier passes write to the same memory and are forgotten.
 *
 * Deep supervision: hrm_segments segments, each from the states that the last left, each with a loss. Their gradients are of one step of
 * the optimizer (the paper takes one behind each segment), the loss is their mean. Evaluation and generation hear the last segment alone.
 *
 * Halting (hrm_halt; the paper's Q-learning): q = (halt, continue) is formed of z_H at a document's last token. A document stops behind the
 * first segment that says halt > continue (hrm_explore makes some go on), and has no targets in later ones. halt learns whether every target
 * of the document was the likeliest token, continue what the head will say one segment later: so a step first goes through segments + 1
 * segments without gradient and keeps what the head says in each. With plain text hardly a document is ever all right, and halt stays low:
 * it is for tasks with answers. Evaluation and generation go through all segments, as the paper's evaluation does.
 *
 *   tensor  shape    dtype  lives    backward
 *   x       [N, D]   dt     act      the normed embedding; its gradient is the stream's behind L's first block
 *   in      [N, D]   dt     act      x + z_H
 *   sum     [N, D]   dt     act      of L's last block, what its norm reads
 *   low     [N, D]   dt     act      z_L; z_H is a->y
 *   q       [segments + 1, docs, 2] A, act; stop [docs], masked [segments, N] I32, act: with hrm_halt (ops/ops_halt.h)
 *
 * FLOPs of a forward: blocks as often as they are visited (spec.h: model_visits); backward as of one visit per segment. */
#ifndef INGOT_MODEL_HRM_H
#define INGOT_MODEL_HRM_H
#include "model/decoder.h"

struct hrm {
    struct norm_block input, low;
    int halt, halt_bias; /* parameter rows; -1: no head */
};
struct hrm_saved {
    struct tensor x, in, sum, low;
    struct tensor q, stop, masked;
    struct norm_saved input_norm, low_norm;
};

/* Of a model without it, all of these do nothing. */
status hrm_init(struct decoder *d) WARN_UNUSED;
status hrm_lay(struct activations *a, const struct decoder *d, const struct lay *l) WARN_UNUSED;
void hrm_rows(struct activations *a, int64_t rows);
/* From a->x to x, once in a forward. */
status hrm_begin(const struct decoder *d, struct activations *a, const struct exec *r) WARN_UNUSED;
/* What pass k (spec.h: model_pass) reads: the stream and what is to be added to it. */
status hrm_enter(const struct decoder *d, struct activations *a, int64_t k, struct block_io *io,
                 const struct exec *r) WARN_UNUSED;
/* From the stream behind L's last block to z_L; and its gradient in place, from z_L's to the stream's. */
status hrm_low_fwd(const struct decoder *d, struct activations *a, const struct block_io *io,
                   const struct exec *r) WARN_UNUSED;
status hrm_low_bwd(const struct decoder *d, struct activations *a, const struct exec *r) WARN_UNUSED;
/* a->grad from x's gradient to the embedding's. */
status hrm_begin_bwd(const struct decoder *d, struct activations *a, const struct exec *r) WARN_UNUSED;
/* Training, before the first segment: which documents take part in which. Leaves states behind; pass 0 begins anew. */
status hrm_look(const struct decoder *d, struct activations *a, const struct batch *b,
                const struct exec *r) WARN_UNUSED;
/* The targets of a segment, and whether the head halts: then the loss is to count hits. */
const int32_t *hrm_targets(const struct decoder *d, const struct activations *a, const struct batch *b,
                           int64_t segment);
static inline bool hrm_halts(const struct decoder *d) { return d->hrm && d->hrm->halt >= 0; }
/* The head's loss behind a segment: run.scalars->halt_sum +=, a->dy and parameter gradients += of halt_sum * halt_scale. */
status hrm_halt_bwd(const struct decoder *d, struct activations *a, const struct batch *b, int64_t segment,
                    const struct exec *r) WARN_UNUSED;
#endif
