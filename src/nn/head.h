/* head: computes logits and cross-entropy in chunks of tokens, forward and backward in one pass. The head's forward
 * GEMM runs once, and the [N, V] logits are never stored.
 *
 *   tensor   shape                dtype  memory
 *   y        [N, D]               dt     by caller: output of the final norm
 *   W        [V, D]               dt     param: the head's own weight, or the embedding table if tied
 *   dy       [N, D]               dt     =, by caller (data NULL: loss only)
 *   logits   [chunk, width]       ldt    scratch; A, or dt if the op set prefers it (ops.logits_dt)
 *   dlogits  [chunk, width]       dt     scratch; the same memory as logits if dt == ldt
 *   loss     [N]                  A      scratch: per token, 0 if the target is TARGET_IGNORE
 *   hits     [N]                  A      scratch: 1 if the target is the argmax
 *   z        [N]                  A      scratch: per token, the z-loss term; in training with a z-loss only
 *                                          (layout.z_loss). Shares memory with hits if training does not count them
 *   parts    [t, chunk, XENT_PARTS]  A   scratch, on t ranks: each rank's partial row sums (ops_vocab.h)
 *
 * With model.logit_softcap the logits are capped in place after their GEMM: cap tanh(logits / cap).
 *
 * The GEMMs have `width` columns: zero rows after W (param.room) pad it, and their logits have neither loss nor
 * gradient. On an H200 the three GEMMs of GPT-2's 50257 ids reach 100 to 170 TFLOP/s, also with 16-byte aligned rows;
 * with 50304 ids they reach 786.
 *
 * With t tensor-parallel ranks, each has the weights and logits of V / t ids. Every rank has all of y and the loss;
 * dy is a partial sum (sequence_parallel.h).
 *
 * dW = in the first chunk of a step, += after that. The gradient is computed with the loss, so its scale 1 / (valid
 * targets of the whole step) must be known beforehand; the loader counts them. 6 D V FLOPs per token in all. */
#ifndef INGOT_NN_HEAD_H
#define INGOT_NN_HEAD_H
#include "data/load/loader.h"
#include "parallel/exec.h"

enum { HEAD_ALIGN = 64 };
struct head {
    int64_t vocab, d; /* vocab: number of ids of this rank's shard, one of `slices` equal ones */
    int64_t width;    /* number of GEMM columns: vocab; on one rank padded to a multiple of HEAD_ALIGN */
    int slice, slices;
    double cap; /* model.logit_softcap; 0: none */
    bool halts; /* model.hrm_halt: training counts hits, too */
    int w;      /* parameter row */
};
struct head_saved {
    struct tensor logits, dlogits, loss, hits, z, parts;
};

/* tied_to: row of the embedding table; -1: a separate weight. */
void head_init(struct head *m, struct params *p, const struct model_spec *spec, int tied_to);
void head_layout(const struct head *m, struct head_saved *s, const struct layout *l);

/* loss_sum += sum over valid targets of the cross-entropy, z_sum += sum of the z-loss; without z_sum, or without memory
 * for z, loss_sum gets both. With dy: dy =, and dW = or += (accum), the gradients of (loss_sum + z_sum) *
 * grad_scale. */
struct head_loss_args {
    struct tensor y, dy;
    const int32_t *targets;   /* [N] */
    const double *grad_scale; /* read only with dy */
    double *loss_sum, *z_sum; /* these and grad_scale are in the set's memory; z_sum may be NULL */
    enum accum accum;         /* for dW: exec.accum in the first loss of a micro-batch, then ACCUM_ADD */
    double z_loss;
    double *hits;             /* += number of targets that were the argmax; the head's `hits` has them per token;
                                 NULL: not counted */
};
status head_loss(const struct head *m, struct head_saved *s, const struct head_loss_args *a,
                 const struct exec *r) WARN_UNUSED;
/* Computes the logits [rows, V or width] in A of a few rows, for generation and tests. */
status head_logits(const struct head *m, struct tensor y, struct tensor logits,
                   const struct exec *r) WARN_UNUSED;
#endif
