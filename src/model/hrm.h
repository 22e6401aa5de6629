/* hrm: Hierarchical Reasoning Model (arXiv:2506.21734, section 2). Two stacks of blocks, L (the first hrm_low_layers
 * layers) and H (the others), process the same tokens repeatedly; each has its own state.
 *
 *     x = norm(embedding);  z_L = z_H = 0 at first
 *     a segment:  N times { T times { z_L <- L(z_L + z_H + x) };  z_H <- H(z_H + z_L) }        logits = head(z_H)
 *
 * A stack is its blocks followed by a norm; H uses the decoder's final norm. Blocks are the decoder's pre-norm
 * blocks, and states start at 0, as in HRM-Text (transformers' hrm_text); the paper has post-norm blocks and random
 * initial states, drawn once. The norm of the embedding replaces HRM-Text's factor sqrt(D): next to states of about
 * 1, an embedding of about init_std would have no effect.
 *
 * One-step gradient (equation 4 of the paper): a segment's loss propagates through the last pass over H and the last
 * over L, to x and the embedding. The incoming states of these passes are constants. Backward is therefore that of a
 * decoder of these layers with one more norm, and the blocks keep one set of activations for one pass over each
 * layer; earlier passes overwrite it.
 *
 * Deep supervision: there are hrm_segments segments. Each starts from the states that the previous one left, and each
 * has a loss. The loss is their mean, and one optimizer step uses the gradients of all (the paper takes one step per
 * segment). Evaluation and generation use the last segment only.
 *
 * Halting (hrm_halt; the paper's Q-learning): q = (halt, continue) is computed from z_H at a document's last token. A
 * document stops after the first segment with halt > continue (hrm_explore delays some stops) and has no targets in
 * later segments. The target of `halt` is 1 if every target of the document was the argmax. The target of `continue`
 * is the head's output one segment later. A step therefore first runs segments + 1 segments without gradient and
 * stores the head's outputs. In plain text almost no document is predicted completely, so halt stays low: halting is
 * for tasks with answers. Evaluation and generation run all segments, as the paper's evaluation does.
 *
 *   tensor  shape    dtype  memory   backward
 *   x       [N, D]   dt     act      the normed embedding; its gradient is G after the backward of L's first block
 *   in      [N, D]   dt     act      x + z_H
 *   sum     [N, D]   dt     act      of L's last block: the input of its norm
 *   low     [N, D]   dt     act      z_L; z_H is a->y
 *   q       [segments + 1, docs, 2] A, act; stop [docs], masked [segments, N] I32, act: with hrm_halt (ops/ops_halt.h)
 *
 * FLOPs of a forward: every visit of a block counts (spec.h: model_visits); backward counts one visit per segment. */
#ifndef INGOT_MODEL_HRM_H
#define INGOT_MODEL_HRM_H
#include "model/decoder.h"

struct hrm {
    struct norm_block input, low;
    int halt, halt_bias; /* parameter rows; -1: no halting head */
};
struct hrm_saved {
    struct tensor x, in, sum, low;
    struct tensor q, stop, masked;
    struct norm_saved input_norm, low_norm;
};

/* For a model without HRM these functions do nothing. */
status hrm_init(struct decoder *d) WARN_UNUSED;
status hrm_layout(struct activations *a, const struct decoder *d, const struct layout *l) WARN_UNUSED;
void hrm_rows(struct activations *a, int64_t rows);
/* Computes x from a->x, once per forward. */
status hrm_begin(const struct decoder *d, struct activations *a, const struct exec *r) WARN_UNUSED;
/* The input of pass k (spec.h: model_pass): the residual stream and the branch to add. */
status hrm_enter(const struct decoder *d, struct activations *a, int64_t k, struct block_io *io,
                 const struct exec *r) WARN_UNUSED;
/* Forward: from the residual stream after L's last block to z_L. Backward: from the gradient of z_L to that of the
 * residual stream, in place. */
status hrm_low_fwd(const struct decoder *d, struct activations *a, const struct block_io *io,
                   const struct exec *r) WARN_UNUSED;
status hrm_low_bwd(const struct decoder *d, struct activations *a, const struct exec *r) WARN_UNUSED;
/* Changes a->grad from the gradient of x to that of the embedding. */
status hrm_begin_bwd(const struct decoder *d, struct activations *a, const struct exec *r) WARN_UNUSED;
/* Training, before the first segment: computes which documents take part in which segments. It overwrites the states;
 * pass 0 resets them. */
status hrm_look(const struct decoder *d, struct activations *a, const struct batch *b,
                const struct exec *r) WARN_UNUSED;
/* The targets of a segment. hrm_halts: true if the model has a halting head; the loss then counts hits. */
const int32_t *hrm_targets(const struct decoder *d, const struct activations *a, const struct batch *b,
                           int64_t segment);
static inline bool hrm_halts(const struct decoder *d) { return d->hrm && d->hrm->halt >= 0; }
/* The halting head's loss after a segment: exec.scalars->halt_sum +=; a->dy and parameter gradients += those of
 * halt_sum * halt_scale. */
status hrm_halt_bwd(const struct decoder *d, struct activations *a, const struct batch *b, int64_t segment,
                    const struct exec *r) WARN_UNUSED;
#endif
