/* head: logits and cross-entropy in chunks of tokens, forward and backward in one pass: the head is multiplied once, and the
 * [N, V] logits never exist.
 *
 *   tensor   shape      dtype  lives
 *   y        [N, D]     dt     by caller: the final norm's output
 *   W        [V, D]     dt     param: the head's own, or the embedding table when tied
 *   dy       [N, D]     dt     =, by caller (NULL data: loss only)
 *   logits   [chunk, width] ldt  scratch; A, or dt where the op set says so (ops.logits_dt)
 *   dlogits  [chunk, width] dt   scratch; is logits itself when dt == ldt
 *   loss     [N]        A      scratch: per token, 0 where the target is TARGET_IGNORE
 *   hits     [N]        A      scratch: 1 where the target is the likeliest token
 *   parts    [t, chunk, XENT_PARTS] A  scratch, on t ranks: what each has to say about the rows' sums (ops_vocab.h)
 *
 * The GEMMs are `width` wide: W is followed by rows of zeros (param.room), whose logits take no part and have no gradient. On an H200 the
 * three GEMMs of GPT-2's 50257 ids reach 100 to 170 TFLOP/s, also with rows that begin at multiples of 16 bytes; those of 50304 786.
 *
 * On t ranks each has the weights and the logits of V / t ids, y and the loss are whole on all of them, and dy is a part of a sum
 * (sequence_parallel.h).
 *
 * dW = in the first chunk of a step, then += . Because the gradient is formed together with the loss, its scale 1 / (valid targets of the whole step) must be
 * known beforehand; the loader counts it. 6 D V FLOPs per token in all. */
#ifndef INGOT_NN_HEAD_H
#define INGOT_NN_HEAD_H
#include "data/load/loader.h"
#include "parallel/exec.h"

enum { HEAD_ALIGN = 64 };
struct head {
    int64_t vocab, d; /* vocab: ids whose weights are here, of slices times as many */
    int64_t width;    /* columns of the GEMMs: vocab, and on one rank zeros up to a multiple of HEAD_ALIGN */
    int slice, slices;
    int w;
};
struct head_saved {
    struct tensor logits, dlogits, loss, hits, parts;
};

/* tied_to: row of the embedding table, or -1 for an own weight. */
void head_init(struct head *m, struct params *p, const struct model_spec *spec, int tied_to);
void head_lay(const struct head *m, struct head_saved *s, const struct lay *l);

/* loss_sum += sum over valid targets of (cross-entropy + z-loss). With dy: dy = and dW = or += (accum), both of loss_sum * grad_scale. */
struct head_loss_args {
    struct tensor y, dy;
    const int32_t *targets;   /* [N] */
    const double *grad_scale; /* read only with dy */
    double *loss_sum;         /* both in the set's memory */
    enum accum accum;         /* of dW: run.accum for the first loss of a micro-batch, then ACCUM_ADD */
    double z_loss;
    double *hits;             /* +=, targets that were the likeliest token, each of them in the head's `hits`; NULL: not counted */
};
status head_loss(const struct head *m, struct head_saved *s, const struct head_loss_args *a,
                 const struct exec *r) WARN_UNUSED;
/* logits [rows, V or width] in A of a few rows, for generation and for tests. */
status head_logits(const struct head *m, struct tensor y, struct tensor logits,
                   const struct exec *r) WARN_UNUSED;
#endif
