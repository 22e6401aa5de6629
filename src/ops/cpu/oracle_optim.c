#include "base/parallel.h"
#include "ops/cpu/oracle.h"
#include <math.h>

enum { GRAIN = 4096 };

static status sum(const struct sum_args *a, dev_stream s)
{
    (void)s;
    for (int64_t i = 0; i < a->count; i++) *a->out += get(a->x, i, a->dt);
    return STATUS_OK;
}

static status sumsq(const struct sumsq_args *a, dev_stream s)
{
    (void)s;
    CHECK(a->dt == DTYPE_F32 || a->dt == DTYPE_F64, "sumsq of %s", dtype_name(a->dt));
    double sum = 0;
    for (int64_t i = 0; i < a->count; i++) sum += get(a->x, i, a->dt) * get(a->x, i, a->dt);
    *a->out += sum;
    return STATUS_OK;
}

static status adamw(const struct adamw_args *a, dev_stream s)
{
    (void)s;
    CHECK(a->correction1 > 0 && a->correction2 > 0, "corrections %g %g", a->correction1, a->correction2);
    PARALLEL_CHUNKS(c, chunk_count(a->count, GRAIN))
    {
        struct span span = chunk_span(c, a->count, GRAIN);
        for (int64_t i = span.begin; i < span.end; i++) {
            double g = (double)a->g[i] * a->grad_scale;
            double m = a->beta1 * (double)a->m[i] + (1 - a->beta1) * g;
            double v = a->beta2 * (double)a->v[i] + (1 - a->beta2) * g * g;
            double step = m / a->correction1 / (sqrt(v / a->correction2) + a->eps);
            a->p[i] = (float)((double)a->p[i] * (1 - a->lr * a->weight_decay) - a->lr * step);
            a->m[i] = (float)m;
            a->v[i] = (float)v;
            a->g[i] = 0;
            if (a->w) a->w[i] = bf16_from_f32(a->p[i]);
        }
    }
    return STATUS_OK;
}

static status lion(const struct lion_args *a, dev_stream s)
{
    (void)s;
    PARALLEL_CHUNKS(c, chunk_count(a->count, GRAIN))
    {
        struct span span = chunk_span(c, a->count, GRAIN);
        for (int64_t i = span.begin; i < span.end; i++) {
            double g = (double)a->g[i] * a->grad_scale, m = a->m[i];
            double mix = a->beta1 * m + (1 - a->beta1) * g, u = mix > 0 ? 1 : mix < 0 ? -1 : 0;
            a->p[i] = (float)((double)a->p[i] * (1 - a->lr * a->weight_decay) - a->lr * u);
            a->m[i] = (float)(a->beta2 * m + (1 - a->beta2) * g);
            a->g[i] = 0;
            if (a->w) a->w[i] = bf16_from_f32(a->p[i]);
        }
    }
    return STATUS_OK;
}

void oracle_optim(struct ops *o)
{
    o->sum = sum;
    o->sumsq = sumsq;
    o->adamw = adamw;
    o->lion = lion;
}
