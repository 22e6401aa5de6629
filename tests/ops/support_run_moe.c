/* The ops of mixtures of experts: support_run.c says how cases become calls. */
#include "run.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

RUN_CALL(route_fwd)
RUN_CALL(route_bwd)
RUN_CALL(expert_gemm)
RUN_CALL(expert_codes)
RUN_CALL(expert_act_fwd)
RUN_CALL(expert_act_bwd)
RUN_CALL(combine)
RUN_CALL(combine_gate_bwd)
RUN_CALL(dispatch_sort)
RUN_CALL(balance)

/* A router's op with what it counts over the whole micro-batch: one object, in which a device's call finds all addresses. */
#define WHOLE_CALL(op)                                                                                       \
    struct op##_part {                                                                                       \
        struct op##_args a;                                                                                  \
        struct route_whole whole;                                                                            \
    };                                                                                                       \
    static status call_##op##_part(const struct ops *o, const void *args, dev_stream s)                      \
    {                                                                                                        \
        struct op##_part part = *(const struct op##_part *)args;                                             \
        if (part.whole.ranks > 0) part.a.whole = &part.whole;                                                \
        return o->op(&part.a, s);                                                                            \
    }                                                                                                        \
    static const void *clean_##op##_part(struct op##_part *part)                                             \
    {                                                                                                        \
        RUN_CLEAR_PADDING(part);                                                                             \
        return part;                                                                                         \
    }
