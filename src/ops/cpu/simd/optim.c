/* The optimizer's step: one pass over the gradients for their norm, one over everything, each array read and written once. Elements
 * are independent; the order of the norm's sum hangs on the chunks alone. */
#include "base/parallel.h"
#include "ops/cpu/oracle.h"
#include "ops/cpu/simd/simd.h"
#include "ops/cpu/simd/vecmath.h"
#include "ops/rounding.h"

enum {
    SUMS = 1024 /* at most: partial sums of the norm stand on the stack */
};

/* In f64, in fixed lanes. */
static double square_sum(const float *x, int64_t count)
{
    typedef double vd __attribute__((vector_size(4 * VEC)));
    vd lanes[4] = {0};
    int64_t i = 0;
    for (; i + 2 * VEC <= count; i += 2 * VEC) {
        for (int k = 0; k < 4; k++) {
#ifdef __AVX512F__
            vd wide = (vd)_mm512_cvtps_pd(_mm256_loadu_ps(x + i + k * VEC / 2));
#else
            vd wide = (vd)_mm256_cvtps_pd(_mm_loadu_ps(x + i + k * VEC / 2));
#endif
            lanes[k] += wide * wide;
        }
    }
    double sum = 0;
    for (; i < count; i++) sum += (double)x[i] * (double)x[i];
    const vd all = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
    for (int k = 0; k < VEC / 2; k++) sum += all[k];
    return sum;
}

static double all_squares(const struct update_args *a)
{
    double sums[SUMS], sum = 0;
    const int64_t per_sum = a->chunk_count / SUMS + 1, count = chunk_count(a->chunk_count, per_sum);
    PARALLEL_CHUNKS(k, count)
    {
        struct span span = chunk_span(k, a->chunk_count, per_sum);
        sums[k] = 0;
        for (int64_t c = span.begin; c < span.end; c++)
            sums[k] += square_sum(a->g + a->chunks[c].begin, a->chunks[c].count);
    }
    for (int64_t k = 0; k < count; k++) sum += sums[k];
    return sum;
}

/* The constants of a step in f32, folded: p = p (1 - decay) - step m / (sqrt(v) root + eps), Lion: p = p (1 - decay) -+ step. */
struct update_fold {
    float scale, beta1, rest1, beta2, rest2, eps, step, root, decay;
};
static struct update_fold fold(const struct update_args *a, double factor)
{
    const struct step_scalars *s = a->scalars;
    struct update_fold f = {.scale = (float)factor,
                            .beta1 = (float)a->beta1,
                            .rest1 = (float)(1 - a->beta1),
                            .beta2 = (float)a->beta2,
                            .rest2 = (float)(1 - a->beta2),
                            .eps = (float)a->eps,
                            .step = (float)s->lr,
                            .decay = (float)(s->lr * a->weight_decay)};
    if (a->rule == UPDATE_ADAMW) {
        f.step = (float)(s->lr / s->correction1);
        f.root = (float)(1 / __builtin_sqrt(s->correction2));
    }
    return f;
}

/* The random words of VEC elements from i on, a multiple of 4. */
static vu words_at(const struct update_args *a, int64_t i)
{
    vu words;
    for (int k = 0; k < VEC / 4; k++) {
        const struct rng_block r = rounding_words(a->seed, a->scalars->step, (uint64_t)i / 4 + (uint64_t)k);
        memcpy((char *)&words + 16 * k, &r, 16);
    }
    return words;
}

/* vec_store, but BF16 as rounding_bf16 rounds, for `random` below 2^16. */
VEC_INLINE void moment_store(void *p, int64_t i, int n, dtype sdt, vf x, vu random)
{
    if (sdt == DTYPE_BF16) {
        const vf nan = (vf)(vu)((vu){0} + 0x7fc00000u);
        x = vec_select(x == x, (vf)(((vu)x + random) & 0xffff0000u), nan);
    }
    vec_store(p, i, n, sdt, x);
}

VEC_INLINE void update_span(const struct update_args *a, const struct update_chunk *c, struct update_fold f,
                            enum update_rule rule, dtype sdt)
{
    const int64_t end = c->begin + c->count;
    if (!(c->flags & UPDATE_DECAY)) f.decay = 0;
    for (int64_t i = c->begin; i < end; i += VEC) {
        int n = vec_n(end - i);
        vu words = sdt == DTYPE_BF16 ? words_at(a, i) : (vu){0};
        vf g = vec_load(a->g, i, n, DTYPE_F32) * f.scale, p = vec_load(a->p, i, n, DTYPE_F32);
        vf m = vec_load(a->m, i, n, sdt), blend = m * f.beta1 + g * f.rest1;
        if (rule == UPDATE_ADAMW) {
            vf v = vec_load(a->v, i, n, sdt) * f.beta2 + g * g * f.rest2;
            p -= p * f.decay + f.step * blend / (vec_sqrt(v) * f.root + f.eps);
            moment_store(a->m, i, n, sdt, blend, words & 0xffff);
            moment_store(a->v, i, n, sdt, v, words >> 16);
        } else {
            vf up = vec_select(blend > 0.f, vec_set(f.step), (vf){0}),
               down = vec_select(blend < 0.f, vec_set(f.step), (vf){0});
            p -= p * f.decay + (up - down);
            moment_store(a->m, i, n, sdt, m * f.beta2 + g * f.rest2, words & 0xffff);
        }
        vec_store(a->p, i, n, DTYPE_F32, p);
        if (c->flags & UPDATE_ZERO) vec_store(a->g, i, n, DTYPE_F32, (vf){0});
        if (a->w) vec_store(a->w, i, n, DTYPE_BF16, p);
    }
}

/* One loop for each rule and type of moments. */
static void update_chunk(const struct update_args *a, const struct update_chunk *c, struct update_fold f)
{
    const bool wide = a->sdt == DTYPE_F32;
    if (a->rule == UPDATE_ADAMW && wide)
        update_span(a, c, f, UPDATE_ADAMW, DTYPE_F32);
    else if (a->rule == UPDATE_ADAMW)
        update_span(a, c, f, UPDATE_ADAMW, DTYPE_BF16);
    else if (wide)
        update_span(a, c, f, UPDATE_LION, DTYPE_F32);
    else
        update_span(a, c, f, UPDATE_LION, DTYPE_BF16);
}

/* Each row as a piece of its own. */
static void update_rows(const struct update_args *a, const struct update_chunk *c, struct update_fold f)
{
    const int32_t width = (int32_t)(c->flags / UPDATE_WIDTH);
    f.step *= (float)a->row_rate;
    f.decay *= (float)a->row_rate;
    for (int64_t at = c->begin; at < c->begin + c->count; at += width) {
        const struct update_chunk row = {.begin = at, .count = width, .flags = c->flags};
        if (!update_untouched(a->g + at, width)) update_chunk(a, &row, f);
    }
}

static status update(const struct update_args *a, dev_stream s)
{
    (void)s;
    update_check(a);
    double factor;
    if (!update_factor(a, all_squares(a), &factor)) return STATUS_OK;
    const struct update_fold f = fold(a, factor);
    PARALLEL_CHUNKS(c, a->chunk_count)
    {
        if (a->chunks[c].flags & UPDATE_ROWS)
            update_rows(a, &a->chunks[c], f);
        else
            update_chunk(a, &a->chunks[c], f);
    }
    return STATUS_OK;
}

void SIMD(simd_optim)(struct ops *o)
{
    o->update = update;
}
