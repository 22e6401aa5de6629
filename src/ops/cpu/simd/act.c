/* Activations: SwiGLU, GELU and the elementwise gate. All use the logistic function: 1 + tanh(u) = 2 sigmoid(2u),
 * which has no cancellation for tanh(u) near -1. */
#include "base/parallel.h"
#include "ops/cpu/simd/simd.h"
#include "ops/cpu/simd/vecmath.h"

enum { GRAIN = 16384 };

static void check_dt(dtype dt)
{
    CHECK(dt == DTYPE_F32 || dt == DTYPE_BF16, "dtype %s", dtype_name(dt));
}

VEC_INLINE vf silu(vf gate)
{
    return gate * vec_sigmoid(vec_clamp(gate, -SIGMOID_END, SIGMOID_END)).yes;
}

VEC_INLINE void swiglu_row(const struct swiglu_fwd_args *a, int64_t r, dtype dt)
{
    const int64_t gates = 2 * r * a->f, ups = gates + a->f, out = r * a->f;
    int64_t j = 0;
    for (; j + VEC_SIDE * VEC <= a->f; j += VEC_SIDE * VEC) {
        vf m[VEC_SIDE];
        VEC_EACH(k) m[k] = vec_load(a->gu, gates + j + k * VEC, VEC, dt);
        VEC_EACH(k) m[k] = silu(m[k]);
        VEC_EACH(k) m[k] *= vec_load(a->gu, ups + j + k * VEC, VEC, dt);
        VEC_EACH(k) vec_store(a->m, out + j + k * VEC, VEC, dt, m[k]);
    }
    for (; j < a->f; j += VEC) {
        int n = vec_n(a->f - j);
        vec_store(a->m, out + j, n, dt,
                  silu(vec_load(a->gu, gates + j, n, dt)) * vec_load(a->gu, ups + j, n, dt));
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
    return simd_quantized(&a->q, a->m, a->rows, a->f, a->dt);
}

/* silu(z) and its slope, sigmoid(z) (1 + z (1 - sigmoid(z))). */
struct silu {
    vf value, slope;
};
VEC_INLINE struct silu silu_both(vf z)
{
    struct vec_sigmoid sg = vec_sigmoid(vec_clamp(z, -SIGMOID_END, SIGMOID_END));
    vf value = z * sg.yes;
    return (struct silu){value, sg.yes + value * sg.no};
}

VEC_INLINE void swiglu_bwd_row(const struct swiglu_bwd_args *a, int64_t r, dtype dt)
{
    const int64_t gates = 2 * r * a->f, ups = gates + a->f, in = r * a->f;
    int64_t j = 0;
    for (; j + VEC_SIDE * VEC <= a->f; j += VEC_SIDE * VEC) {
        vf z[VEC_SIDE], up[VEC_SIDE];
        struct silu s[VEC_SIDE];
        VEC_EACH(k) z[k] = vec_load(a->gu, gates + j + k * VEC, VEC, dt);
        VEC_EACH(k) s[k] = silu_both(z[k]);
        VEC_EACH(k) z[k] = vec_load(a->dm, in + j + k * VEC, VEC, dt);
        VEC_EACH(k) up[k] = vec_load(a->gu, ups + j + k * VEC, VEC, dt);
        VEC_EACH(k) vec_store(a->dgu, gates + j + k * VEC, VEC, dt, z[k] * up[k] * s[k].slope);
        VEC_EACH(k) vec_store(a->dgu, ups + j + k * VEC, VEC, dt, z[k] * s[k].value);
        if (a->m) VEC_EACH(k) vec_store(a->m, in + j + k * VEC, VEC, dt, s[k].value * up[k]);
    }
    for (; j < a->f; j += VEC) {
        int n = vec_n(a->f - j);
        vf dm = vec_load(a->dm, in + j, n, dt), up = vec_load(a->gu, ups + j, n, dt);
        struct silu s = silu_both(vec_load(a->gu, gates + j, n, dt));
        vec_store(a->dgu, gates + j, n, dt, dm * up * s.slope);
        vec_store(a->dgu, ups + j, n, dt, dm * s.value);
        if (a->m) vec_store(a->m, in + j, n, dt, s.value * up);
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
    CHECK(a->m || !quantized_asked(&a->mq), "codes of an m that is not stored");
    TRY(simd_quantized(&a->q, a->dgu, a->rows, 2 * a->f, a->dt));
    return simd_quantized(&a->mq, a->m, a->rows, a->f, a->dt);
}

/* Beyond |x| = GELU_END, sigmoid(2u) is 0 or 1 in f32. x is clamped there, so 2u stays within SIGMOID_END. */
static const float GELU_END = 9.9f;
static const float GELU_TWICE = 1.59576912f; /* 2 sqrt(2/pi) */
static const float GELU_CUBIC = 0.044715f;

/* y = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3). */
VEC_INLINE vf gelu(vf x)
{
    vf held = vec_clamp(x, -GELU_END, GELU_END);
    return x * vec_sigmoid(held * (GELU_TWICE + GELU_TWICE * GELU_CUBIC * (held * held))).yes;
}

VEC_INLINE void gelu_span(const struct gelu_fwd_args *a, struct span span, dtype dt)
{
    int64_t i = span.begin;
    for (; i + VEC_SIDE * VEC <= span.end; i += VEC_SIDE * VEC) {
        vf x[VEC_SIDE];
        VEC_EACH(k) x[k] = vec_load(a->x, i + k * VEC, VEC, dt);
        VEC_EACH(k) x[k] = gelu(x[k]);
        VEC_EACH(k) vec_store(a->y, i + k * VEC, VEC, dt, x[k]);
    }
    for (; i < span.end; i += VEC) {
        int n = vec_n(span.end - i);
        vec_store(a->y, i, n, dt, gelu(vec_load(a->x, i, n, dt)));
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

/* dy/dx = sg (1 + x (1 - sg) 2u'). */
VEC_INLINE vf gelu_slope(vf x)
{
    x = vec_clamp(x, -GELU_END, GELU_END);
    vf x2 = x * x;
    struct vec_sigmoid sg = vec_sigmoid(x * (GELU_TWICE + GELU_TWICE * GELU_CUBIC * x2));
    return sg.yes + sg.yes * (x * sg.no) * (GELU_TWICE + 3 * GELU_TWICE * GELU_CUBIC * x2);
}

VEC_INLINE void gelu_bwd_span(const struct gelu_bwd_args *a, struct span span, dtype dt)
{
    int64_t i = span.begin;
    for (; i + VEC_SIDE * VEC <= span.end; i += VEC_SIDE * VEC) {
        vf x[VEC_SIDE], d[VEC_SIDE];
        VEC_EACH(k) x[k] = vec_load(a->x, i + k * VEC, VEC, dt);
        VEC_EACH(k) d[k] = gelu_slope(x[k]);
        VEC_EACH(k) d[k] *= vec_load(a->dy, i + k * VEC, VEC, dt);
        VEC_EACH(k) vec_store(a->dx, i + k * VEC, VEC, dt, d[k]);
        if (!a->y) continue;
        VEC_EACH(k) x[k] = gelu(x[k]);
        VEC_EACH(k) vec_store(a->y, i + k * VEC, VEC, dt, x[k]);
    }
    for (; i < span.end; i += VEC) {
        int n = vec_n(span.end - i);
        const vf x = vec_load(a->x, i, n, dt);
        vec_store(a->dx, i, n, dt, gelu_slope(x) * vec_load(a->dy, i, n, dt));
        if (a->y) vec_store(a->y, i, n, dt, gelu(x));
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

VEC_INLINE void gate_row(const struct gate_fwd_args *a, int64_t r, dtype dt)
{
    const int64_t z = r * a->z_stride, at = r * a->d;
    for (int64_t j = 0; j < a->d; j += VEC) {
        int n = vec_n(a->d - j);
        vf s = vec_sigmoid(vec_clamp(vec_load(a->z, z + j, n, dt), -SIGMOID_END, SIGMOID_END)).yes;
        vec_store(a->y, at + j, n, dt, vec_load(a->x, at + j, n, dt) * s);
    }
}

static status gate_fwd(const struct gate_fwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    CHECK(a->z_stride >= a->d, "rows of %lld gates %lld apart", (long long)a->d, (long long)a->z_stride);
    const int64_t grain = row_grain(a->d);
    PARALLEL_CHUNKS(c, chunk_count(a->rows, grain))
    {
        struct span rows = chunk_span(c, a->rows, grain);
        for (int64_t r = rows.begin; r < rows.end; r++) {
            if (a->dt == DTYPE_F32)
                gate_row(a, r, DTYPE_F32);
            else
                gate_row(a, r, DTYPE_BF16);
        }
    }
    return STATUS_OK;
}

VEC_INLINE void gate_bwd_row(const struct gate_bwd_args *a, int64_t r, dtype dt)
{
    const int64_t z = r * a->z_stride, dz = r * a->dz_stride, at = r * a->d;
    for (int64_t j = 0; j < a->d; j += VEC) {
        int n = vec_n(a->d - j);
        struct vec_sigmoid s =
            vec_sigmoid(vec_clamp(vec_load(a->z, z + j, n, dt), -SIGMOID_END, SIGMOID_END));
        vf dy = vec_load(a->dy, at + j, n, dt), x = vec_load(a->x, at + j, n, dt), y = x * s.yes;
        vec_store(a->dx, at + j, n, dt, dy * s.yes);
        vec_store(a->dz, dz + j, n, dt, dy * y * s.no);
        if (a->y) vec_store(a->y, at + j, n, dt, y);
    }
}

static status gate_bwd(const struct gate_bwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    CHECK(a->z_stride >= a->d && a->dz_stride >= a->d, "rows of %lld gates %lld and %lld apart",
          (long long)a->d, (long long)a->z_stride, (long long)a->dz_stride);
    const int64_t grain = row_grain(a->d);
    PARALLEL_CHUNKS(c, chunk_count(a->rows, grain))
    {
        struct span rows = chunk_span(c, a->rows, grain);
        for (int64_t r = rows.begin; r < rows.end; r++) {
            if (a->dt == DTYPE_F32)
                gate_bwd_row(a, r, DTYPE_F32);
            else
                gate_bwd_row(a, r, DTYPE_BF16);
        }
    }
    return STATUS_OK;
}

void SIMD(simd_act)(struct ops *o)
{
    o->swiglu_fwd = swiglu_fwd;
    o->swiglu_bwd = swiglu_bwd;
    o->gelu_fwd = gelu_fwd;
    o->gelu_bwd = gelu_bwd;
    o->gate_fwd = gate_fwd;
    o->gate_bwd = gate_bwd;
}