WHOLE_CALL(route_fwd)
WHOLE_CALL(route_bwd)
#define RUN_PART(o, op, whole_, ...)                                                                         \
    probe_call(p, o, call_##op##_part, clean_##op##_part(&(struct op##_part){{__VA_ARGS__}, whole_}),        \
               sizeof(struct op##_part))

/* What a router is asked, and what it answers. */
struct routed {
    const void *logits, *bias;
    struct route_rule rule;
    int64_t align, rows_max, sorted; /* sorted: offsets[experts] */
    int32_t *expert, *place, *source, *offsets, *counts, *demand;
    void *weight;
    struct route_whole whole; /* ranks 0: none */
};

/* HOT: all choose expert 0. EMPTY: no token chooses every third expert. */
static void *logits_of(const struct case_moe *c, struct probe *p)
{
    const dtype acc = dtype_acc(p->dt);
    void *logits = probe_in(p, "logits", acc, c->rows * c->experts, 0, 1);
    for (int64_t i = 0; i < c->rows * c->experts; i++) {
        const int64_t e = i % c->experts;
        const double more = c->hot && e == 0 ? 6 : c->empty && e % 3 == 1 ? -30 : 0;
        dtype_store(logits, i, acc, dtype_load(logits, i, acc) + more);
    }
    return logits;
}

static struct routed ask(const struct case_moe *c, struct probe *p)
{
    const int64_t align = c->align > p->expert_align ? c->align : p->expert_align ? p->expert_align : 1;
    const dtype acc = dtype_acc(p->dt);
    return (struct routed){.rule = {.score = c->sigmoid ? ROUTE_SIGMOID : ROUTE_SOFTMAX,
                                    .experts = c->experts,
                                    .top_k = c->top_k,
                                    .groups = c->groups ? c->groups : 1,
                                    .groups_kept = c->groups ? c->groups_kept : 1,
                                    .normalize = c->normalize,
                                    .scale = c->sigmoid ? 2.5 : 1},
                           .logits = logits_of(c, p),
                           .bias = c->with_bias ? probe_in(p, "bias", acc, c->experts, 0, 0.2) : NULL,
                           .align = align,
                           .rows_max = moe_rows_max(c->rows, c->top_k, c->experts, align)};
}

#define ROUTE_ARGS(r)                                                                                        \
    .logits = (r).logits, .bias = (r).bias, .rule = (r).rule, .rows = c->rows, .capacity = c->capacity,      \
    .align = (r).align, .expert = (r).expert, .weight = (r).weight, .place = (r).place,                      \
    .source = (r).source, .offsets = (r).offsets, .counts = (r).counts, .demand = (r).demand, .dt = p->dt

/* Choices of all ranks: here those that this rank has made, elsewhere others, of each token different ones. */
static struct route_whole whole_of(const struct case_moe *c, const int32_t *expert, struct probe *p)
{
    const int64_t k = c->top_k, rows = c->rows * c->ranks;
    if (c->ranks == 0) return (struct route_whole){0};
    int32_t *all = probe_ids(p, "choices of all ranks", rows * k, c->experts);
    for (int64_t i = 0; i < rows * k; i++)
        if (i % k > 0) all[i] = (int32_t)((all[i - 1] + 1) % c->experts);
    struct route_whole w = {.expert = all,
                            .rows = rows,
                            .length = c->length,
                            .rank = (int)c->rank,
                            .ranks = (int)c->ranks,
                            .docs = c->docs.count};
    for (int64_t i = 0; i < c->rows * k; i++) all[route_token_of(&w, i / k) * k + i % k] = expert[i];
    if (c->docs.count == 0) return w;
    int32_t *cu = probe_ids(p, "documents of all ranks", c->docs.count + 1, 1);
    for (int64_t i = 0; i < c->docs.count; i++) cu[i + 1] = cu[i] + c->docs.len[i];
    assert_int_equal(cu[c->docs.count], rows);
    w.cu_seqlens = cu;
    return w;
}

/* The documents of the call's rows: with ranks, runs of rows of one document that are one after the other in it. */
static int64_t documents_of(const struct case_moe *c, const struct route_whole *w, struct probe *p,
                            const int32_t **cu)
{
    *cu = NULL;
    if (c->docs.count == 0) return 0;
    if (c->ranks == 0) {
        *cu = run_cu_seqlens(&c->docs, p);
        return c->docs.count;
    }
    int32_t *runs = probe_ids(p, "documents of this rank", c->rows + 1, 1);
    int64_t count = 0;
    for (int64_t t = 0; t < c->rows; t++) {
        const int64_t token = route_token_of(w, t), before = t ? route_token_of(w, t - 1) : -1;
        if (t == 0 || token != before + 1 ||
            route_document_of(w->cu_seqlens, w->docs, token) !=
                route_document_of(w->cu_seqlens, w->docs, before))
            runs[count++] = (int32_t)t;
    }
    runs[count] = (int32_t)c->rows;
    *cu = runs;
    return count;
}

/* The answers as inputs of another op. */
static struct routed given(const struct case_moe *c, struct probe *p)
{
    const int64_t slots = c->rows * c->top_k;
    struct routed r = ask(c, p);
    r.expert = probe_ids(p, "expert", slots, 1);
    r.place = probe_ids(p, "place", slots, 1);
    r.source = probe_ids(p, "source", r.rows_max, 1);
    r.offsets = probe_ids(p, "offsets", c->experts + 1, 1);
    r.counts = probe_ids(p, "counts", c->experts, 1);
    r.demand = probe_ids(p, "demand", c->experts, 1);
    r.weight = probe_in(p, "router's weight", dtype_acc(p->dt), slots, 0, 0);
    GIVEN(route_fwd, ROUTE_ARGS(r));
    if (c->ranks > 0) {
        r.whole = whole_of(c, r.expert, p);
        GIVEN(route_fwd, ROUTE_ARGS(r), .part = ROUTE_PLACE, .whole = &r.whole);
    }
    r.weight = probe_in(p, "weight", dtype_acc(p->dt), slots, 0.5, 0.3);
    r.sorted = r.offsets[c->experts];
    return r;
}

static struct moe_shape shape_of(const struct case_moe *c, dtype dt)
{
    return (struct moe_shape){.rows = c->rows,
                              .experts = c->experts,
                              .top_k = c->top_k,
                              .d = c->k > c->n ? c->k : c->n,
                              .f = c->n,
                              .docs = c->ranks && c->docs.count ? c->rows : c->docs.count,
                              .ranks = c->ranks,
                              .dt = dt};
}
static void *scratch_of(const struct ops *o, const struct case_moe *c, struct probe *p, enum moe_memory what)
{
    const struct moe_shape shape = shape_of(c, p->dt);
    return probe_scratch(p, "scratch", o->moe_scratch(&shape, what));
}

static double tol_score(const struct case_moe *c, dtype acc)
{
    return 10 * tol_reduce(acc, c->experts);
}

static void route_backward(const struct ops *o, const struct case_moe *c, struct probe *p,
                           const struct routed *r, void *dlogits, void *cost)
{
    enum { SLOT_MAX = 1 << 20 };
    const double aux = c->aux ? 0.3 : 0, z = c->z_loss ? 0.1 : 0, scale = 0.125;
    const int64_t slots = c->rows * c->top_k;
    const dtype acc = dtype_acc(p->dt);
    const int32_t *cu;
    const int64_t docs = documents_of(c, &r->whole, p, &cu);
    assert_true(slots < SLOT_MAX);
    void *dweight = probe_in(p, "dweight", acc, slots, 0, 1);
    for (int64_t i = 0; i < slots; i++)
        if (r->place[i] < 0) dtype_store(dweight, i, acc, p->dt == DTYPE_F64 ? 0 : NAN);
    probe_in(p, "dcost", acc, c->rows, scale, 0); /* the op takes it as one number */
    RUN_PART(o, route_bwd, r->whole, .dweight = dweight, .logits = r->logits, .expert = r->expert,
             .place = r->place, .demand = r->demand, .rule = r->rule, .rows = c->rows,
             .aux_kind = c->sequence ? ROUTE_AUX_SEQUENCE : ROUTE_AUX_SWITCH, .aux = aux, .z = z,
             .grad_scale = probe_in(p, "grad_scale", DTYPE_F64, 1, scale, 0), .cu_seqlens = cu, .docs = docs,
             .dlogits = dlogits, .cost = cost,
             .load =
                 c->no_stats ? NULL : probe_out(p, "load", PROBE_ACC, acc, c->experts, 4 * tol_round(acc)),
             .dropped = c->no_stats ? NULL : probe_out(p, "lost slots", PROBE_ACC, DTYPE_F64, 2, 0),
             .scratch = scratch_of(o, c, p, MOE_ROUTE_BWD), .dt = p->dt);
}

void run_route(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_moe *c = &oc->moe;
    const dtype acc = dtype_acc(p->dt);
    const int64_t slots = c->rows * c->top_k;
    const double tol = tol_score(c, acc);
    if (oc->op == OP_route_bwd) {
        struct routed r = given(c, p);
        route_backward(
            o, c, p, &r,
            probe_out(p, "dlogits", PROBE_OUT, p->dt, c->rows * c->experts, 4 * tol * r.rule.scale),
            c->no_stats ? NULL : probe_out(p, "cost", PROBE_OUT, acc, c->rows, 20 * tol));
        return;
    }
    struct routed r = ask(c, p);
    r.expert = probe_out_ids(p, "expert", slots);
    r.place = probe_out_ids(p, "place", slots);
    r.source = probe_out_ids(p, "source", r.rows_max);
    r.offsets = probe_out_ids(p, "offsets", c->experts + 1);
    r.counts = probe_out_ids(p, "counts", c->experts);
    r.demand = probe_out_ids(p, "demand", c->experts);
    r.weight = probe_out(p, "weight", PROBE_OUT, acc, slots, tol * r.rule.scale);
    void *scratch = scratch_of(o, c, p, MOE_ROUTE_FWD);
    RUN_PART(o, route_fwd, r.whole, ROUTE_ARGS(r), .part = c->ranks ? ROUTE_CHOOSE : ROUTE_ALL,
             .scratch = scratch);
    if (c->ranks) {
        r.whole = whole_of(c, r.expert, p);
        RUN_PART(o, route_fwd, r.whole, ROUTE_ARGS(r), .part = ROUTE_PLACE, .scratch = scratch);
    }
    if (p->zero_out) /* a gradient check: what the auxiliary losses cost belongs to the forward */
        route_backward(o, c, p, &r, probe_out(p, "work", PROBE_WORK, p->dt, c->rows * c->experts, 0),
                       probe_out(p, "cost", PROBE_OUT, acc, c->rows, 0));
}

/* An array of sorted rows that end with their last tile: guards catch what goes further. Padding is NaN in an input, but for a
 * gradient check, which reads it, too. */
static void *sorted_in(struct probe *p, const char *name, const struct routed *r, int64_t width, double size)
{
    void *x = probe_in(p, name, p->dt, r->sorted * width, 0, size);
    for (int64_t i = 0; i < r->sorted * width; i++)
        if (r->source[i / width] < 0) dtype_store(x, i, p->dt, p->dt == DTYPE_F64 ? 0 : NAN);
    return x;
}

void run_expert_gemm(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_moe *c = &oc->moe;
    const dtype acc = dtype_acc(p->dt);
    const bool wgrad = c->wgrad, dgrad = c->dgrad, add = c->add_to;
    const struct routed r = given(c, p);
    const int64_t a_width = wgrad || dgrad ? c->n : c->k, out = dgrad ? c->k : c->n,
                  matrices = c->experts * c->n * c->k;
    const void *a =
        c->gather_a ? probe_in(p, "a", p->dt, c->rows * a_width, 0, 1) : sorted_in(p, "a", &r, a_width, 1);
    const void *b = !wgrad        ? probe_in(p, "b", p->dt, matrices, 0, 1)
                    : c->gather_b ? probe_in(p, "b", p->dt, c->rows * c->k, 0, 1)
                                  : sorted_in(p, "b", &r, c->k, 1);
    void *out_rows =
        wgrad ? probe_out(p, "c", add ? PROBE_ACC : PROBE_OUT, acc, matrices, run_tol_gemm(p, c->rows))
              : probe_out(p, "c", PROBE_OUT, p->dt, r.sorted * out, run_tol_gemm(p, a_width));
    RUN(o, expert_gemm,
        .pass = wgrad   ? EXPERT_WGRAD
                : dgrad ? EXPERT_DGRAD
                        : EXPERT_FWD,
        .gather = c->gather_a   ? EXPERT_GATHER_A
                  : c->gather_b ? EXPERT_GATHER_B
                                : EXPERT_GATHER_NONE,
        .a = operand_at(a, p->dt, false), .b = operand_at(b, p->dt, false), .c = out_rows, .source = r.source,
        .offsets = r.offsets, .counts = r.counts, .rows = c->rows, .top_k = c->top_k, .experts = c->experts,
        .n = c->n, .k = c->k, .align = r.align, .accum = add ? ACCUM_ADD : ACCUM_STORE,
        .scratch = scratch_of(o, c, p, MOE_GEMM), .dt = p->dt);
}

/* ---- FP8 */

static dtype codes_dt(const struct case_moe *c)
{
    return c->e5m2 ? DTYPE_F8_E5M2 : DTYPE_F8_E4M3;
}

static float *one_f32(struct probe *p, const char *name, double value)
{
    return probe_in(p, name, DTYPE_F32, 1, value, 0);
}

static int64_t codes_ld(const struct routed *r)
{
    return expert_codes_ld(r->align, r->sorted > 0 ? r->sorted : 1);
}
/* Bytes of transposed codes of `width` columns: whole panels. */
static int64_t codes_t_count(const struct routed *r, int64_t width)
{
    const int64_t ld = codes_ld(r);
    return width * (r->sorted > ld ? r->sorted : ld);
}

/* Codes of noise of about 2^4, and a scale with which the values are about 1. */
static struct operand codes_in(struct probe *p, const char *name, const char *scale, int64_t count, dtype dt)
{
    return (struct operand){.data = probe_in(p, name, dt, count, 0, 16),
                            .dt = dt,
                            .scales = SCALES_TENSOR,
                            .scale = one_f32(p, scale, 1.0 / 16)};
}

/* Sorted rows of `width` whose padding is NaN; or transposed, where it is 0. */
static void set_padding(struct operand *o, const struct routed *r, int64_t width, bool trans)
{
    const int64_t ld = codes_ld(r), rows = trans ? codes_t_count(r, 1) : r->sorted;
    uint8_t *codes = (uint8_t *)(uintptr_t)o->data;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t j = 0; j < width && (row >= r->sorted || r->source[row] < 0); j++)
            codes[trans ? expert_codes_at(width, ld, row, j) : row * width + j] = trans ? 0 : 0x7F;
}

/* As in support_run_fp8.c. */
static double tol_codes(const struct probe *p, const struct case_moe *c, int64_t depth)
{
    const double deviation = sqrt((double)depth + 4), rounded = tol_reduce(DTYPE_F32, depth) * deviation,
                 chunks = c->fast && depth > 128 ? (double)depth / 128 : 1;
    return p->device ? rounded + 4e-3 * cbrt(chunks * chunks) * deviation : rounded;
}

void run_expert_gemm_fp8(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_moe *c = &oc->moe;
    const bool wgrad = c->wgrad, dgrad = c->dgrad;
    const struct routed r = given(c, p);
    const int64_t a_width = wgrad || dgrad ? c->n : c->k, out = dgrad ? c->k : c->n, ld = codes_ld(&r),
                  matrices = c->experts * c->n * c->k;
    struct operand a = codes_in(p, "a", "a_scale",
                                c->gather_a ? c->rows * a_width
                                : wgrad     ? codes_t_count(&r, c->n)
                                            : r.sorted * a_width,
                                codes_dt(c)),
                   b = codes_in(p, "b", "b_scale",
                                c->gather_b ? c->rows * c->k
                                : wgrad     ? codes_t_count(&r, c->k)
                                            : matrices,
                                DTYPE_F8_E4M3);
    if (!c->gather_a) set_padding(&a, &r, a_width, wgrad);
    if (wgrad && !c->gather_b) set_padding(&b, &r, c->k, true);
    void *to = wgrad ? probe_out(p, "c", c->add_to ? PROBE_ACC : PROBE_OUT, dtype_acc(p->dt), matrices,
                                 tol_codes(p, c, c->rows))
                     : probe_out(p, "c", PROBE_OUT, p->dt, r.sorted * out, tol_codes(p, c, a_width));
    RUN(o, expert_gemm,
        .pass = wgrad   ? EXPERT_WGRAD
                : dgrad ? EXPERT_DGRAD
                        : EXPERT_FWD,
        .gather = c->gather_a   ? EXPERT_GATHER_A
                  : c->gather_b ? EXPERT_GATHER_B
                                : EXPERT_GATHER_NONE,
        .a = a, .b = b, .c = to, .source = r.source, .offsets = r.offsets, .counts = r.counts,
        .rows = c->rows, .top_k = c->top_k, .experts = c->experts, .n = c->n, .k = c->k, .align = r.align,
        .ld = ld, .fast_accum = c->fast, .accum = c->add_to ? ACCUM_ADD : ACCUM_STORE,
        .scratch = scratch_of(o, c, p, MOE_GEMM), .dt = p->dt);
}

/* Sorted rows, some larger than the largest code; or codes by token. */
static const void *codes_x(const struct case_moe *c, struct probe *p, const struct routed *r)
{
    if (c->gather_a) return probe_in(p, "x", codes_dt(c), c->rows * c->n, 0, 16);
    void *x = probe_in(p, "x", p->dt, r->sorted * c->n, 0, 1);
    for (int64_t i = 0; i < r->sorted * c->n; i++) {
        if (i % 97 == 5) dtype_store(x, i, p->dt, i % 2 ? 1e6 : -1e6);
        if (r->source[i / c->n] < 0) dtype_store(x, i, p->dt, 0);
    }
    return x;
}

void run_expert_codes(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_moe *c = &oc->moe;
    const struct routed r = given(c, p);
    const int64_t ld = codes_ld(&r);
    struct quantized q = {
        .scale = one_f32(p, "scale", 8), .scale_inv = one_f32(p, "scale_inv", 0.125), .dt = codes_dt(c)};
    const void *x = codes_x(c, p, &r);
    if (!c->gather_a && !c->no_codes)
        q.codes = probe_out(p, "codes", PROBE_OUT, q.dt, r.sorted * c->n, TOL_EXACT);
    if (!c->no_trans)
        q.codes_t = probe_out(p, "codes_t", r.sorted ? PROBE_OUT : PROBE_WORK, q.dt, codes_t_count(&r, c->n),
                              TOL_EXACT);
    if (!c->gather_a && !c->no_amax) {
        q.amax = probe_out(p, "amax", PROBE_OUT, DTYPE_F32, 1, TOL_EXACT);
        *q.amax = 0.5f;
    }
    RUN(o, expert_codes, .x = x, .q = q, .source = r.source, .offsets = r.offsets, .rows = c->rows,
        .top_k = c->top_k, .experts = c->experts, .n = c->n, .align = r.align, .ld = ld,
        .gather = c->gather_a, .dt = p->dt);
}

/* For an op that may write over an input: as in support_run.c. */
static const void *over(bool so, const void *in, void *out, int64_t count, dtype dt)
{
    return so ? memcpy(out, in, (size_t)count * dtype_bytes(dt)) : in;
}

void run_expert_act(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_moe *c = &oc->moe;
    const dtype acc = dtype_acc(p->dt);
    const struct routed r = given(c, p);
    const double tol = 8 * tol_reduce(acc, 1) * r.rule.scale;
    const void *up = sorted_in(p, "up", &r, 2 * c->f, 1);
    void *m = probe_out(p, "m", PROBE_OUT, p->dt, r.sorted * c->f, tol);
    if (oc->op == OP_expert_act_fwd) {
        RUN(o, expert_act_fwd, .up = up, .m = m, .weight = r.weight, .source = r.source, .offsets = r.offsets,
            .rows = c->rows, .top_k = c->top_k, .experts = c->experts, .f = c->f, .align = r.align,
            .dt = p->dt);
        return;
    }
    void *dup = probe_out(p, "dup", PROBE_OUT, p->dt, r.sorted * 2 * c->f, 4 * tol);
    const void *dm = over(c->in_place, sorted_in(p, "dm", &r, c->f, 1), m, r.sorted * c->f, p->dt);
    RUN(o, expert_act_bwd, .dm = dm, .up = over(c->in_place, up, dup, r.sorted * 2 * c->f, p->dt),
        .weight = r.weight, .source = r.source, .offsets = r.offsets, .dup = dup, .m = m,
        .dweight = probe_out(p, "dweight", PROBE_OUT, acc, c->rows * c->top_k,
                             8 * tol_reduce(acc, c->f) * sqrt((double)c->f)),
        .rows = c->rows, .top_k = c->top_k, .experts = c->experts, .f = c->f, .align = r.align, .dt = p->dt);
}

/* The FP8 form of an activation's output, and what the plain op and the oracle's expert_codes make of it. */
struct act_codes {
    struct quantized q;
    int64_t width;
    const char *names[5]; /* codes, codes_t, scale, scale_inv, amax */
};
static const float AMAX_BEFORE = 0.5f;

static void act_codes_take(const struct case_moe *c, struct probe *p, const struct routed *r,
                           struct act_codes *k, int exp)
{
    k->q.only = c->only;
    if (!c->no_codes) k->q.codes = probe_out(p, k->names[0], PROBE_WORK, k->q.dt, r->sorted * k->width, 0);
    if (!c->no_trans)
        k->q.codes_t = probe_out(p, k->names[1], PROBE_WORK, k->q.dt, codes_t_count(r, k->width), 0);
    k->q.scale = one_f32(p, k->names[2], ldexp(1, exp));
    k->q.scale_inv = one_f32(p, k->names[3], ldexp(1, -exp));
    if (c->no_amax) return;
    k->q.amax = probe_out(p, k->names[4], PROBE_WORK, DTYPE_F32, 1, 0);
    *k->q.amax = AMAX_BEFORE;
}

static void act_codes_check(const struct case_moe *c, struct probe *p, const struct routed *r,
                            const struct act_codes *k, const void *plain)
{
    const size_t count = (size_t)(r->sorted * k->width), count_t = (size_t)codes_t_count(r, k->width);
    float amax = AMAX_BEFORE;
    struct quantized q = k->q;
    q.codes = q.codes ? calloc(count + 1, 1) : NULL;
    q.codes_t = q.codes_t ? calloc(count_t + 1, 1) : NULL;
    q.amax = q.amax ? &amax : NULL;
    if (quantized_asked(&q))
        oracle_call(call_expert_codes, clean_expert_codes(&(struct expert_codes_args){.x = plain,
                                                                                      .q = q,
                                                                                      .source = r->source,
                                                                                      .offsets = r->offsets,
                                                                                      .rows = c->rows,
                                                                                      .top_k = c->top_k,
                                                                                      .experts = c->experts,
                                                                                      .n = k->width,
                                                                                      .align = r->align,
                                                                                      .ld = codes_ld(r),
                                                                                      .dt = p->dt}));
    run_same_bytes(p, k->names[0], q.codes, k->q.codes, count);
    if (r->sorted > 0) run_same_bytes(p, k->names[1], q.codes_t, k->q.codes_t, count_t);
    run_same_bytes(p, k->names[4], &amax, k->q.amax, sizeof amax);
    free(q.codes);
    free(q.codes_t);
}

#define ACT_ARGS(r)                                                                                          \
    .weight = (r).weight, .source = (r).source, .offsets = (r).offsets, .rows = c->rows, .top_k = c->top_k,  \
    .experts = c->experts, .f = c->f, .align = (r).align, .ld = codes_ld(&(r)), .dt = p->dt

static struct act_codes codes_of_m(void)
{
    return (struct act_codes){.q.dt = DTYPE_F8_E4M3,
                              .names = {"m_codes", "m_codes_t", "m_scale", "m_scale_inv", "m_amax"}};
}

void run_expert_act_fwd_fp8(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_moe *c = &oc->moe;
    const struct routed r = given(c, p);
    const int64_t count = r.sorted * c->f;
    struct act_codes m = codes_of_m();
    const void *up = sorted_in(p, "up", &r, 2 * c->f, 1);
    void *plain = probe_out(p, "plain_m", PROBE_WORK, p->dt, count, 0),
         *to = probe_out(p, "m", c->only ? PROBE_WORK : PROBE_OUT, p->dt, count,
                         8 * tol_reduce(dtype_acc(p->dt), 1) * r.rule.scale);
    m.width = c->f;
    act_codes_take(c, p, &r, &m, 1);
    RUN(o, expert_act_fwd, .up = up, .m = plain, ACT_ARGS(r));
    RUN(o, expert_act_fwd, .up = up, .m = to, .q = m.q, ACT_ARGS(r));
    act_codes_check(c, p, &r, &m, plain);
    run_same_bytes(p, "m", plain, c->only ? NULL : to, (size_t)count * dtype_bytes(p->dt));
}

/* dweight of the op with codes may be added in another order. A gradient check compares it with m, which `only` may leave
 * out. */
void run_expert_act_bwd_fp8(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_moe *c = &oc->moe;
    const dtype acc = dtype_acc(p->dt);
    const struct routed r = given(c, p);
    const int64_t count = r.sorted * c->f, slots = c->rows * c->top_k;
    const enum probe_kind kind = c->only ? PROBE_WORK : PROBE_OUT;
    const double tol = 8 * tol_reduce(acc, 1) * r.rule.scale;
    struct act_codes m = codes_of_m(), dup = {.q.dt = DTYPE_F8_E5M2,
                                              .width = 2 * c->f,
                                              .names = {"codes", "codes_t", "scale", "scale_inv", "amax"}};
    const void *up = sorted_in(p, "up", &r, 2 * c->f, 1), *dm = sorted_in(p, "dm", &r, c->f, 1);
    void *plain_m = probe_out(p, "plain_m", PROBE_WORK, p->dt, count, 0),
         *plain_dup = probe_out(p, "plain_dup", PROBE_WORK, p->dt, 2 * count, 0),
         *plain_dweight = probe_out(p, "plain_dweight", PROBE_WORK, acc, slots, 0),
         *to_m = probe_out(p, "m", kind, p->dt, count, tol),
         *to_dup = probe_out(p, "dup", kind, p->dt, 2 * count, 4 * tol);
    m.width = c->f;
    act_codes_take(c, p, &r, &dup, 3);
    act_codes_take(c, p, &r, &m, 1);
    RUN(o, expert_act_bwd, .dm = dm, .up = up, .dup = plain_dup, .m = plain_m, .dweight = plain_dweight,
        ACT_ARGS(r));
    RUN(o, expert_act_bwd, .dm = over(c->in_place, dm, to_m, count, p->dt),
        .up = over(c->in_place, up, to_dup, 2 * count, p->dt), .dup = to_dup, .m = to_m, .q = dup.q,
        .mq = m.q,
        .dweight = probe_out(p, "dweight", p->zero_out ? kind : PROBE_OUT, acc, slots,
                             8 * tol_reduce(acc, c->f) * sqrt((double)c->f)),
        ACT_ARGS(r));
    act_codes_check(c, p, &r, &dup, plain_dup);
    act_codes_check(c, p, &r, &m, plain_m);
    run_same_bytes(p, "dup", plain_dup, c->only ? NULL : to_dup, 2 * (size_t)count * dtype_bytes(p->dt));
    run_same_bytes(p, "m", plain_m, c->only ? NULL : to_m, (size_t)count * dtype_bytes(p->dt));
}

void run_combine(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_moe *c = &oc->moe;
    const dtype acc = dtype_acc(p->dt), base_dt = c->wide ? acc : p->dt;
    const int64_t count = c->rows * c->d;
    const bool with_base = c->with_base;
    const double tol = 4 * tol_reduce(acc, c->d);
    const void *base = with_base ? probe_in(p, "base", base_dt, count, 0, 1) : NULL;
    const void *gate = c->gated ? probe_in(p, "gate", acc, c->rows, 0, 1) : NULL;
    if (oc->op == OP_combine) {
        const struct routed r = given(c, p);
        void *y = probe_out(p, "y", PROBE_OUT, p->dt, count, 2 * tol);
        RUN(o, combine, .x = sorted_in(p, "x", &r, c->d, 1), .place = r.place,
            .base = with_base ? over(c->in_place, base, y, count, base_dt) : NULL, .gate = gate, .y = y,
            .rows = c->rows, .top_k = c->top_k, .d = c->d, .dt = p->dt, .base_dt = base_dt);
        return;
    }
    void *dbase = probe_out(p, "dbase", PROBE_OUT, p->dt, count, tol);
    RUN(o, combine_gate_bwd, .dy = probe_in(p, "dy", p->dt, count, 0, 1),
        .base = over(c->in_place, base, dbase, count, p->dt), .gate = gate, .dbase = dbase,
        .dgate = probe_out(p, "dgate", PROBE_OUT, p->dt, c->rows, tol * sqrt((double)c->d)), .rows = c->rows,
        .d = c->d, .dt = p->dt);
}

void run_dispatch_sort(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_dispatch *c = &oc->dispatch;
    const int64_t local = c->experts / c->ranks,
                  align = p->expert_align > c->align ? p->expert_align : c->align;
    int32_t *every = probe_ids(p, "every", c->ranks * c->experts, c->most);
    int64_t arrived = 0, slots = 5; /* some have no row */
    for (int64_t i = 0; i < c->ranks * c->experts; i++) {
        if (i % 3 == 1) every[i] = 0;
        if (i % c->experts / local == c->rank) arrived += every[i];
        if (i / c->experts == c->rank) slots += every[i];
    }
    int32_t *chosen = probe_ids(p, "slots", slots, slots * c->top_k);
    for (int64_t i = 0; i < slots; i += 4) chosen[i] = -1;
    RUN(o, dispatch_sort, .every = every, .slots = chosen, .ranks = c->ranks, .rank = c->rank,
        .experts = c->experts, .top_k = c->top_k, .slot_count = slots, .align = align,
        .pairs = probe_out(p, "pairs", PROBE_OUT, DTYPE_F64, 2 * c->ranks * c->ranks,
                           TOL_EXACT), /* 8 bytes each */
        .tokens = probe_out_ids(p, "tokens", slots),
        .source = probe_out_ids(p, "source", moe_rows_max(arrived, 1, local, align)),
        .place = probe_out_ids(p, "place", arrived), .offsets = probe_out_ids(p, "offsets", local + 1),
        .counts = probe_out_ids(p, "counts", local + 1));
}

/* Routers of c->experts, the second of them without slots; between them, elements that belong to none. */
void run_balance(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_balance *c = &oc->balance;
    enum { DOUBLES = sizeof(struct update_chunk) / sizeof(double) };
    const int64_t stride = (c->experts + 31) / 16 * 16, count = c->routers * stride;
    float *bias = probe_out(p, "bias", PROBE_OUT, DTYPE_F32, count, 4 * tol_round(DTYPE_F32)),
          *load = probe_out(p, "load", PROBE_OUT, DTYPE_F32, count, TOL_EXACT);
    struct update_chunk *rows = probe_in(p, "rows", DTYPE_F64, DOUBLES * c->routers, 0, 0);
    for (int64_t i = 0; i < c->routers; i++)
        rows[i] = (struct update_chunk){.begin = i * stride, .count = (int32_t)c->experts};
    for (int64_t i = 0; i < count; i++)
        load[i] =
            i / stride == 1 ? 0 : (float)(i * 7 % 31 + (i % 5 ? 0 : 1000)); /* some are equal to the mean */
    const bool failed = c->not_finite; /* a norm that is not finite: nothing changes */
    struct step_scalars *s =
        probe_out(p, "scalars", PROBE_OUT, DTYPE_F64, sizeof *s / sizeof(double), failed ? TOL_EXACT : 1e-6);
    *s = (struct step_scalars){.grad_norm = failed ? NAN : 1.5};
    RUN(o, balance, .bias = bias, .load = load, .rows = rows, .row_count = c->routers, .rate = 1e-3,
        .scalars = s);
}
