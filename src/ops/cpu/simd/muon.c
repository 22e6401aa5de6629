/* The ops between the GEMMs of Muon's step: passes over contiguous elements, each read and written once. */
#include "base/parallel.h"
#include "ops/cpu/simd/split_weights.h"
#include "ops/cpu/simd/simd.h"
#include "ops/cpu/simd/vecmath.h"

enum {
    GRAIN = 16384,
    SUMS = 1024 /* at most: partial sums of the norm are on the stack */
};

static void check_dt(dtype dt)
{
    CHECK(dt == DTYPE_F32 || dt == DTYPE_BF16, "dtype %s", dtype_name(dt));
}

/* f32 sums of short runs, added in f64. */
static double square_sum(const float *x, int64_t count)
{
    enum { RUN = 64 * VEC };
    double sum = 0;
    for (int64_t at = 0; at < count; at += RUN) {
        const int64_t end = at + RUN < count ? at + RUN : count;
        vf lanes = {0};
        for (int64_t i = at; i < end; i += VEC) {
            const vf v = vec_load(x, i, vec_n(end - i), DTYPE_F32);
            lanes += v * v;
        }
        sum += (double)vec_sum(lanes);
    }
    return sum;
}

VEC_INLINE void scale_span(const float *g, void *x, struct span part, float factor, dtype dt)
{
    for (int64_t i = part.begin; i < part.end; i += VEC) {
        const int n = vec_n(part.end - i);
        vec_store(x, i, n, dt, vec_load(g, i, n, DTYPE_F32) * factor);
    }
}

static status muon_normalize(const struct muon_normalize_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    double sums[SUMS], squares = 0;
    const int64_t per_sum = (a->count / SUMS + GRAIN) / GRAIN * GRAIN, count = chunk_count(a->count, per_sum);
    PARALLEL_CHUNKS(c, count)
    {
        const struct span part = chunk_span(c, a->count, per_sum);
        sums[c] = square_sum((const float *)a->g + part.begin, part.end - part.begin);
    }
    for (int64_t c = 0; c < count; c++) squares += sums[c];
    const float factor = (float)(1 / (__builtin_sqrt(squares) + a->eps));
    PARALLEL_CHUNKS(c, chunk_count(a->count, GRAIN))
    {
        const struct span part = chunk_span(c, a->count, GRAIN);
        if (a->dt == DTYPE_F32)
            scale_span(a->g, a->x, part, factor, DTYPE_F32);
        else
            scale_span(a->g, a->x, part, factor, DTYPE_BF16);
    }
    return STATUS_OK;
}

VEC_INLINE void poly_row(const struct newton_schulz_poly_args *a, int64_t row, dtype dt)
{
    const float b = (float)a->b, c = (float)a->c;
    for (int64_t j = 0; j < a->n; j += VEC) {
        const int64_t i = row * a->n + j;
        const int n = vec_n(a->n - j);
        vf y = vec_load(a->x, i, n, dt) * b + vec_load(a->xx, i, n, dt) * c;
        if (row >= j && row < j + n) y[row - j] += (float)a->a;
        vec_store(a->y, i, n, dt, y);
    }
}

static status newton_schulz_poly(const struct newton_schulz_poly_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    const int64_t grain = a->n < GRAIN ? GRAIN / (a->n > 0 ? a->n : 1) : 1;
    PARALLEL_CHUNKS(c, chunk_count(a->n, grain))
    {
        const struct span rows = chunk_span(c, a->n, grain);
        for (int64_t r = rows.begin; r < rows.end; r++) {
            if (a->dt == DTYPE_F32)
                poly_row(a, r, DTYPE_F32);
            else
                poly_row(a, r, DTYPE_BF16);
        }
    }
    return STATUS_OK;
}

VEC_INLINE void step_span(const struct muon_apply_args *a, struct span part, dtype dt)
{
    const float decay = (float)(a->scalars->lr * a->weight_decay), step = (float)(a->scalars->lr * a->scale);
    for (int64_t i = part.begin; i < part.end; i += VEC) {
        const int n = vec_n(part.end - i);
        vf p = master_load(a->p, a->w, a->master_residual, i, n);
        p -= p * decay + vec_load(a->x, i, n, dt) * step;
        master_store(a->p, a->w, a->master_residual, i, n, p);
    }
}

static status muon_apply(const struct muon_apply_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    CHECK(a->p || a->master_residual, "a step of weights without a master");
    if (a->scalars->clip_factor == 0) return STATUS_OK;
    PARALLEL_CHUNKS(c, chunk_count(a->count, GRAIN))
    {
        const struct span part = chunk_span(c, a->count, GRAIN);
        if (a->dt == DTYPE_F32)
            step_span(a, part, DTYPE_F32);
        else
            step_span(a, part, DTYPE_BF16);
    }
    return STATUS_OK;
}

void SIMD(simd_muon)(struct ops *o)
{
    o->muon_normalize = muon_normalize;
    o->newton_schulz_poly = newton_schulz_poly;
    o->muon_apply = muon_apply;
}
