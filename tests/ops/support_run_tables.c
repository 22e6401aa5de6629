/* Ops on the rows of tables that a step reads: support_run.c says how cases become calls. */
#include "run.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

RUN_CALL(rows_unique)
RUN_CALL(rows_update)

/* Some ids are none, and some are out of range. */
void run_rows_unique(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_unique *c = &oc->unique;
    const int64_t room = c->count < c->vocab ? c->count : c->vocab;
    int32_t *ids = probe_ids(p, "ids", c->count, c->vocab), *slots = probe_out_ids(p, "slots", c->count);
    for (int64_t i = 0; i < c->count && c->no_tokens; i += 3) ids[i] = i % 2 ? TOKEN_NONE : (int32_t)c->vocab;
    if (c->in_place) ids = memcpy(slots, ids, (size_t)c->count * sizeof *ids);
    RUN(o, rows_unique, .ids = ids, .slots = slots, .rows = probe_out_ids(p, "rows", room),
        .scratch = probe_scratch(p, "scratch", (size_t)(c->count * ROWS_UNIQUE_SCRATCH)), .count = c->count,
        .room = room, .table_rows = c->vocab);
}

/* The rows that are here as pieces, as below. */
static void check_rounded(const struct case_table *c, struct probe *p, const struct run_pair *two,
                          const int32_t *rows, int64_t begin, const struct update_args *of)
{
    struct update_chunk *pieces = calloc((size_t)c->slots + 1, sizeof *pieces);
    int64_t count = 0;
    assert_non_null(pieces);
    for (int64_t k = 0; k < c->slots; k++)
        if (rows[k] >= c->first && rows[k] < c->vocab)
            pieces[count++] = (struct update_chunk){.begin = begin + (rows[k] - c->first) * c->d,
                                                    .count = (int32_t)c->d,
                                                    .key = 99,
                                                    .first = 4 + rows[k] * 2 * c->d};
    run_rounded(p, two, pieces, count, of->seed, of->scalars->step);
    free(pieces);
}

/* Some rows have no gradient. With c->first the table begins in the middle of its arrays. */
void run_rows_update(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_table *c = &oc->table;
    const bool lion = c->lion;
    const dtype sdt = c->moments_bf16 ? DTYPE_BF16 : DTYPE_F32;
    const double tol = tol_reduce(DTYPE_F32, 1);
    const int64_t begin = c->first ? 64 : 0, v_offset = c->first ? 32 : 0,
                  count = begin + (c->vocab - c->first) * c->d;
    float *w = probe_out(p, "p", PROBE_OUT, DTYPE_F32, count, tol),
          *g = probe_out(p, "sums", PROBE_OUT, DTYPE_F32, c->slots * c->d, tol);
    bf16 *copy = p->dt == DTYPE_BF16 ? probe_out(p, "w", PROBE_OUT, DTYPE_BF16, count, tol) : NULL;
    void *m = probe_out(p, "m", PROBE_OUT, sdt, count, tol),
         *v = lion ? NULL : probe_out(p, "v", PROBE_OUT, sdt, count - v_offset, tol);
    for (int64_t i = 0; i < count - v_offset && v; i++)
        dtype_store(v, i, sdt, 0.01 + pow(dtype_load(v, i, sdt), 2)); /* away from 0: as run_update */
    int32_t *rows = probe_ids(p, "rows", c->slots, 1);
    for (int64_t k = 0; k < c->slots; k++) {
        rows[k] = k < c->used ? (int32_t)(k * c->vocab / c->used) : TOKEN_NONE;
        if (k % 3 == 1 || k >= c->used) memset(g + k * c->d, 0, (size_t)c->d * sizeof *g);
    }
    struct step_scalars *s =
        probe_out(p, "scalars", PROBE_OUT, DTYPE_F64, sizeof *s / sizeof(double), TOL_EXACT);
    *s = (struct step_scalars){.lr = 1e-2,
                               .correction1 = 1 - pow(0.9, 3),
                               .correction2 = 1 - pow(0.95, 3),
                               .clip_factor = c->not_finite ? 0 : 0.4,
                               .step = 2};
    struct update_args of = {.rule = lion ? UPDATE_LION : UPDATE_ADAMW,
                             .p = w,
                             .m = m,
                             .v = v,
                             .w = copy,
                             .beta1 = 0.9,
                             .beta2 = lion ? 0.99 : 0.95,
                             .eps = 1e-8,
                             .weight_decay = 0.1,
                             .row_rate = 5,
                             .scalars = s,
                             .seed = 17,
                             .moment_dt = sdt};
    const struct run_arrays arrays = {.p = w,
                                      .g = g,
                                      .w = copy,
                                      .m = m,
                                      .v = v,
                                      .count = count,
                                      .g_count = c->slots * c->d,
                                      .v_offset = v_offset,
                                      .sdt = sdt};
    struct run_again h = {0};
    struct run_pair two = {0};
    if (copy) h = run_again(o, p, &arrays), two = run_pair(o, p, &arrays);
#define SLOTS                                                                                                \
    .rows = rows, .slots = c->slots, .width = c->d, .from = c->first, .to = c->vocab, .begin = begin,        \
    .v_offset = v_offset, .key = 99, .first = 4, .stride = 2 * c->d
    RUN(o, rows_update, .of = of, .sums = g, SLOTS);
    if (copy == NULL) return;
    of.p = NULL, of.m = h.m, of.v = h.v, of.w = h.upper, of.master_residual = h.low;
    RUN(o, rows_update, .of = of, .sums = h.g, SLOTS);
    run_same(o, p, &h);
    of.master_residual = NULL, of.p = two.whole.joined, of.m = two.whole.m, of.v = two.whole.v,
    of.w = two.whole.upper;
    RUN(o, rows_update, .of = of, .sums = two.whole.g, SLOTS);
    of.p = NULL, of.m = two.alone.m, of.v = two.alone.v, of.w = two.alone.upper;
    RUN(o, rows_update, .of = of, .sums = two.alone.g, SLOTS);
#undef SLOTS
    check_rounded(c, p, &two, rows, begin, &of);
}
