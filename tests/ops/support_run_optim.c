/* The ops between the GEMMs of Muon's step. */
#include "run.h"
#include "ops/quant.h"
#include "ops/rounding.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

RUN_CALL(muon_normalize)
RUN_CALL(newton_schulz_poly)
RUN_CALL(muon_apply)
RUN_CALL(split_master)

/* A second set of an update's arrays, for weights in halves. Contents as they are now, so before the op. */
static void *again(struct probe *p, const char *name, const void *from, dtype dt, int64_t count)
{
    void *to = NULL;
    if (from)
        to = dt == DTYPE_U8 ? probe_out_codes(p, name, count) : probe_out(p, name, PROBE_WORK, dt, count, 0);
    if (from) memcpy(to, from, (size_t)count * dtype_bytes(dt));
    return to;
}

struct run_again run_again(const struct ops *o, struct probe *p, const struct run_arrays *a)
{
    const int64_t blocks = (a->count + QUANT_BLOCK - 1) / QUANT_BLOCK;
    const struct run_again b = {.a = *a,
                                .g = again(p, "g again", a->g, DTYPE_F32, a->g_count),
                                .m = again(p, "m again", a->m, a->sdt, a->count),
                                .v = again(p, "v again", a->v, a->sdt, a->count - a->v_offset),
                                .m_scale = again(p, "m_scale again", a->m_scale, DTYPE_F32, blocks),
                                .v_scale = again(p, "v_scale again", a->v_scale, DTYPE_F32, blocks),
                                .joined = again(p, "joined", a->p, DTYPE_F32, a->count),
                                .upper = probe_out(p, "upper", PROBE_WORK, DTYPE_BF16, a->count, 0),
                                .low = probe_out(p, "low", PROBE_WORK, DTYPE_BF16, a->count, 0)};
    RUN(o, split_master, .way = MASTER_SPLIT, .x = b.joined, .upper = b.upper, .master_residual = b.low,
        .count = a->count);
    if (a->w) memcpy(a->w, b.upper, (size_t)a->count * sizeof *a->w); /* as before a step, there too */
    return b;
}

static bool differ(const void *x, const void *y, dtype dt, int64_t count)
{
    return x && memcmp(x, y, (size_t)count * dtype_bytes(dt)) != 0;
}
void run_same(const struct ops *o, struct probe *p, const struct run_again *b)
{
    const struct run_arrays *a = &b->a;
    int32_t *wrong = probe_out_ids(p, "arrays that differ", 1);
    RUN(o, split_master, .way = MASTER_JOIN, .x = b->joined, .upper = b->upper, .master_residual = b->low,
        .count = a->count);
    *wrong = differ(a->p, b->joined, DTYPE_F32, a->count) + differ(a->g, b->g, DTYPE_F32, a->g_count) +
             differ(a->w, b->upper, DTYPE_BF16, a->count) + differ(a->m, b->m, a->sdt, a->count) +
             differ(a->v, b->v, a->sdt, a->count - a->v_offset);
    for (int64_t i = 0; i < a->count; i++) {
        uint32_t bits;
        memcpy(&bits, &a->p[i], sizeof bits);
        const struct half_pair h = rounding_halves(bits);
        *wrong += b->upper[i] != h.upper || b->low[i] != h.low;
    }
    if (!p->device) assert_int_equal(*wrong, 0);
}

struct run_pair run_pair(const struct ops *o, struct probe *p, const struct run_arrays *a)
{
    const struct run_pair b = {run_again(o, p, a), run_again(o, p, a)};
    RUN(o, split_master, .way = MASTER_JOIN, .x = b.whole.joined, .upper = b.whole.upper, .count = a->count);
    return b;
}

void run_rounded(struct probe *p, const struct run_pair *b, const struct update_chunk *chunks, int64_t count,
                 uint64_t seed, uint64_t step)
{
    const struct run_arrays *a = &b->whole.a;
    int32_t *wrong = probe_out_ids(p, "weights that are rounded otherwise", 1);
    *wrong = differ(b->whole.g, b->alone.g, DTYPE_F32, a->g_count) +
             differ(b->whole.m, b->alone.m, a->sdt, a->count) +
             differ(b->whole.v, b->alone.v, a->sdt, a->count - a->v_offset);
    for (int64_t c = 0; c < count; c++)
        for (int32_t k = 0; k < chunks[c].count; k++) {
            const struct rng_block words = rounding_words(seed, step, &chunks[c], k / 4 * 4);
            uint32_t bits;
            memcpy(&bits, &b->whole.joined[chunks[c].begin + k], sizeof bits);
            *wrong +=
                b->alone.upper[chunks[c].begin + k] != rounding_bf16(bits, rounding_third(words.u[k % 4]));
        }
    if (!p->device) assert_int_equal(*wrong, 0);
}

