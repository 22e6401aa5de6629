/* Optimizers over flat ranges: one pass, each array read and written once. Chunks are of fixed size, elements are independent. */
#include "base/parallel.h"
#include "ops/cpu/simd/simd.h"
#include "ops/cpu/simd/vecmath.h"

enum { GRAIN = 65536 };

/* The update in f32, its constants folded: p = p decay - step m / (sqrt(v) root + eps). */
static void adamw_span(const struct adamw_args *a, struct span span)
{
    const float scale = (float)a->grad_scale, eps = (float)a->eps;
    const float beta1 = (float)a->beta1, rest1 = (float)(1 - a->beta1);
    const float beta2 = (float)a->beta2, rest2 = (float)(1 - a->beta2);
    const float decay = (float)(a->lr * a->weight_decay), step = (float)(a->lr / a->correction1);
    const float root = (float)(1 / __builtin_sqrt(a->correction2));
    for (int64_t i = span.begin; i < span.end; i += VEC) {
        int n = vec_n(span.end - i);
        vf g = vec_load(a->g, i, n, DTYPE_F32) * scale, p = vec_load(a->p, i, n, DTYPE_F32);
        vf m = vec_load(a->m, i, n, DTYPE_F32) * beta1 + g * rest1;
        vf v = vec_load(a->v, i, n, DTYPE_F32) * beta2 + g * g * rest2;
        p -= p * decay + step * m / (vec_sqrt(v) * root + eps);
        vec_store(a->m, i, n, DTYPE_F32, m);
        vec_store(a->v, i, n, DTYPE_F32, v);
        vec_store(a->p, i, n, DTYPE_F32, p);
        vec_store(a->g, i, n, DTYPE_F32, (vf){0});
        if (a->w) vec_store(a->w, i, n, DTYPE_BF16, p);
    }
}

static status adamw(const struct adamw_args *a, dev_stream s)
{
    (void)s;
    CHECK(a->correction1 > 0 && a->correction2 > 0, "corrections %g %g", a->correction1, a->correction2);
    PARALLEL_CHUNKS(c, chunk_count(a->count, GRAIN))
    {
        adamw_span(a, chunk_span(c, a->count, GRAIN));
    }
    return STATUS_OK;
}

static void lion_span(const struct lion_args *a, struct span span)
{
    const float scale = (float)a->grad_scale, lr = (float)a->lr, decay = (float)(a->lr * a->weight_decay);
    const float beta1 = (float)a->beta1, rest1 = (float)(1 - a->beta1);
    const float beta2 = (float)a->beta2, rest2 = (float)(1 - a->beta2);
    for (int64_t i = span.begin; i < span.end; i += VEC) {
        int n = vec_n(span.end - i);
        vf g = vec_load(a->g, i, n, DTYPE_F32) * scale, p = vec_load(a->p, i, n, DTYPE_F32);
        vf m = vec_load(a->m, i, n, DTYPE_F32), mix = m * beta1 + g * rest1;
        vf up = vec_select(mix > 0.f, vec_set(lr), (vf){0}),
           down = vec_select(mix < 0.f, vec_set(lr), (vf){0});
        p -= p * decay + (up - down);
        vec_store(a->m, i, n, DTYPE_F32, m * beta2 + g * rest2);
        vec_store(a->p, i, n, DTYPE_F32, p);
        vec_store(a->g, i, n, DTYPE_F32, (vf){0});
        if (a->w) vec_store(a->w, i, n, DTYPE_BF16, p);
    }
}

static status lion(const struct lion_args *a, dev_stream s)
{
    (void)s;
    PARALLEL_CHUNKS(c, chunk_count(a->count, GRAIN))
    {
        lion_span(a, chunk_span(c, a->count, GRAIN));
    }
    return STATUS_OK;
}

void SIMD(simd_optim)(struct ops *o)
{
    o->adamw = adamw;
    o->lion = lion;
}
