/* Ops of Gated DeltaNet (Yang et al., arXiv:2412.06464) and, without the delta term, of Mamba-2 (Dao & Gu,
 * arXiv:2405.21060). Included by ops.h, whose conventions apply. No state crosses a document boundary. */
#ifndef INGOT_OPS_OPS_GDN_H
#define INGOT_OPS_OPS_GDN_H
#include "tensor/dtype.h"
#include <stdbool.h>

/* Depthwise causal convolution and SiLU: p_t = bias[c] + sum_j w[c][j] x[t - (width-1-j) dilation][c]; terms before
 * the document are 0; y = silu(p). `before` is for generation: the (width-1) dilation rows before the first row of each
 * document; more than one document then has one row each. NULL: zeros. */
struct conv_fwd_args {
    const void *x;              /* [rows, channels] dt, x_stride */
    const void *w;              /* [channels, width] dt */
    const void *bias;           /* [channels] dt; NULL: none */
    const void *before;         /* [docs, (width-1) dilation, channels] dt, or NULL */
    void *y;                    /* [rows, channels] dt, y_stride */
    int64_t x_stride, y_stride;
    const int32_t *cu_seqlens;
    int64_t docs, rows, channels, width;    /* width: 2 to CONV_WIDTH_MAX */
    int64_t dilation;           /* rows between taps, at most CONV_DILATION_MAX; 0 means 1 */
    dtype dt;
};
struct conv_bwd_args {
    const void *dy, *x, *w, *bias;  /* p is recomputed from x */
    void *dx;                   /* [rows, channels] dt =, dx_stride; must not alias dy */
    void *dw;                   /* [channels, width] A += */
    void *dbias;                /* [channels] A +=; NULL if bias is NULL */
    int64_t dy_stride, x_stride, dx_stride;
    const int32_t *cu_seqlens;
    int64_t docs, rows, channels, width, dilation;
    dtype dt;
};
enum { CONV_WIDTH_MAX = 8, CONV_DILATION_MAX = 8 };
static inline int64_t conv_dilation(int64_t dilation) { return dilation ? dilation : 1; }

/* Per token and value head: the logarithm of the decay, g = -exp(A_log) softplus(a + dt_bias) <= 0, and beta =
 * sigmoid(b). */
struct gates_fwd_args {
    const void *a, *b;          /* [rows, heads] dt, row stride `stride` */
    const void *a_log, *dt_bias;    /* [heads] A */
    void *g, *beta;             /* [rows, heads] A */
    int64_t rows, heads, stride;
    dtype dt;
};
struct gates_bwd_args {
    const void *dg, *dbeta, *a, *b, *a_log, *dt_bias;
    void *da, *db;              /* [rows, heads] dt =, row stride d_stride */
    void *da_log, *ddt_bias;    /* [heads] A += */
    int64_t rows, heads, stride, d_stride;
    dtype dt;
};

/* The gated delta rule per value head. State S [dk, dv] starts as 0, or `state_in`, at each document:
 *   S' = e^g S;   u = beta (v - S'^T k);   S = S' + k u^T;   o = scale S^T q
 * With `normalize`, q and k are first normalised per head: x (sum x^2 + 1e-6)^(-1/2). beta NULL: u = v, no delta term
 * (Mamba-2). Value head h reads key head h / (heads / heads_k). */
struct delta_shape {
    int64_t docs, rows, heads, heads_k, dk, dv;
    dtype dt;
};
struct delta_fwd_args {
    const void *q, *k, *v;      /* dt, rows of heads_k dk, heads_k dk, heads dv */
    const void *g, *beta;       /* [rows, heads] A */
    void *o;                    /* [rows, heads dv] dt contiguous */
    void *saved;                /* delta_bytes(DELTA_SAVED) for backward; NULL: no backward */
    const void *state_in;       /* [docs, heads, dk, dv] A, or NULL */
    void *state_out;            /* the same shape, or NULL; may alias state_in */
    int64_t q_stride, k_stride, v_stride;
    const int32_t *cu_seqlens;
    struct delta_shape shape;
    double scale;
    bool normalize;
    void *scratch;              /* delta_bytes(DELTA_FWD) */
};
struct delta_bwd_args {
    const void *q, *k, *v, *g, *beta, *do_, *saved;
    void *dq, *dk, *dv;         /* dt =, strides below */
    void *dg, *dbeta;           /* [rows, heads] A =; dbeta is NULL if beta is */
    int64_t q_stride, k_stride, v_stride, dq_stride, dk_stride, dv_stride;
    const int32_t *cu_seqlens;
    struct delta_shape shape;
    double scale;
    bool normalize;
    void *scratch;              /* delta_bytes(DELTA_BWD) */
};
/* Memory that the set keeps between the passes (states at some rows, or nothing) and needs during each. Pure, like
 * attn_scratch. */
enum delta_memory { DELTA_SAVED, DELTA_FWD, DELTA_BWD };
enum { DELTA_KEYS_CUDA_MAX = 256 };     /* largest dk on a GPU */

/* RMSNorm of each head with a gate: y = w xh silu(z), xh = x (mean x^2 + eps)^(-1/2). */
struct gated_norm_fwd_args {
    const void *x;              /* [rows, heads d] dt contiguous */
    const void *z;              /* [rows, heads d] dt, row stride z_stride */
    const void *w;              /* [d] dt */
    void *y;                    /* [rows, heads d] dt contiguous; may alias x without a backward */
    void *rstd;                 /* [rows, heads] A */
    int64_t rows, heads, d, z_stride;
    double eps;
    dtype dt;
};
struct gated_norm_bwd_args {
    const void *dy, *x, *z, *w, *rstd;
    void *dx;                   /* [rows, heads d] dt =; may alias dy */
    void *dz;                   /* [rows, heads d] dt =, row stride dz_stride */
    void *dw;                   /* [d] A += */
    int64_t rows, heads, d, z_stride, dz_stride;
    dtype dt;
};
#endif
