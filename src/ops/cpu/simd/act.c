/* Activations: SwiGLU and GELU. Both use the logistic function: 1 + tanh(u) = 2 sigmoid(2u), which does not cancel
 * where tanh(u) is near -1. */
#include "base/parallel.h"
#include "ops/cpu/simd/simd.h"
#include "ops/cpu/simd/vecmath.h"

enum { GRAIN = 16384 };

static void check_dt(dtype dt)
{
    CHECK(dt == DTYPE_F32 || dt == DTYPE_BF16, "dtype %s", dtype_name(dt));
}

VEC_INLINE void swiglu_row(const struct swiglu_fwd_args *a, int64_t r, dtype dt)
{
    for (int64_t j = 0; j < a->f; j += VEC) {
        int n = vec_n(a->f - j);
        vf gate = vec_load(a->gu, 2 * r * a->f + j, n, dt),
           up = vec_load(a->gu, (2 * r + 1) * a->f + j, n, dt);
        vec_store(a->m, r * a->f + j, n, dt, gate / (1.f + vec_exp(-gate)) * up);
    }
}

static int64_t row_grain(int64_t f)
{
    return f < GRAIN ? GRAIN / (f > 0 ? f : 1) : 1;
}

static status swiglu_fwd(const struct swiglu_fwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    const int64_t grain = row_grain(a->f);
    PARALLEL_CHUNKS(c, chunk_count(a->rows, grain))
    {
        struct span rows = chunk_span(c, a->rows, grain);
        for (int64_t r = rows.begin; r < rows.end; r++) {
            if (a->dt == DTYPE_F32)
                swiglu_row(a, r, DTYPE_F32);
            else
                swiglu_row(a, r, DTYPE_BF16);
        }
    }
    return STATUS_OK;
}

/* d silu(z)/dz = sigmoid(z) (1 + z (1 - sigmoid(z))). */
VEC_INLINE void swiglu_bwd_row(const struct swiglu_bwd_args *a, int64_t r, dtype dt)
{
    const int64_t gates = 2 * r * a->f, ups = gates + a->f;
    for (int64_t j = 0; j < a->f; j += VEC) {
        int n = vec_n(a->f - j);
        vf gate = vec_load(a->gu, gates + j, n, dt), up = vec_load(a->gu, ups + j, n, dt);
        vf dm = vec_load(a->dm, r * a->f + j, n, dt);
        struct vec_sigmoid sg = vec_sigmoid(gate);
        vec_store(a->dgu, gates + j, n, dt, dm * up * sg.yes * (1.f + gate * sg.no));
        vec_store(a->dgu, ups + j, n, dt, dm * gate * sg.yes);
    }
}

static status swiglu_bwd(const struct swiglu_bwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    const int64_t grain = row_grain(a->f);
    PARALLEL_CHUNKS(c, chunk_count(a->rows, grain))
    {
        struct span rows = chunk_span(c, a->rows, grain);
        for (int64_t r = rows.begin; r < rows.end; r++) {
            if (a->dt == DTYPE_F32)
                swiglu_bwd_row(a, r, DTYPE_F32);
            else
                swiglu_bwd_row(a, r, DTYPE_BF16);
        }
    }
    return STATUS_OK;
}

static const float GELU_TWICE = 1.59576912f; /* 2 sqrt(2/pi) */
static const float GELU_CUBIC = 0.044715f;

/* y = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3). */
VEC_INLINE void gelu_span(const struct gelu_fwd_args *a, struct span span, dtype dt)
{
    for (int64_t i = span.begin; i < span.end; i += VEC) {
        int n = vec_n(span.end - i);
        vf x = vec_load(a->x, i, n, dt), u2 = GELU_TWICE * x * (1.f + GELU_CUBIC * (x * x));
        vec_store(a->y, i, n, dt, x / (1.f + vec_exp(-u2)));
    }
}

static status gelu_fwd(const struct gelu_fwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    CHECK(a->y != a->x || a->count == 0, "gelu_fwd in place: backward reads x");
    PARALLEL_CHUNKS(c, chunk_count(a->count, GRAIN))
    {
        if (a->dt == DTYPE_F32)
            gelu_span(a, chunk_span(c, a->count, GRAIN), DTYPE_F32);
        else
            gelu_span(a, chunk_span(c, a->count, GRAIN), DTYPE_BF16);
    }
    return STATUS_OK;
}

/* dy/dx = sg (1 + x (1 - sg) 2u'). Beyond |x| = 10 the slope is 0 or 1 in f32, so x is held there and no power overflows. */
VEC_INLINE void gelu_bwd_span(const struct gelu_bwd_args *a, struct span span, dtype dt)
{
    for (int64_t i = span.begin; i < span.end; i += VEC) {
        int n = vec_n(span.end - i);
        vf x = vec_clamp(vec_load(a->x, i, n, dt), -10.f, 10.f), x2 = x * x;
        struct vec_sigmoid sg = vec_sigmoid(GELU_TWICE * x * (1.f + GELU_CUBIC * x2));
        vf du2 = GELU_TWICE * (1.f + 3 * GELU_CUBIC * x2);
        vec_store(a->dx, i, n, dt, vec_load(a->dy, i, n, dt) * sg.yes * (1.f + x * sg.no * du2));
    }
}

static status gelu_bwd(const struct gelu_bwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    PARALLEL_CHUNKS(c, chunk_count(a->count, GRAIN))
    {
        if (a->dt == DTYPE_F32)
            gelu_bwd_span(a, chunk_span(c, a->count, GRAIN), DTYPE_F32);
        else
            gelu_bwd_span(a, chunk_span(c, a->count, GRAIN), DTYPE_BF16);
    }
    return STATUS_OK;
}

void SIMD(simd_act)(struct ops *o)
{
    o->swiglu_fwd = swiglu_fwd;
    o->swiglu_bwd = swiglu_bwd;
    o->gelu_fwd = gelu_fwd;
    o->gelu_bwd = gelu_bwd;
}