/* For all low halves of some high ones: the results of split, join and rounding. */
void run_split_master(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_rows *c = &oc->rows;
    static const uint32_t uppers[] = {0x0000, 0x8000, 0x0001, 0x807f, 0x3f80,
                                      0xbf81, 0x3fff, 0xc17f, 0x7f7e, 0xff7e};
    const int64_t count = c->rows * c->d;
    float *x = probe_in(p, "x", DTYPE_F32, count, 0, 1),
          *back = probe_out(p, "back", PROBE_OUT, DTYPE_F32, count, TOL_EXACT);
    bf16 *upper = probe_out(p, "upper", PROBE_OUT, DTYPE_BF16, count, TOL_EXACT),
         *alone = probe_out(p, "alone", PROBE_OUT, DTYPE_BF16, count, TOL_EXACT),
         *low = probe_out(p, "low", PROBE_OUT, DTYPE_BF16, count, TOL_EXACT);
    for (int64_t i = 0; i < count && count >= 10 << 16; i++) {
        const uint32_t bits = uppers[i >> 16 & 15] << 16 | (uint32_t)(i & 0xffff);
        if (i >> 16 < 10) memcpy(&x[i], &bits, sizeof bits);
    }
    RUN(o, split_master, .way = MASTER_SPLIT, .x = x, .upper = upper, .master_residual = low, .count = count);
    RUN(o, split_master, .way = MASTER_SPLIT, .x = x, .upper = alone, .count = count);
    RUN(o, split_master, .way = MASTER_JOIN, .x = back, .upper = upper, .master_residual = low,
        .count = count);
}

/* Elements are about 1 / sqrt(count). */
void run_muon_normalize(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_rows *c = &oc->rows;
    const int64_t count = c->rows * c->d;
    const double size = 1 / sqrt((double)(count > 0 ? count : 1));
    const void *g = probe_in(p, "g", dtype_acc(p->dt), count, 0, 3);
    RUN(o, muon_normalize, .g = g,
        .x = probe_out(p, "x", PROBE_OUT, p->dt, count, size * tol_reduce(p->dt, 1)), .count = count,
        .eps = 1e-7, .dt = p->dt);
}

void run_newton_schulz_poly(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_rows *c = &oc->rows;
    const int64_t count = c->d * c->d;
    const void *x = probe_in(p, "x", p->dt, count, 0, 1), *xx = NULL;
    void *y = probe_out(p, "y", PROBE_OUT, p->dt, count, 8 * tol_reduce(p->dt, 1));
    if (c->in_place)
        xx = y;
    else
        xx = probe_in(p, "xx", p->dt, count, 0, 1);
    RUN(o, newton_schulz_poly, .x = x, .xx = xx, .y = y, .n = c->d, .a = 3.4445, .b = -4.775, .c = 2.0315,
        .dt = p->dt);
}

void run_muon_apply(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_rows *c = &oc->rows;
    const int64_t count = c->rows * c->d;
    const double tol = tol_reduce(DTYPE_F32, 1);
    struct step_scalars *s =
        probe_out(p, "scalars", PROBE_OUT, DTYPE_F64, sizeof *s / sizeof(double), TOL_EXACT);
    *s = (struct step_scalars){.lr = 1e-2, .clip_factor = c->not_finite ? 0 : 0.5};
    const void *x = probe_in(p, "x", p->dt, count, 0, 1);
    float *w = probe_out(p, "p", PROBE_OUT, DTYPE_F32, count, tol);
    bf16 *copy = p->dt == DTYPE_BF16 ? probe_out(p, "w", PROBE_OUT, DTYPE_BF16, count, tol) : NULL;
    const struct run_arrays arrays = {.p = w, .w = copy, .count = count};
    struct run_again b = {0};
    if (copy) b = run_again(o, p, &arrays);
    RUN(o, muon_apply, .x = x, .p = w, .w = copy, .count = count, .scale = 3, .weight_decay = 0.1,
        .scalars = s, .dt = p->dt);
    if (copy == NULL) return;
    RUN(o, muon_apply, .x = x, .w = b.upper, .master_residual = b.low, .count = count, .scale = 3,
        .weight_decay = 0.1, .scalars = s, .dt = p->dt);
    run_same(o, p, &b);
}
