/* fp8_linears: the linears of a model whose GEMMs may read FP8 codes: which GEMMs do now, and the scales of their
 * tensors. A part of struct params; parallel/fp8.h fills and updates it.
 *
 * Linear i has three tensors. One with several consumers has the scale of the first of them:
 *   X    its input         E4M3    delayed scale, or a bound (ops/ops_fp8.h)
 *   DY   its output's gradient  E5M2   delayed scale
 *   W    its weight        E4M3    current scale
 * Arrays on the device are [FP8_TENSORS][count]. */
#ifndef INGOT_TENSOR_FP8_LINEARS_H
#define INGOT_TENSOR_FP8_LINEARS_H
#include "tensor/quantized.h"

enum fp8_tensor { FP8_X, FP8_DY, FP8_W, FP8_TENSORS };
/* Which GEMMs of a linear read codes. BF16: none, but amax is measured all the same. */
enum fp8_use { FP8_USE_BF16, FP8_USE_WGRAD_BF16, FP8_USE_ALL };
struct fp8_linears {
    int count;                  /* 0: the model computes in another precision */
    enum fp8_use *use;          /* [count], in host memory, owned */
    int *row;                   /* [count], parameter rows of the weights, owned */
    float *scale, *amax;        /* on the device */
    float *scale_inv;           /* on the device, FP8_SCALE_STRIDE apart */
    float *history;             /* [2][count][FP8_HISTORY]: amax of the last steps, of X and DY */
    float *all;                 /* [ranks][kinds][count]: amax of all ranks, of all or some kinds of tensors; NULL: one
                                   rank */
    int ranks;
};

static inline int64_t fp8_at(const struct fp8_linears *f, enum fp8_tensor t, int linear)
{
    return (int64_t)t * f->count + linear;
}
static inline const float *fp8_scale_inv(const struct fp8_linears *f, enum fp8_tensor t, int linear)
{
    return f->scale_inv + fp8_at(f, t, linear) * FP8_SCALE_STRIDE;
}
/* The FP8 form of a tensor of a linear, with memory for its codes and their transpose (or NULL). */
static inline struct quantized fp8_quantized(const struct fp8_linears *f, enum fp8_tensor t, int linear, void *codes,
                                             void *codes_t)
{
    const int64_t at = f->scale ? fp8_at(f, t, linear) : 0; /* while memory is counted there are no arrays */
    struct quantized q = {codes, codes_t, f->scale + at, f->scale_inv + at * FP8_SCALE_STRIDE, f->amax + at,
                          t == FP8_DY ? DTYPE_F8_E5M2 : DTYPE_F8_E4M3, false};
    return q;
}
#endif
