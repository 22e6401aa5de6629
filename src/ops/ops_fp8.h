/* Ops of FP8 training: codes of a tensor, and the scales of the next step. Included by ops.h: its conventions apply. */
#ifndef INGOT_OPS_OPS_FP8_H
#define INGOT_OPS_OPS_FP8_H
#include "base/status.h"
#include "tensor/block_format.h"
#include "tensor/dtype.h"
#include "tensor/quantized.h"
#include <math.h>

struct step_scalars;

/* Writes the FP8 form of x: what of q is not NULL. With q.amax alone nothing but the maximum is computed. */
struct quantize_args {
    const void *x;              /* [rows, n] dt, rows x_stride apart */
    struct quantized q;         /* q.only is ignored: x is read */
    int64_t rows, n, x_stride;  /* x_stride 0: n */
    dtype dt;                   /* BF16 or F32 (F64 in the oracle) */
    const int32_t *count;       /* as in combine_args: the rows from there on are neither read nor written; without
                                   q.codes_t. NULL: all exist */
};

/* On the CPU: the same of the rows that exist. */
static inline struct quantize_args quantize_there(const struct quantize_args *a)
{
    struct quantize_args there = *a;
    CHECK(!a->count || (!a->q.codes_t && *a->count >= 0 && *a->count <= a->rows), "%d of %lld rows",
          (int)*a->count, (long long)a->rows);
    if (a->count) there.rows = *a->count;
    there.count = NULL;
    return there;
}

static inline double fp8_max(dtype codes) { return codes == DTYPE_F8_E4M3 ? 448 : 57344; }
/* floor(log2(max / amax)) within -126 .. 126, for a finite amax > 0: max and amax are m 2^e with 0.5 <= m < 1. */
static inline int fp8_scale_exponent(dtype codes, double amax)
{
    int e_max, e_amax;
    const double m_max = frexp(fp8_max(codes), &e_max), m_amax = frexp(amax, &e_amax);
    const int e = e_max - e_amax - (m_amax > m_max);
    return e > 126 ? 126 : e < -126 ? -126 : e;
}

/* Scales of `count` tensors of one kind, from what this step has measured:
 *   DELAYED  history[i][step % FP8_HISTORY] = amax; scale from the largest of history[i]
 *   CURRENT  scale from amax
 * scale = 2^floor(log2(max / (2^margin amax))), within 2^-126 .. 2^126, computed from the bits of amax, without
 * division; scale_inv = 1 / scale. An amax of 0 leaves the scale as it is. If an amax is not finite, scale and history
 * of its tensor stay as they are and scalars->fp8_overflow is increased by 1. Sets amax to 0. */
enum { FP8_HISTORY = 16 };
enum fp8_scaling { FP8_DELAYED, FP8_CURRENT };
struct fp8_scales_args {
    enum fp8_scaling scaling;
    float *amax;                /* [count] */
    const float *all;           /* [ranks][all_stride]: amax of each rank, the first `count` of each; NULL: amax */
    float *history;             /* [count][FP8_HISTORY]; DELAYED only */
    float *scale;               /* [count] */
    float *scale_inv;           /* of tensor i at [i FP8_SCALE_STRIDE] */
    int64_t count, ranks, all_stride;
    int margin;                 /* binades of room above amax */
    struct step_scalars *scalars; /* in the set's memory: reads step, writes fp8_overflow */
    dtype dt;                   /* of the codes: max is 448 (F8_E4M3) or 57344 (F8_E5M2) */
};

/* The scale of a norm's output y = xh (w + shift) + b, where sum xh^2 <= d: |y| <= sqrt(d) max|w + shift| + max|b|, so
 * no element saturates. scale = 2^floor(log2(max / (1.01 bound))), scale_inv = 1 / scale. The bound is computed in F32,
 * each operation rounded, without fused multiply-add. A bound of 0, or not finite: the scale stays as it is. */
struct fp8_bound_args {
    const void *w, *b;          /* [d] dt; b NULL: none */
    float *scale, *scale_inv;
    int64_t d;
    double shift;
    dtype dt;                   /* of w and b */
    dtype codes;                /* F8_E4M3 or F8_E5M2 */
};

/* Encodes x with scales of its own (tensor/block_format.h; the arithmetic: ops/block_scale.h), and writes what of
 * `values`, `codes` and `scales` is not NULL. Lines are rows, or columns with `columns`. The last block of a line may
 * be short.
 *
 * hadamard: NV; before all else, groups of 16 elements of a line are rotated (block_rotate), and the values are those
 * of the rotated tensor. Lines are multiples of 16.
 * stochastic: NV; codes are rounded up with the probability that makes the mean exact. Element i of line j takes half
 * word i % 8 of rng_at(seed, RNG_CODES, scalars->step, first + (j ld + i) / 8), ld the length rounded up to 16. */
struct quantize_blocks_args {
    const void *x;              /* [rows, n] dt */
    bf16 *values;               /* [rows, n] =: the decoded codes */
    uint8_t *codes;             /* [lines, block_ld] = */
    void *scales;               /* block_scale_bytes = */
    float *tensor;              /* [2] =: the largest magnitude, and the scale; formats with one */
    int64_t rows, n;
    enum block_format format;
    bool columns;
    bool square;                /* B128, NV: blocks are as high as long */
    bool hadamard, stochastic;
    bool exact;                 /* NV: the tensor's scale is no power of two; without `values` */
    uint64_t seed, first;
    const struct step_scalars *scalars; /* in the set's memory; read with `stochastic` */
    dtype dt;                   /* BF16 or F32 (F64 in the oracle) */
};
static inline int64_t quantize_blocks_lines(const struct quantize_blocks_args *a)
{
    return a->columns ? a->n : a->rows;
}
static inline int64_t quantize_blocks_length(const struct quantize_blocks_args *a)
{
    return a->columns ? a->rows : a->n;
}
void quantize_blocks_check(const struct quantize_blocks_args *a);
#endif
