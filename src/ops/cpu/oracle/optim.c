#include "base/parallel.h"
#include "ops/cpu/oracle/oracle.h"
#include "ops/quant.h"
#include "ops/rounding.h"
#include <float.h>
#include <math.h>

static status sum(const struct sum_args *a, dev_stream s)
{
    (void)s;
    for (int64_t i = 0; i < a->count; i++) *a->out += get(a->x, i, a->dt);
    return STATUS_OK;
}

enum { GRAIN = 65536 };
enum moment { FIRST, SECOND };

static uint32_t word_of(const struct update_args *a, const struct update_chunk *c, int64_t k)
{
    return rounding_words(a->seed, a->scalars->step, c, k / 4 * 4).u[k % 4];
}

/* The random bits of element k of a chunk, for one of its moments. */
static uint32_t random_bits(const struct update_args *a, enum moment which, const struct update_chunk *c,
                            int64_t k)
{
    const uint32_t word = word_of(a, c, k);
    return which == FIRST ? word & 0xffff : word >> 16;
}

/* Values of all codes, in their order. */
static void code_values(enum quant_kind kind, float values[QUANT_BLOCK])
{
    const struct quant_map q = quant_map_of(kind);
    for (int code = 0; code < QUANT_BLOCK; code++) values[code] = quant_value(&q, kind, code);
}

/* x in [-1, 1], by searching the values. Magnitudes are rounded away from 0 with the probability that makes
 * the mean exact. */
static uint8_t code_of(enum quant_kind kind, const float values[QUANT_BLOCK], double x, uint32_t random)
{
    const bool negative = x < 0;
    int code = kind == QUANT_SIGNED ? QUANT_ZERO : 0;
    x = fabs(x);
    while (code < 255 && (double)values[code + 1] <= x) code++;
    if (code < 255) {
        const double low = (double)values[code], high = (double)values[code + 1];
        code += random * 0x1p-16 < (x - low) / (high - low);
    }
    if (kind == QUANT_UNSIGNED) return (uint8_t)(code == 0 && x > 0 ? 1 : code);
    const int mirrored = 2 * QUANT_ZERO - code;
    return (uint8_t)(negative ? (mirrored < 0 ? 0 : mirrored) : code);
}

/* A moment of a chunk (an 8-bit one: at most one block): its array, and its position there. */
struct place {
    enum quant_kind kind;
    void *array;
    float *scale;
    int64_t at;
};
static struct place place_of(const struct update_args *a, enum moment which, const struct update_chunk *c)
{
    const bool first = which == FIRST;
    return (struct place){.kind = first ? QUANT_SIGNED : QUANT_UNSIGNED,
                          .array = first ? a->m : a->v,
                          .scale = first ? a->m_scale : a->v_scale,
                          .at = first ? c->begin : c->begin - c->v_offset};
}

static void put_codes(const struct update_args *a, enum moment which, const struct update_chunk *c,
                      const double *x)
{
    const struct place l = place_of(a, which, c);
    uint8_t *codes = l.array;
    float values[QUANT_BLOCK], top = 0;
    code_values(l.kind, values);
    for (int64_t k = 0; k < c->count; k++) top = fmaxf(top, fabsf((float)x[k]));
    if (top < FLT_MIN) top = 0;
    l.scale[l.at / QUANT_BLOCK] = top;
    for (int64_t k = 0; k < c->count; k++)
        codes[l.at + k] =
            code_of(l.kind, values, top > 0 ? x[k] / (double)top : 0, random_bits(a, which, c, k));
}

static void put_moments(const struct update_args *a, enum moment which, const struct update_chunk *c,
                        const double *x)
{
    const struct place l = place_of(a, which, c);
    if (a->moment_dt == DTYPE_U8) {
        put_codes(a, which, c, x);
        return;
    }
    for (int64_t k = 0; k < c->count; k++) {
        const float rounded = (float)x[k];
        uint32_t bits;
        memcpy(&bits, &rounded, sizeof bits);
        if (a->moment_dt == DTYPE_F32)
            ((float *)l.array)[l.at + k] = rounded;
        else
            ((bf16 *)l.array)[l.at + k] = rounding_bf16(bits, random_bits(a, which, c, k));
    }
}

