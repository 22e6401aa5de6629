/* Ops of Mamba-2 (Dao & Gu, arXiv:2405.21060) before and after its state recurrence. The convolution and the
 * recurrence are in ops_gdn.h. Included by ops.h, whose conventions apply. A head has d channels. */
#ifndef INGOT_OPS_OPS_SSM_H
#define INGOT_OPS_OPS_SSM_H
#include "tensor/dtype.h"
#include <stdint.h>

/* step = softplus(raw + dt_bias); g = -exp(A_log) step, the logarithm of the decay; v = step x, the input of the
 * state. */
struct ssm_in_fwd_args {
    const void *raw;            /* [rows, heads] dt, row stride raw_stride */
    const void *x;              /* [rows, heads d] dt, row stride x_stride */
    const void *a_log, *dt_bias;    /* [heads] A */
    void *step, *g;             /* [rows, heads] A */
    void *v;                    /* [rows, heads d] dt contiguous */
    int64_t rows, heads, d, raw_stride, x_stride;
    dtype dt;
};
/* The complete gradient of x: through v, and through s = o + skip x (ssm_out_bwd). */
struct ssm_in_bwd_args {
    const void *dg;             /* [rows, heads] A */
    const void *dv, *ds;        /* [rows, heads d] dt contiguous; ds NULL, like skip and dskip: x is read only
                                   through v */
    const void *raw, *x, *step; /* as in forward */
    const void *a_log, *dt_bias, *skip;     /* [heads] A */
    void *draw;                 /* [rows, heads] dt =, row stride draw_stride */
    void *dx;                   /* [rows, heads d] dt =, row stride dx_stride */
    void *da_log, *ddt_bias, *dskip;        /* [heads] A += */
    int64_t rows, heads, d, raw_stride, x_stride, draw_stride, dx_stride;
    dtype dt;
};

/* y = (o + skip x) silu(z); skip per head. */
struct ssm_out_fwd_args {
    const void *o;              /* [rows, heads d] dt contiguous */
    const void *x, *z;          /* [rows, heads d] dt, strides below */
    const void *skip;           /* [heads] A */
    void *y;                    /* [rows, heads d] dt contiguous; may alias o without a backward */
    int64_t rows, heads, d, x_stride, z_stride;
    dtype dt;
};
struct ssm_out_bwd_args {
    const void *dy, *o, *x, *z, *skip;
    void *ds;                   /* [rows, heads d] dt =: gradient of o + skip x, and so of o; may alias dy */
    void *dz;                   /* [rows, heads d] dt =, row stride dz_stride */
    int64_t rows, heads, d, x_stride, z_stride, dz_stride;
    dtype dt;
};
#endif
