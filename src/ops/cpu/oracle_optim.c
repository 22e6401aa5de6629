#include "base/parallel.h"
#include "ops/cpu/oracle.h"
#include "ops/rounding.h"
#include <math.h>

static status sum(const struct sum_args *a, dev_stream s)
{
    (void)s;
    for (int64_t i = 0; i < a->count; i++) *a->out += get(a->x, i, a->dt);
    return STATUS_OK;
}

enum moment { FIRST, SECOND };

static void put_moment(const struct update_args *a, enum moment which, int64_t i, double x)
{
    void *array = which == FIRST ? a->m : a->v;
    if (a->sdt == DTYPE_F32) {
        put(array, i, DTYPE_F32, x);
        return;
    }
    const float rounded = (float)x;
    uint32_t bits, word = rounding_words(a->seed, a->scalars->step, (uint64_t)i / 4).u[i % 4];
    memcpy(&bits, &rounded, sizeof bits);
    ((bf16 *)array)[i] = rounding_bf16(bits, which == FIRST ? word & 0xffff : word >> 16);
}

/* What the rule subtracts from p, over lr; moments are stored on the way. */
static double rule_step(const struct update_args *a, int64_t i, double g)
{
    double m = get(a->m, i, a->sdt), blend = a->beta1 * m + (1 - a->beta1) * g;
    if (a->rule == UPDATE_LION) {
        put_moment(a, FIRST, i, a->beta2 * m + (1 - a->beta2) * g);
        return blend > 0 ? 1 : blend < 0 ? -1 : 0;
    }
    double v = a->beta2 * get(a->v, i, a->sdt) + (1 - a->beta2) * g * g;
    put_moment(a, FIRST, i, blend);
    put_moment(a, SECOND, i, v);
    return blend / a->scalars->correction1 / (sqrt(v / a->scalars->correction2) + a->eps);
}

static void update_one(const struct update_args *a, const struct update_chunk *c, double factor, double lr)
{
    const double decay = c->flags & UPDATE_DECAY ? lr * a->weight_decay : 0;
    for (int64_t i = c->begin; i < c->begin + c->count; i++) {
        double step = rule_step(a, i, (double)a->g[i] * factor);
        a->p[i] = (float)((double)a->p[i] * (1 - decay) - lr * step);
        if (a->w) a->w[i] = bf16_from_f32(a->p[i]);
        if (c->flags & UPDATE_ZERO) a->g[i] = 0;
    }
}

/* Each row as a piece of its own. */
static void update_rows(const struct update_args *a, const struct update_chunk *c, double factor)
{
    const int32_t width = (int32_t)(c->flags / UPDATE_WIDTH);
    for (int64_t at = c->begin; at < c->begin + c->count; at += width) {
        const struct update_chunk row = {.begin = at, .count = width, .flags = c->flags};
        if (!update_untouched(a->g + at, width)) update_one(a, &row, factor, a->scalars->lr * a->row_rate);
    }
}

static status update(const struct update_args *a, dev_stream s)
{
    (void)s;
    update_check(a);
    double squares = 0, factor;
    for (int64_t c = 0; c < a->chunk_count; c++)
        for (int64_t i = 0; i < a->chunks[c].count; i++) {
            double g = (double)a->g[a->chunks[c].begin + i];
            squares += g * g;
        }
    if (!update_factor(a, squares, &factor)) return STATUS_OK;
    PARALLEL_CHUNKS(c, a->chunk_count)
    {
        if (a->chunks[c].flags & UPDATE_ROWS)
            update_rows(a, &a->chunks[c], factor);
        else
            update_one(a, &a->chunks[c], factor, a->scalars->lr);
    }
    return STATUS_OK;
}

void oracle_optim(struct ops *o)
{
    o->sum = sum;
    o->update = update;
}