static void get_moments(const struct update_args *a, enum moment which, const struct update_chunk *c,
                        double *x)
{
    const struct place l = place_of(a, which, c);
    float values[QUANT_BLOCK];
    if (a->moment_dt == DTYPE_U8) code_values(l.kind, values);
    for (int64_t k = 0; k < c->count; k++) {
        if (a->moment_dt == DTYPE_U8)
            x[k] = (double)values[((const uint8_t *)l.array)[l.at + k]] * (double)l.scale[l.at / QUANT_BLOCK];
        else
            x[k] = get(l.array, l.at + k, a->moment_dt);
    }
}

/* What the rule subtracts from p, divided by lr. Updates the moments. */
static double rule_step(const struct update_args *a, double g, double *m, double *v)
{
    const double blend = a->beta1 * *m + (1 - a->beta1) * g;
    switch (a->rule) {
    case UPDATE_ADAMW: break;
    case UPDATE_LION: *m = a->beta2 * *m + (1 - a->beta2) * g; return blend > 0 ? 1 : blend < 0 ? -1 : 0;
    }
    *m = blend;
    *v = a->beta2 * *v + (1 - a->beta2) * g * g;
    return blend / a->scalars->correction1 / (sqrt(*v / a->scalars->correction2) + a->eps);
}

/* Stores x as element k of a chunk. */
static void put_weight(const struct update_args *a, const struct update_chunk *c, int64_t k, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (update_alone(a))
        a->w[c->begin + k] = rounding_bf16(bits, rounding_third(word_of(a, c, k)));
    else
        master_put(a->p, a->w, a->master_residual, c->begin + k, x);
}

/* At most one block of 8-bit moments. */
static void update_some(const struct update_args *a, const struct update_chunk *c, double factor, double lr)
{
    const double decay = c->flags & UPDATE_DECAY ? lr * a->weight_decay : 0;
    const bool two = update_needs(a->rule).second;
    double m[QUANT_BLOCK], v[QUANT_BLOCK] = {0};
    get_moments(a, FIRST, c, m);
    if (two) get_moments(a, SECOND, c, v);
    for (int64_t k = 0; k < c->count; k++) {
        const int64_t i = c->begin + k;
        const double step = rule_step(a, (double)a->g[i] * factor, &m[k], &v[k]);
        const double p = (double)master_get(a->p, a->w, a->master_residual, i);
        put_weight(a, c, k, (float)(p * (1 - decay) - lr * step));
        if (c->flags & UPDATE_ZERO) a->g[i] = 0;
    }
    put_moments(a, FIRST, c, m);
    if (two) put_moments(a, SECOND, c, v);
}

static void momentum_some(const struct update_args *a, const struct update_chunk *c, double factor)
{
    double m[QUANT_BLOCK];
    get_moments(a, FIRST, c, m);
    for (int64_t k = 0; k < c->count; k++) {
        const double g = (double)a->g[c->begin + k] * factor;
        m[k] = a->momentum * m[k] + g;
        a->g[c->begin + k] = (float)(g + a->momentum * m[k]);
    }
    put_moments(a, FIRST, c, m);
}

static void update_one(const struct update_args *a, const struct update_chunk *c, double factor, double lr)
{
    for (int32_t at = 0; at < c->count; at += QUANT_BLOCK) {
        const int32_t left = c->count - at;
        const struct update_chunk some = update_part(c, at, left < QUANT_BLOCK ? left : QUANT_BLOCK);
        if (c->flags & UPDATE_MOMENTUM)
            momentum_some(a, &some, factor);
        else
            update_some(a, &some, factor, lr);
    }
}

/* Each row as a chunk of its own. */
static void update_rows(const struct update_args *a, const struct update_chunk *c, double factor)
{
    const int32_t width = (int32_t)(c->flags / UPDATE_WIDTH);
    for (int64_t at = 0; at < c->count; at += width) {
        const struct update_chunk row = update_part(c, at, width);
        if (!update_untouched(a->g + row.begin, width))
            update_one(a, &row, factor, a->scalars->lr * a->row_rate);
    }
}

static double chunk_squares(const struct update_args *a, const struct update_chunk *c)
{
    double sum = 0;
    for (int64_t i = c->begin; i < c->begin + c->count; i++) sum += (double)a->g[i] * (double)a->g[i];
    return sum;
}

