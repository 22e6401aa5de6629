/* The memory-bound ops before and after the state recurrence of Mamba-2. Vectors run along a head's channels; values
 * per row and head are computed once, in double. Backward of the inputs sums over rows: chunks of rows, with three
 * lines of one float per head. */
#include "base/parallel.h"
#include "ops/cpu/partial.h"
#include "ops/cpu/simd/simd.h"
#include "ops/cpu/simd/vecmath.h"

#include <math.h>

enum { GRAIN = 64 };

VEC_INLINE struct vec_sigmoid sigmoid(vf x)
{
    return vec_sigmoid(vec_clamp(x, -SIGMOID_END, SIGMOID_END));
}
static double softplus(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}
static void check_type(dtype dt)
{
    CHECK(dt == DTYPE_F32 || dt == DTYPE_BF16, "dtype %s", dtype_name(dt));
}

VEC_INLINE void in_row(const struct ssm_in_fwd_args *a, int64_t t, dtype dt)
{
    for (int64_t h = 0; h < a->heads; h++) {
        const int64_t at = t * a->heads + h, x = t * a->x_stride + h * a->d;
        const float step = (float)softplus(dtype_load(a->raw, t * a->raw_stride + h, dt) +
                                           (double)((const float *)a->dt_bias)[h]);
        ((float *)a->step)[at] = step;
        ((float *)a->g)[at] = -expf(((const float *)a->a_log)[h]) * step;
        for (int64_t j = 0; j < a->d; j += VEC) {
            const int n = vec_n(a->d - j);
            vec_store(a->v, at * a->d + j, n, dt, vec_load(a->x, x + j, n, dt) * step);
        }
    }
}

static status ssm_in_fwd(const struct ssm_in_fwd_args *a, dev_stream s)
{
    (void)s;
    check_type(a->dt);
    PARALLEL_CHUNKS(c, chunk_count(a->rows, GRAIN))
    {
        const struct span rows = chunk_span(c, a->rows, GRAIN);
        for (int64_t t = rows.begin; t < rows.end; t++) {
            if (a->dt == DTYPE_F32)
                in_row(a, t, DTYPE_F32);
            else
                in_row(a, t, DTYPE_BF16);
        }
    }
    return STATUS_OK;
}

/* sums: three lines of `pad`: dA_log, ddt_bias, dskip. */
VEC_INLINE void in_row_bwd(const struct ssm_in_bwd_args *a, int64_t t, float *sums, int64_t pad, dtype dt)
{
    for (int64_t h = 0; h < a->heads; h++) {
        const int64_t at = t * a->heads + h, x = t * a->x_stride + h * a->d, dx = t * a->dx_stride + h * a->d;
        const float step = ((const float *)a->step)[at], skip = a->ds ? ((const float *)a->skip)[h] : 0,
                    pull = -expf(((const float *)a->a_log)[h]) * ((const float *)a->dg)[at];
        vf by_v = {0}, by_s = {0};
        for (int64_t j = 0; j < a->d; j += VEC) {
            const int n = vec_n(a->d - j);
            const vf vx = vec_load(a->x, x + j, n, dt), dv = vec_load(a->dv, at * a->d + j, n, dt),
                     ds = a->ds ? vec_load(a->ds, at * a->d + j, n, dt) : (vf){0};
            by_v += dv * vx;
            by_s += ds * vx;
            vec_store(a->dx, dx + j, n, dt, dv * step + ds * skip);
        }
        const double raw =
            dtype_load(a->raw, t * a->raw_stride + h, dt) + (double)((const float *)a->dt_bias)[h];
        const float draw = (float)((double)(pull + vec_sum(by_v)) / (1 + exp(-raw)));
        sums[h] += pull * step;
        sums[pad + h] += draw;
        sums[2 * pad + h] += vec_sum(by_s);
        dtype_store(a->draw, t * a->draw_stride + h, dt, (double)draw);
    }
}

