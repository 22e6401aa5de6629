/* Cross-entropy whose logits lie on several ranks: each holds `vocab` consecutive columns (vocabulary-parallel head; arXiv:1909.08053).
 * Included by ops.h; its conventions hold.
 *
 *   xent_part   what a rank's columns say about a row:  {max, sum of e^(z - max), the target's logit, max of the others}
 *               all ranks get the parts of all
 *   xent_join   the row's loss and hit, the same bits on every rank, and the gradient of this rank's columns
 *
 * As xent and hits (ops.h) on the whole row, but for the order in which the sum is formed. */
#ifndef INGOT_OPS_OPS_VOCAB_H
#define INGOT_OPS_OPS_VOCAB_H
#include "tensor/dtype.h"
#include <stdint.h>

enum { XENT_MAX, XENT_SUM, XENT_TARGET, XENT_OTHERS, XENT_PARTS }; /* what a part consists of */
struct xent_part_args {
    const void *logits;     /* [rows, vocab] ldt: columns slice * vocab ... of the whole */
    const int32_t *targets; /* [rows] ids of the whole vocabulary, or TARGET_IGNORE */
    void *part;             /* [rows, XENT_PARTS] A =; zeros where the target is ignored; -inf is the largest of no columns, and the target's
                               logit where it lies elsewhere */
    int64_t rows, vocab;
    int slice, slices;
    dtype dt, ldt;          /* as xent */
};
struct xent_join_args {
    const void *logits;     /* as xent_part */
    void *dlogits;          /* [rows, vocab] dt =; may alias logits when dt == ldt; NULL: loss only */
    const int32_t *targets;
    const void *parts;      /* [slices, rows, XENT_PARTS] A */
    void *loss;             /* [rows] A = */
    void *hits;             /* [rows] A =; NULL: not wanted */
    int64_t rows, vocab;
    int slice, slices;
    const double *grad_scale;
    double z_loss;
    dtype dt, ldt;
};
#endif
