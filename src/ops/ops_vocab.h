/* Vocabulary-parallel cross-entropy: each rank holds `vocab` consecutive columns of the logits (arXiv:1909.08053).
 * Included by ops.h, whose conventions apply.
 *
 *   vocab_xent_partial  per row, of this rank's columns: {max, sum of e^(z - max), the target's logit, max of the
 *               others}
 *               the ranks then all-gather the parts
 *   vocab_xent_finish   the row's loss and hit, with equal bits on every rank, and the gradient of this rank's columns
 *
 * The result is that of xent and hits (ops.h) on the full row, except for the order of the sum. */
#ifndef INGOT_OPS_OPS_VOCAB_H
#define INGOT_OPS_OPS_VOCAB_H
#include "tensor/dtype.h"
#include <stdint.h>

enum { XENT_MAX, XENT_SUM, XENT_TARGET, XENT_OTHERS, XENT_PARTS }; /* the values of a part */
struct vocab_xent_partial_args {
    const void *logits;     /* [rows, vocab] ldt: columns slice * vocab ... of the full row */
    const int32_t *targets; /* [rows] ids of the full vocabulary, or TARGET_IGNORE */
    void *part;             /* [rows, XENT_PARTS] A =; zeros if the target is ignored; -inf for the maximum of no
                               columns, and for the target's logit if another rank has it */
    int64_t rows, vocab;
    int slice, slices;
    dtype dt, ldt;          /* as in xent */
};
struct vocab_xent_finish_args {
    const void *logits;     /* as in vocab_xent_partial */
    void *dlogits;          /* [rows, vocab] dt =; may alias logits if dt == ldt; NULL: only the loss */
    const int32_t *targets;
    const void *parts;      /* [slices, rows, XENT_PARTS] A */
    void *loss;             /* [rows] A = */
    void *z_term;           /* as in xent */
    void *hits;             /* [rows] A =; NULL: not stored */
    int64_t rows, vocab;
    int slice, slices;
    const double *grad_scale;
    double z_loss, cap;     /* cap: as in xent */
    dtype dt, ldt;
};
#endif
