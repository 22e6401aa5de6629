#include "base/parallel.h"
#include "ops/cpu/oracle/oracle.h"
#include "tensor/f8.h"

static void check_quantized(const struct quantized *q, int64_t n)
{
    CHECK(q->dt == DTYPE_F8_E4M3 || q->dt == DTYPE_F8_E5M2, "codes in %s", dtype_name(q->dt));
    CHECK(!quantized_any(q) || (q->scale && n % 16 == 0), "codes of rows of %lld%s", (long long)n,
          q->scale ? "" : " without a scale");
}

/* The larger of two magnitudes as bits, where NaN is above Inf. */
static uint32_t larger(uint32_t most, double x)
{
    const float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    bits &= 0x7fffffffu;
    return bits > most ? bits : most;
}

static uint32_t row_amax(const struct quantize_args *a, int64_t r, int64_t stride)
{
    uint32_t most = 0;
    for (int64_t j = 0; j < a->n; j++) most = larger(most, get(a->x, r * stride + j, a->dt));
    return most;
}

static void row_codes(const struct quantize_args *a, int64_t r, int64_t stride)
{
    const struct quantized *q = &a->q;
    const double scale = (double)*q->scale;
    for (int64_t j = 0; j < a->n; j++) {
        const double x = get(a->x, r * stride + j, a->dt) * scale;
        if (q->codes) put(q->codes, r * a->n + j, q->dt, x);
        if (q->codes_t) put(q->codes_t, j * quantized_ld(a->rows) + r, q->dt, x);
    }
}

static status quantize(const struct quantize_args *args, dev_stream s)
{
    (void)s;
    const struct quantize_args there = quantize_there(args), *a = &there;
    check_dt(a->dt);
    check_quantized(&a->q, a->n);
    const int64_t stride = a->x_stride ? a->x_stride : a->n, ld = quantized_ld(a->rows);
    uint32_t most = 0;
    for (int64_t r = 0; r < a->rows && a->q.amax; r++) {
        const uint32_t row = row_amax(a, r, stride);
        most = row > most ? row : most;
    }
    if (a->q.amax) {
        uint32_t before;
        memcpy(&before, a->q.amax, sizeof before);
        if (most > before) memcpy(a->q.amax, &most, sizeof most);
    }
    if (!quantized_any(&a->q)) return STATUS_OK;
    PARALLEL_CHUNKS(r, a->rows) row_codes(a, r, stride);
    for (int64_t j = 0; j < a->n && a->q.codes_t; j++)
        memset((uint8_t *)a->q.codes_t + j * ld + a->rows, 0, (size_t)(ld - a->rows));
    return STATUS_OK;
}

void oracle_quantized(const struct quantized *q, const void *x, int64_t rows, int64_t n, dtype dt)
{
    const struct quantize_args a = {.x = x, .q = *q, .rows = rows, .n = n, .dt = dt};
    if (quantized_asked(q)) CHECK(quantize(&a, NULL) == STATUS_OK, "quantize fails");
}

static void scale_store(float *scale, float *scale_inv, int exponent)
{
    *scale = ldexpf(1, exponent);
    *scale_inv = ldexpf(1, -exponent);
}

/* Of tensor i, over the ranks. */
static uint32_t amax_of(const struct fp8_scales_args *a, int64_t i)
{
    uint32_t most = 0, bits;
    for (int64_t r = 0; r < (a->all ? a->ranks : 1); r++) {
        memcpy(&bits, a->all ? &a->all[r * a->all_stride + i] : &a->amax[i], sizeof bits);
        most = bits > most ? bits : most;
    }
    return most;
}

static status fp8_scales(const struct fp8_scales_args *a, dev_stream s)
{
    (void)s;
    for (int64_t i = 0; i < a->count; i++) {
        const uint32_t bits = amax_of(a, i);
        float amax;
        memcpy(&amax, &bits, sizeof amax);
        a->amax[i] = 0;
        if (!isfinite(amax)) {
            a->scalars->fp8_overflow += 1;
            continue;
        }
        if (a->scaling == FP8_DELAYED) {
            float *history = a->history + i * FP8_HISTORY;
            history[a->scalars->step % FP8_HISTORY] = amax;
            for (int k = 0; k < FP8_HISTORY; k++) amax = fmaxf(amax, history[k]);
        }
        if (amax > 0)
            scale_store(&a->scale[i], &a->scale_inv[i * FP8_SCALE_STRIDE],
                        fp8_scale_exponent(a->dt, ldexp(amax, a->margin)));
    }
    return STATUS_OK;
}

static status fp8_bound(const struct fp8_bound_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    double w = 0, b = 0;
    for (int64_t j = 0; j < a->d; j++) {
        const double x = fabs(get(a->w, j, a->dt) + a->shift);
        w = x > w || isnan(x) ? x : w;
        const double y = a->b ? fabs(get(a->b, j, a->dt)) : 0;
        b = y > b || isnan(y) ? y : b;
    }
    /* in f32, as the GPU computes it */
    const float bound = 1.01f * (sqrtf((float)a->d) * (float)w + (float)b);
    if (isfinite(bound) && bound > 0)
        scale_store(a->scale, a->scale_inv, fp8_scale_exponent(a->codes, (double)bound));
    return STATUS_OK;
}

void oracle_fp8(struct ops *o)
{
    o->quantize = quantize;
    o->fp8_scales = fp8_scales;
    o->fp8_bound = fp8_bound;
}