static status ssm_in_bwd(const struct ssm_in_bwd_args *a, dev_stream s)
{
    (void)s;
    check_type(a->dt);
    struct partial_buffer buffer;
    const int64_t pad = partial_pad(a->heads);
    struct partial sums = partial_init(&buffer, a->rows, 3 * pad);
    PARALLEL_CHUNKS(c, sums.chunks)
    {
        const struct span rows = chunk_span(c, a->rows, sums.grain);
        float *line = partial_line(&sums, c);
        for (int64_t t = rows.begin; t < rows.end; t++) {
            if (a->dt == DTYPE_F32)
                in_row_bwd(a, t, line, pad, DTYPE_F32);
            else
                in_row_bwd(a, t, line, pad, DTYPE_BF16);
        }
    }
    partial_merge(&sums, 0, a->da_log, a->heads);
    partial_merge(&sums, pad, a->ddt_bias, a->heads);
    if (a->ds) partial_merge(&sums, 2 * pad, a->dskip, a->heads);
    return STATUS_OK;
}

VEC_INLINE void out_row(const struct ssm_out_fwd_args *a, int64_t t, dtype dt)
{
    for (int64_t h = 0; h < a->heads; h++) {
        const int64_t o = (t * a->heads + h) * a->d, x = t * a->x_stride + h * a->d,
                      z = t * a->z_stride + h * a->d;
        const float skip = ((const float *)a->skip)[h];
        for (int64_t j = 0; j < a->d; j += VEC) {
            const int n = vec_n(a->d - j);
            const vf gate = vec_load(a->z, z + j, n, dt),
                     sum = vec_load(a->o, o + j, n, dt) + vec_load(a->x, x + j, n, dt) * skip;
            vec_store(a->y, o + j, n, dt, sum * gate * sigmoid(gate).yes);
        }
    }
}

static status ssm_out_fwd(const struct ssm_out_fwd_args *a, dev_stream s)
{
    (void)s;
    check_type(a->dt);
    PARALLEL_CHUNKS(c, chunk_count(a->rows, GRAIN))
    {
        const struct span rows = chunk_span(c, a->rows, GRAIN);
        for (int64_t t = rows.begin; t < rows.end; t++) {
            if (a->dt == DTYPE_F32)
                out_row(a, t, DTYPE_F32);
            else
                out_row(a, t, DTYPE_BF16);
        }
    }
    return STATUS_OK;
}

VEC_INLINE void out_row_bwd(const struct ssm_out_bwd_args *a, int64_t t, dtype dt)
{
    for (int64_t h = 0; h < a->heads; h++) {
        const int64_t o = (t * a->heads + h) * a->d, x = t * a->x_stride + h * a->d,
                      z = t * a->z_stride + h * a->d, dz = t * a->dz_stride + h * a->d;
        const float skip = ((const float *)a->skip)[h];
        for (int64_t j = 0; j < a->d; j += VEC) {
            const int n = vec_n(a->d - j);
            const vf gate = vec_load(a->z, z + j, n, dt), dy = vec_load(a->dy, o + j, n, dt),
                     sum = vec_load(a->o, o + j, n, dt) + vec_load(a->x, x + j, n, dt) * skip;
            const struct vec_sigmoid g = sigmoid(gate);
            vec_store(a->dz, dz + j, n, dt, dy * sum * g.yes * (1.f + gate * g.no));
            vec_store(a->ds, o + j, n, dt, dy * gate * g.yes);
        }
    }
}

static status ssm_out_bwd(const struct ssm_out_bwd_args *a, dev_stream s)
{
    (void)s;
    check_type(a->dt);
    PARALLEL_CHUNKS(c, chunk_count(a->rows, GRAIN))
    {
        const struct span rows = chunk_span(c, a->rows, GRAIN);
        for (int64_t t = rows.begin; t < rows.end; t++) {
            if (a->dt == DTYPE_F32)
                out_row_bwd(a, t, DTYPE_F32);
            else
                out_row_bwd(a, t, DTYPE_BF16);
        }
    }
    return STATUS_OK;
}

void SIMD(simd_ssm)(struct ops *o)
{
    o->ssm_in_fwd = ssm_in_fwd;
    o->ssm_in_bwd = ssm_in_bwd;
    o->ssm_out_fwd = ssm_out_fwd;
    o->ssm_out_bwd = ssm_out_bwd;
}
