/* Ops between the GEMMs of Muon's step (optim/muon.h). Included by ops.h, whose conventions apply. */
#ifndef INGOT_OPS_OPS_MUON_H
#define INGOT_OPS_OPS_MUON_H
#include "tensor/dtype.h"

struct step_scalars;

/* x = g / (||g|| + eps); ||g||^2 = sum of g^2 in f64, in a fixed order. */
struct muon_normalize_args {
    const void *g;          /* [count] A */
    void *x;                /* [count] dt = */
    int64_t count;
    double eps;
    dtype dt;
};
/* y = a I + b x + c xx */
struct newton_schulz_poly_args {
    const void *x, *xx;     /* [n, n] dt */
    void *y;                /* [n, n] dt =; may alias xx */
    int64_t n;
    double a, b, c;
    dtype dt;
};
/* p = p (1 - lr wd) - lr scale x; w = bf16(p). Split master weights (w and master_residual) may replace p, as in
 * `update`. lr is scalars->lr. Does nothing if scalars->clip_factor is 0: `update` found a gradient that is not
 * finite. */
struct muon_apply_args {
    const void *x;                      /* [count] dt */
    float *p;                           /* [count]; NULL: the master weights are w and master_residual */
    bf16 *w;                            /* [count]; NULL in F32 training */
    uint16_t *master_residual;          /* [count]; NULL: p has all bits */
    int64_t count;
    double scale, weight_decay;
    const struct step_scalars *scalars; /* in the set's memory */
    dtype dt;                           /* F32 or BF16 */
};
#endif
