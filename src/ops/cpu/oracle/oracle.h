/* The oracle: every op in plain loops, with all arithmetic in double, for F64, F32 and BF16. Fast kernels are tested
 * against it, and gradient checks run on it, so it favours obvious correctness. It rounds only where ops.h stores a
 * tensor. One thread writes each element and adds its sum in a fixed order. Each file fills the slots of its op
 * family. */
#ifndef INGOT_OPS_CPU_ORACLE_ORACLE_H
#define INGOT_OPS_CPU_ORACLE_ORACLE_H
#include "ops/ops.h"
#include "ops/rounding.h"
#include "ops/update_rule.h"
#include <math.h>
#include <string.h>

void oracle_gemm(struct ops *o);
void oracle_embed(struct ops *o);
void oracle_tokens(struct ops *o);
void oracle_norm(struct ops *o);
void oracle_rope(struct ops *o);
void oracle_attn(struct ops *o);
void oracle_mla(struct ops *o);
void oracle_act(struct ops *o);
void oracle_gdn(struct ops *o);
void oracle_moe(struct ops *o);
void oracle_halt(struct ops *o);
void oracle_generate(struct ops *o);
void oracle_ssm(struct ops *o);
void oracle_loss(struct ops *o);
void oracle_normal(struct ops *o);
void oracle_optim(struct ops *o);
void oracle_fp8(struct ops *o);
void oracle_blocks(struct ops *o);

/* The op `quantize` on an op's stored output x [rows, n]; nothing where q asks for nothing. */
void oracle_quantized(const struct quantized *q, const void *x, int64_t rows, int64_t n, dtype dt);

enum { ORACLE_HD_MAX = 1024 }; /* head width that fits the oracle's stack buffers */

/* dtype_load and dtype_store with a switch that the compiler can hoist out of the loops. */
static inline double get(const void *p, int64_t i, dtype dt)
{
    if (dt == DTYPE_F64) return ((const double *)p)[i];
    if (dt == DTYPE_F32) return (double)((const float *)p)[i];
    return dtype_load(p, i, dt);
}
static inline void put(void *p, int64_t i, dtype dt, double v)
{
    if (dt == DTYPE_F64)
        ((double *)p)[i] = v;
    else if (dt == DTYPE_F32)
        ((float *)p)[i] = (float)v;
    else
        dtype_store(p, i, dt, v);
}

/* Checks that dt is one of the three types that ops compute in. */
static inline void check_dt(dtype dt)
{
    CHECK(dt == DTYPE_F64 || dt == DTYPE_F32 || dt == DTYPE_BF16, "ops do not compute in %s", dtype_name(dt));
}

/* The step of `update` between its two passes: computes the factor of all gradients from the sum of squares. Returns
 * false when the norm is not finite and no array may change. */
static inline bool update_factor(const struct update_args *a, double squares, double *factor)
{
    double norm = sqrt(squares);
    *factor = !isfinite(norm) ? 0 : a->clip > 0 ? fmin(1, a->clip / (norm + 1e-6)) : 1;
    a->scalars->grad_norm = norm;
    a->scalars->clip_factor = *factor;
    return isfinite(norm);
}
/* The learning rate of chunks without UPDATE_ROWS. */
static inline double update_lr(const struct update_args *a)
{
    return a->scalars->lr * (a->rate > 0 ? a->rate : 1);
}
/* Element i of master weights stored as p, as split master weights (w and low), or as w alone. */
static inline float master_get(const float *p, const bf16 *w, const uint16_t *low, int64_t i)
{
    float x;
    if (p) return p[i];
    const uint32_t bits = rounding_joined(w[i], low ? low[i] : 0);
    memcpy(&x, &bits, sizeof x);
    return x;
}
/* Stores a master weight. w and low may be NULL. At most one of p and low is given. */
static inline void master_put(float *p, bf16 *w, uint16_t *low, int64_t i, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const struct half_pair h = rounding_halves(bits);
    if (p) p[i] = x;
    if (low) low[i] = h.low;
    if (w) w[i] = h.upper;
}
static inline bool update_alone(const struct update_args *a)
{
    return a->p == NULL && a->master_residual == NULL;
}
/* True for a row of UPDATE_ROWS whose gradient is all zeros. */
static inline bool update_untouched(const float *g, int64_t width)
{
    bool zero = true;
    for (int64_t i = 0; i < width; i++) zero &= g[i] == 0;
    return zero;
}
/* Row rows[k] of rows_update as a chunk; count 0: this rank does not store the row. */
static inline struct update_chunk rows_chunk(const struct rows_update_args *a, int64_t k)
{
    const int64_t r = a->rows[k];
    if (r < a->from || r >= a->to) return (struct update_chunk){0};
    return (struct update_chunk){.begin = a->begin + (r - a->from) * a->width,
                                 .count = (int32_t)a->width,
                                 .v_offset = a->v_offset,
                                 .key = a->key,
                                 .first = a->first + r * a->stride};
}
static inline void update_check(const struct update_args *a)
{
    CHECK(a->moment_dt == DTYPE_F32 || a->moment_dt == DTYPE_BF16 || (a->moment_dt == DTYPE_U8 && a->row_rate == 0),
          "moments of %s", dtype_name(a->moment_dt));
    CHECK(a->p == NULL || a->master_residual == NULL, "weights that are in two places");
    CHECK(a->p || a->w, "weights that are nowhere");
    CHECK(!update_needs(a->rule).corrections || (a->scalars->correction1 > 0 && a->scalars->correction2 > 0),
          "corrections %g %g", a->scalars->correction1, a->scalars->correction2);
}
#endif