static status update(const struct update_args *a, dev_stream s)
{
    (void)s;
    update_check(a);
    double squares = 0, factor;
    for (int64_t c = 0; c < a->chunk_count && a->phase != UPDATE_APPLY; c++) {
        const double sum = chunk_squares(a, &a->chunks[c]);
        squares += sum;
        if (a->phase == UPDATE_CHUNK_NORMS) a->squares[c] = a->chunks[c].flags & UPDATE_COPY ? 0 : sum;
    }
    if (a->phase == UPDATE_GLOBAL_NORM) a->scalars->grad_squares = squares;
    if (a->phase == UPDATE_CHUNK_NORMS || a->phase == UPDATE_GLOBAL_NORM) return STATUS_OK;
    if (!update_factor(a, a->phase == UPDATE_APPLY ? a->scalars->grad_squares : squares, &factor))
        return STATUS_OK;
    PARALLEL_CHUNKS(c, a->chunk_count)
    {
        if (a->chunks[c].flags & UPDATE_ROWS)
            update_rows(a, &a->chunks[c], factor);
        else
            update_one(a, &a->chunks[c], factor, update_lr(a));
    }
    return STATUS_OK;
}

static status rows_update(const struct rows_update_args *a, dev_stream s)
{
    (void)s;
    const double factor = a->of.scalars->clip_factor;
    update_check(&a->of);
    PARALLEL_CHUNKS(k, factor == 0 ? 0 : a->slots)
    {
        const struct update_chunk row = rows_chunk(a, k);
        struct update_args of = a->of;
        of.g = a->sums + k * a->width - row.begin;
        if (row.count > 0 && !update_untouched(a->sums + k * a->width, a->width))
            update_one(&of, &row, factor, of.scalars->lr * of.row_rate);
        memset(a->sums + k * a->width, 0, (size_t)a->width * sizeof *a->sums);
    }
    return STATUS_OK;
}

static status muon_normalize(const struct muon_normalize_args *a, dev_stream s)
{
    (void)s;
    double squares = 0;
    for (int64_t i = 0; i < a->count; i++) squares += pow(get(a->g, i, dtype_acc(a->dt)), 2);
    for (int64_t i = 0; i < a->count; i++)
        put(a->x, i, a->dt, get(a->g, i, dtype_acc(a->dt)) / (sqrt(squares) + a->eps));
    return STATUS_OK;
}

static status newton_schulz_poly(const struct newton_schulz_poly_args *a, dev_stream s)
{
    (void)s;
    for (int64_t i = 0; i < a->n; i++)
        for (int64_t j = 0; j < a->n; j++) {
            const int64_t at = i * a->n + j;
            put(a->y, at, a->dt,
                (i == j ? a->a : 0) + a->b * get(a->x, at, a->dt) + a->c * get(a->xx, at, a->dt));
        }
    return STATUS_OK;
}

static status muon_apply(const struct muon_apply_args *a, dev_stream s)
{
    (void)s;
    const double lr = a->scalars->lr;
    CHECK(a->p || a->master_residual, "a step of weights without a master");
    if (a->scalars->clip_factor == 0) return STATUS_OK;
    for (int64_t i = 0; i < a->count; i++) {
        const double p = (double)master_get(a->p, a->w, a->master_residual, i);
        master_put(a->p, a->w, a->master_residual, i,
                   (float)(p * (1 - lr * a->weight_decay) - lr * a->scale * get(a->x, i, a->dt)));
    }
    return STATUS_OK;
}

static status split_master(const struct split_master_args *a, dev_stream s)
{
    (void)s;
    const bool split = a->way == MASTER_SPLIT;
    PARALLEL_CHUNKS(c, chunk_count(a->count, GRAIN))
    {
        const struct span span = chunk_span(c, a->count, GRAIN);
        for (int64_t i = span.begin; i < span.end; i++) {
            uint32_t bits;
            if (split) {
                memcpy(&bits, &a->x[i], sizeof bits);
                const struct half_pair h = rounding_halves(bits);
                a->upper[i] = h.upper;
                if (a->master_residual) a->master_residual[i] = h.low;
            } else {
                a->x[i] = master_get(NULL, a->upper, a->master_residual, i);
            }
        }
    }
    return STATUS_OK;
}

void oracle_optim(struct ops *o)
{
    o->sum = sum;
    o->update = update;
    o->rows_update = rows_update;
    o->muon_normalize = muon_normalize;
    o->newton_schulz_poly = newton_schulz_poly;
    o->muon_apply = muon_apply;
    o->split_master = split_master;
}
