/* Ops of FP8 training, and the ops that write FP8 codes beside their result: support_run.c says how cases become calls. */
#include "run.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

RUN_CALL(quantize)
RUN_CALL(fp8_scales)
RUN_CALL(fp8_bound)
RUN_CALL(quantize_blocks)
RUN_CALL(gemm)
RUN_CALL(rmsnorm_fwd)
RUN_CALL(rmsnorm_bwd)
RUN_CALL(swiglu_fwd)
RUN_CALL(swiglu_bwd)

static dtype codes_dt(bool e5m2)
{
    return e5m2 ? DTYPE_F8_E5M2 : DTYPE_F8_E4M3;
}

static float *one_f32(struct probe *p, const char *name, double value)
{
    return probe_in(p, name, DTYPE_F32, 1, value, 0);
}

/* Values of about 2^binade / scale; in gaps, too. */
static void *quantize_x(const struct case_quantize *c, struct probe *p, int64_t stride)
{
    const int binade = c->subnormal ? (c->e5m2 ? -15 : -8) : c->saturated ? (c->e5m2 ? 15 : 8) : 0;
    const double size = c->zeros ? 0 : ldexp(1, binade - (int)c->exp);
    const int64_t count = c->rows * stride, middle = c->rows / 2 * stride + c->n / 3;
    void *x = probe_in(p, "x", p->dt, count, 0, size);
    for (int64_t i = 0; i < count && c->zeros; i += 3) dtype_store(x, i, p->dt, -0.0);
    if (c->outlier) dtype_store(x, middle, p->dt, -448 * size);
    if (c->infinite || c->not_finite)
        dtype_store(x, middle, p->dt, -INFINITY), dtype_store(x, middle + 1, p->dt, INFINITY);
    if (c->not_finite) dtype_store(x, middle - 1, p->dt, NAN), dtype_store(x, c->n - 1, p->dt, -NAN);
    return x;
}

void run_quantize(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_quantize *c = &oc->quantize;
    const int64_t stride = c->n + (c->gaps ? 5 : 0), codes_t = c->n * quantized_ld(c->rows);
    struct quantized q = {.scale = one_f32(p, "scale", ldexp(1, (int)c->exp)),
                          .scale_inv = one_f32(p, "scale_inv", ldexp(1, -(int)c->exp)),
                          .dt = codes_dt(c->e5m2)};
    const void *x = quantize_x(c, p, stride);
    if (!c->no_codes) q.codes = probe_out(p, "codes", PROBE_OUT, q.dt, c->rows * c->n, TOL_EXACT);
    if (!c->no_trans) q.codes_t = probe_out(p, "codes_t", PROBE_OUT, q.dt, codes_t, TOL_EXACT);
    if (!c->no_amax) {
        q.amax = probe_out(p, "amax", PROBE_OUT, DTYPE_F32, 1, TOL_EXACT);
        *q.amax = c->before ? 1e3f : 0;
    }
    RUN(o, quantize, .x = x, .q = q, .rows = c->rows, .n = c->n, .x_stride = c->gaps ? stride : 0,
        .dt = p->dt);
}

/* Magnitudes of all sizes. Every other one is a power of two times the largest code, or the float beside that. */
static float magnitude(double noise, int64_t i)
{
    const int e = (int)(noise * 40) - 8;
    const float border = i % 4 == 0 ? 1.75f : nextafterf(1.75f, i % 4 == 2 ? 2 : 1);
    return ldexpf(i % 2 == 0 ? border : (float)(1 + fabs(noise) / 4), e > 126 ? 126 : e);
}

static void magnitudes(float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) x[i] = magnitude((double)x[i], i);
}

void run_fp8_scales(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_scales *c = &oc->scales;
    const int64_t stride = c->count + 3;
    float *amax = probe_out(p, "amax", PROBE_OUT, DTYPE_F32, c->count, TOL_EXACT), *all = NULL,
          *history = NULL;
    if (c->ranks) all = probe_in(p, "all", DTYPE_F32, c->ranks * stride, 0, 1);
    if (c->delayed)
        history = probe_out(p, "history", PROBE_OUT, DTYPE_F32, c->count * FP8_HISTORY, TOL_EXACT);
    float *scale = probe_out(p, "scale", PROBE_OUT, DTYPE_F32, c->count, TOL_EXACT),
          *scale_inv =
              probe_out(p, "scale_inv", PROBE_OUT, DTYPE_F32, c->count * FP8_SCALE_STRIDE, TOL_EXACT);
    struct step_scalars *s =
        probe_out(p, "scalars", PROBE_OUT, DTYPE_F64, sizeof *s / sizeof(double), TOL_EXACT);
    *s = (struct step_scalars){.lr = 0.5, .fp8_overflow = 2, .step = 3 * FP8_HISTORY + 5};
    magnitudes(amax, c->count);
    magnitudes(all, all ? c->ranks * stride : 0);
    magnitudes(history, history ? c->count * FP8_HISTORY : 0);
    for (int64_t i = 0; i < c->count; i += 5) {
        if (c->not_finite) *(all ? &all[(c->ranks - 1) * stride + i] : &amax[i]) = i % 2 ? INFINITY : NAN;
        if (!c->zeros) continue;
        amax[i] = 0;
        for (int64_t r = 0; r < c->ranks; r++) all[r * stride + i] = 0;
        if (history) memset(history + i * FP8_HISTORY, 0, FP8_HISTORY * sizeof *history);
    }
    RUN(o, fp8_scales, .scaling = c->delayed ? FP8_DELAYED : FP8_CURRENT, .amax = amax, .all = all,
        .history = history, .scale = scale, .scale_inv = scale_inv, .count = c->count, .ranks = c->ranks,
        .all_stride = stride, .margin = (int)c->margin, .scalars = s, .dt = codes_dt(c->e5m2));
}

void run_fp8_bound(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_bound *c = &oc->bound;
    void *w = probe_in(p, "w", p->dt, c->d, c->zeros ? 0 : 1 - c->shift, c->zeros ? 0 : 0.3),
         *b = c->with_bias ? probe_in(p, "b", p->dt, c->d, 0, 0.2) : NULL;
    if (c->not_finite) dtype_store(b ? b : w, c->d / 3, p->dt, b ? NAN : INFINITY);
    RUN(o, fp8_bound, .w = w, .b = b, .scale = probe_out(p, "scale", PROBE_OUT, DTYPE_F32, 1, TOL_EXACT),
        .scale_inv = probe_out(p, "scale_inv", PROBE_OUT, DTYPE_F32, 1, TOL_EXACT), .d = c->d,
        .shift = c->shift, .dt = p->dt, .codes = codes_dt(c->e5m2));
}

static void *blocks_x(const struct case_blocks *c, struct probe *p)
{
    void *x = probe_in(p, "x", p->dt, c->rows * c->n, 0, 1);
    for (int64_t i = 0; i < c->rows; i++)
        for (int64_t j = 0; j < c->n; j++) {
            const int64_t block = i / 16 * 7 + j / 16 * 5;
            const double size = c->zeros && block % 3 == 0 ? 0 : ldexp(1, -(int)(block % 13));
            dtype_store(x, i * c->n + j, p->dt, size * dtype_load(x, i * c->n + j, p->dt));
        }
    if (!c->not_finite) return x;
    dtype_store(x, c->n + 3, p->dt, NAN);
    dtype_store(x, 20 * c->n + 99, p->dt, -INFINITY);
    return x;
}

void run_quantize_blocks(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_blocks *c = &oc->blocks;
    const enum block_format f = (enum block_format)c->format;
    const int64_t lines = c->columns ? c->n : c->rows, length = c->columns ? c->rows : c->n;
    struct step_scalars *s = probe_in(p, "scalars", DTYPE_F64, sizeof *s / sizeof(double), 0, 1);
    *s = (struct step_scalars){.step = 5};
    const void *x = blocks_x(c, p);
    const size_t scales = c->no_codes ? 0 : block_scale_bytes(f, c->square, lines, length);
    RUN(o, quantize_blocks, .x = x,
        .values = c->exact || c->no_values
                      ? NULL
                      : probe_out(p, "values", PROBE_OUT, DTYPE_BF16, c->rows * c->n, TOL_EXACT),
        .codes = c->no_codes ? NULL
                             : probe_out(p, "codes", PROBE_OUT, DTYPE_F8_E4M3, lines * block_ld(f, length),
                                         TOL_EXACT),
        .scales = scales ? probe_out(p, "scales", PROBE_OUT, f == BLOCKS_B128 ? DTYPE_F32 : DTYPE_F8_E4M3,
                                     (int64_t)(f == BLOCKS_B128 ? scales / sizeof(float) : scales), TOL_EXACT)
                         : NULL,
        .tensor = block_tensor_scale(f) && c->rows > 0
                      ? probe_out(p, "tensor", PROBE_OUT, DTYPE_F32, 2, TOL_EXACT)
                  : block_tensor_scale(f) ? probe_out(p, "tensor", PROBE_WORK, DTYPE_F32, 2, 0)
                                          : NULL,
        .rows = c->rows, .n = c->n, .format = f, .columns = c->columns, .square = c->square,
        .hadamard = c->hadamard, .stochastic = c->stochastic, .exact = c->exact, .seed = 11, .first = 1000,
        .scalars = s, .dt = p->dt);
}

/* Products are exact. On a device the tensor core may keep 14 bits of a sum, of all k with fast_accum, else of 128: on
 * Hopper the error is 1.3e-4 (k / 128)^(2/3) of a result's deviation. A term is cut at the binade of the sum so far: where
 * that is four deviations, the error is eight times as large. Thirty times is beyond every element. */
static double tol_fp8(const struct probe *p, const struct case_gemm *c, dtype cdt)
{
    const double deviation = sqrt((double)c->k + 4), rounded = tol_reduce(DTYPE_F32, c->k) * deviation;
    if (!p->device) return rounded;
    const double chunks = c->fast && c->k > 128 ? (double)c->k / 128 : 1;
    const double added = c->with_bias || c->with_add ? 2 * tol_round(cdt) * deviation : 0; /* see run_gemm */
    return rounded + 4e-3 * cbrt(chunks * chunks) * deviation + added;
}

/* Codes of noise, and a scale with which the values are about 2^exp. */
static struct operand operand_fp8(struct probe *p, const char *name, const char *scale, int64_t count,
                                  bool e5m2, const struct case_gemm *c, int64_t exp, double size)
{
    const int binade = c->subnormal ? (e5m2 ? -15 : -8) : 4;
    return (struct operand){.data = probe_in(p, name, codes_dt(e5m2), count, 0, size * ldexp(1, binade)),
                            .dt = codes_dt(e5m2),
                            .scales = SCALES_TENSOR,
                            .scale = one_f32(p, scale, ldexp(1, (int)exp - binade))};
}

void run_gemm_fp8(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_gemm *c = &oc->gemm;
    const dtype cdt = c->wide || p->dt != DTYPE_BF16 ? DTYPE_F32 : DTYPE_BF16;
    const struct operand a =
        operand_fp8(p, "a", "a_scale", c->m * c->k, c->e5m2_a, c, c->exp, c->zeros ? 0 : 1);
    struct operand b = operand_fp8(p, "b", "b_scale", c->k * c->n, c->e5m2_b, c, -c->exp, 1);
    struct epilogue e = {.kind = c->with_bias ? EPILOGUE_BIAS : c->with_add ? EPILOGUE_ADD : EPILOGUE_NONE};
    b.trans = true;
    if (c->with_bias) e.bias = probe_in(p, "bias", DTYPE_BF16, c->n, 0, 1);
    if (c->with_add) e.add = probe_in(p, "add", cdt, c->m * c->n, 0, 1);
    RUN(o, gemm, .a = a, .b = b, .epilogue = e,
        .c = probe_out(p, "c", c->add_to ? PROBE_ACC : PROBE_OUT, cdt, c->m * c->n, tol_fp8(p, c, cdt)),
        .m = c->m, .n = c->n, .k = c->k, .accum = c->add_to ? ACCUM_ADD : ACCUM_STORE, .cdt = cdt,
        .fast_accum = c->fast);
}

/* The FP8 form of an op's output, for run_same_codes to look at. */
struct run_codes {
    struct quantized q;
    int64_t rows, n;
    const char *const *names;
};
struct run_codes_flags {
    bool measured, no_trans, only;
};
static const float AMAX_BEFORE = 0.5f;

static struct run_codes run_codes(struct probe *p, const char *const names[5], int64_t rows, int64_t n,
                                  dtype dt, int exp, struct run_codes_flags flags)
{
    struct run_codes c = {.rows = rows, .n = n, .names = names};
    c.q.dt = dt;
    c.q.only = flags.only;
    if (!flags.measured) {
        c.q.codes = probe_out(p, names[0], PROBE_WORK, dt, rows * n, 0);
        if (!flags.no_trans) c.q.codes_t = probe_out(p, names[1], PROBE_WORK, dt, n * quantized_ld(rows), 0);
    }
    c.q.scale = one_f32(p, names[2], ldexp(1, exp));
    c.q.scale_inv = one_f32(p, names[3], ldexp(1, -exp));
    c.q.amax = probe_out(p, names[4], PROBE_WORK, DTYPE_F32, 1, 0);
    *c.q.amax = AMAX_BEFORE;
    return c;
}

void run_same_bytes(struct probe *p, const char *name, const void *want, const void *got, size_t bytes)
{
    size_t at = 0;
    char text[200];
    if (p->st != STATUS_OK || got == NULL) return;
    while (at < bytes && ((const uint8_t *)want)[at] == ((const uint8_t *)got)[at]) at++;
    if (at == bytes) return;
    snprintf(text, sizeof text,
             "%s is not that of the plain op and quantize: byte %zu of %zu is 0x%02x, not 0x%02x", name, at,
             bytes, ((const uint8_t *)got)[at], ((const uint8_t *)want)[at]);
    if (!p->device) fail_msg("%s", text);
    if (p->trouble[0] == 0) snprintf(p->trouble, sizeof p->trouble, "%s", text);
}

/* What the op wrote is what the oracle's quantize makes of x, the values that the op without codes stored. */
static void same_codes(struct probe *p, const struct run_codes *c, const void *x)
{
    const size_t count = (size_t)(c->rows * c->n), count_t = (size_t)(c->n * quantized_ld(c->rows));
    float amax = AMAX_BEFORE;
    struct quantized q = c->q;
    q.codes = q.codes ? malloc(count + 1) : NULL;
    q.codes_t = q.codes_t ? malloc(count_t + 1) : NULL;
    q.amax = &amax;
    oracle_call(call_quantize, clean_quantize(&(struct quantize_args){
                                   .x = x, .q = q, .rows = c->rows, .n = c->n, .dt = p->dt}));
    run_same_bytes(p, c->names[0], q.codes, c->q.codes, count);
    run_same_bytes(p, c->names[1], q.codes_t, c->q.codes_t, count_t);
    run_same_bytes(p, c->names[4], &amax, c->q.amax, sizeof amax);
    free(q.codes);
    free(q.codes_t);
}

static const char *const names_of_output[] = {"codes", "codes_t", "scale", "scale_inv", "amax"};
static const char *const names_of_m[] = {"m_codes", "m_codes_t", "m_scale", "m_scale_inv", "m_amax"};

static struct run_codes_flags norm_flags(const struct case_norm *c)
{
    return (struct run_codes_flags){c->measured, c->no_trans, c->only};
}

/* Gaps do not occur: codes are of contiguous rows. */
void run_rmsnorm_fwd_fp8(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_norm *c = &oc->norm;
    const dtype acc = dtype_acc(p->dt);
    const int64_t count = c->rows * c->d;
    const double tol = 2 * tol_reduce(acc, c->d);
    const void *x = probe_in(p, "x", p->dt, count, 0.3, 1),
               *w = probe_in(p, "w", p->dt, c->d, 1 - c->shift, 0.3),
               *branch = c->branch ? probe_in(p, "branch", p->dt, count, 0, 1) : NULL;
    const bool sums = c->branch || c->dres;
    void *plain_sum = sums ? probe_out(p, "plain_sum", PROBE_WORK, p->dt, count, 0) : NULL,
         *plain_y = probe_out(p, "plain_y", PROBE_WORK, p->dt, count, 0),
         *plain_rstd = probe_out(p, "plain_rstd", PROBE_WORK, acc, c->rows, 0);
    void *sum = sums ? probe_out(p, "sum", PROBE_OUT, p->dt, count, TOL_EXACT) : NULL,
         *y = probe_out(p, "y", c->only ? PROBE_WORK : PROBE_OUT, p->dt, count, tol),
         *rstd = probe_out(p, "rstd", PROBE_OUT, acc, c->rows, tol);
    const struct run_codes codes =
        run_codes(p, names_of_output, c->rows, c->d, DTYPE_F8_E4M3, 5, norm_flags(c));
    x = run_over(c->in_place, x, sum, count, p->dt);
    branch = run_over(c->in_place_2, branch, sum, count, p->dt);
#define NORM_ARGS .w = w, .rows = c->rows, .d = c->d, .eps = 1e-5, .shift = c->shift, .dt = p->dt
    RUN(o, rmsnorm_fwd, NORM_ARGS, .x = x, .branch = branch, .sum = plain_sum, .y = plain_y,
        .rstd = plain_rstd);
    RUN(o, rmsnorm_fwd, NORM_ARGS, .x = x, .branch = branch, .sum = sum, .y = y, .rstd = rstd, .q = codes.q);
#undef NORM_ARGS
    same_codes(p, &codes, plain_y);
    run_same_bytes(p, "y", plain_y, c->only ? NULL : y, (size_t)count * dtype_bytes(p->dt));
    run_same_bytes(p, "sum", plain_sum, sum, (size_t)count * dtype_bytes(p->dt));
    run_same_bytes(p, "rstd", plain_rstd, rstd, (size_t)c->rows * dtype_bytes(acc));
}

void run_rmsnorm_bwd_fp8(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_norm *c = &oc->norm;
    const dtype acc = dtype_acc(p->dt);
    const int64_t count = c->rows * c->d;
    const double tol_dw = 4 * tol_reduce(acc, c->rows) * sqrt((double)c->rows),
                 tol_dx = 4 * tol_reduce(acc, c->d);
    const void *s = probe_in(p, "x", p->dt, count, 0.3, 1),
               *w = probe_in(p, "w", p->dt, c->d, 1 - c->shift, 0.3),
               *dy = probe_in(p, "dy", p->dt, count, 0, 1),
               *dres = c->dres ? probe_in(p, "dsum", p->dt, count, 0, 1) : NULL;
    void *rstd = probe_in(p, "rstd", acc, c->rows, 0, 1), *y = probe_out(p, "y", PROBE_WORK, p->dt, count, 0),
         *plain_dx = probe_out(p, "plain_dx", PROBE_WORK, p->dt, count, 0),
         *plain_dw = probe_out(p, "plain_dw", PROBE_WORK, acc, c->d, 0),
         *dx = probe_out(p, "dx", PROBE_OUT, p->dt, count, tol_dx),
         *dw = probe_out(p, "dw", PROBE_ACC, acc, c->d, tol_dw);
    const struct run_codes codes =
        run_codes(p, names_of_output, c->rows, c->d, DTYPE_F8_E5M2, 3, norm_flags(c));
    dy = run_over(c->in_place_2 || (c->in_place && !c->dres), dy, dx, count, p->dt);
    dres = run_over(c->in_place && c->dres, dres, dx, count, p->dt);
    GIVEN(rmsnorm_fwd, .x = s, .w = w, .y = y, .rstd = rstd, .rows = c->rows, .d = c->d, .eps = 1e-5,
          .shift = c->shift, .dt = p->dt);
#define NORM_ARGS                                                                                            \
    .dy = dy, .s = s, .w = w, .rstd = rstd, .dres = dres, .rows = c->rows, .d = c->d, .shift = c->shift,     \
    .dt = p->dt
    RUN(o, rmsnorm_bwd, NORM_ARGS, .dx = plain_dx, .dw = plain_dw);
    RUN(o, rmsnorm_bwd, NORM_ARGS, .dx = dx, .dw = dw, .q = codes.q);
#undef NORM_ARGS
    same_codes(p, &codes, plain_dx);
    run_same_bytes(p, "dx", plain_dx, dx, (size_t)count * dtype_bytes(p->dt));
}

void run_swiglu_fwd_fp8(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_act *c = &oc->act;
    const int64_t count = c->rows * c->d;
    const void *gu = run_swiglu_gu(c, p);
    void *plain_m = probe_out(p, "plain_m", PROBE_WORK, p->dt, count, 0),
         *m = probe_out(p, "m", c->only ? PROBE_WORK : PROBE_OUT, p->dt, count,
                        4 * tol_reduce(dtype_acc(p->dt), 1));
    const struct run_codes codes = run_codes(p, names_of_output, c->rows, c->d, DTYPE_F8_E4M3, 0,
                                             (struct run_codes_flags){c->measured, c->no_trans, c->only});
    RUN(o, swiglu_fwd, .gu = gu, .m = plain_m, .rows = c->rows, .f = c->d, .dt = p->dt);
    RUN(o, swiglu_fwd, .gu = gu, .m = m, .q = codes.q, .rows = c->rows, .f = c->d, .dt = p->dt);
    same_codes(p, &codes, plain_m);
    run_same_bytes(p, "m", plain_m, c->only ? NULL : m, (size_t)count * dtype_bytes(p->dt));
}

void run_swiglu_bwd_fp8(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_act *c = &oc->act;
    const int64_t count = c->rows * c->d;
    const double tol = 4 * tol_reduce(dtype_acc(p->dt), 1);
    const struct run_codes_flags flags = {c->measured, c->no_trans, c->only};
    const enum probe_kind kind = c->only ? PROBE_WORK : PROBE_OUT;
    const void *gu = run_swiglu_gu(c, p), *dm = probe_in(p, "dm", p->dt, count, 0, 1);
    void *plain_dgu = probe_out(p, "plain_dgu", PROBE_WORK, p->dt, 2 * count, 0),
         *plain_m = probe_out(p, "plain_m", PROBE_WORK, p->dt, count, 0),
         *dgu = probe_out(p, "dgu", kind, p->dt, 2 * count, 4 * tol),
         *m = probe_out(p, "m", kind, p->dt, count, tol);
    const struct run_codes codes = run_codes(p, names_of_output, c->rows, 2 * c->d, DTYPE_F8_E5M2, -2, flags),
                           codes_m = run_codes(p, names_of_m, c->rows, c->d, DTYPE_F8_E4M3, 1, flags);
    RUN(o, swiglu_bwd, .dm = dm, .gu = gu, .dgu = plain_dgu, .m = plain_m, .rows = c->rows, .f = c->d,
        .dt = p->dt);
    RUN(o, swiglu_bwd, .dm = run_over(c->in_place, dm, m, count, p->dt), .m = m,
        .gu = run_over(c->in_place, gu, dgu, 2 * count, p->dt), .dgu = dgu, .q = codes.q, .mq = codes_m.q,
        .rows = c->rows, .f = c->d, .dt = p->dt);
    same_codes(p, &codes, plain_dgu);
    same_codes(p, &codes_m, plain_m);
    run_same_bytes(p, "dgu", plain_dgu, c->only ? NULL : dgu, 2 * (size_t)count * dtype_bytes(p->dt));
    run_same_bytes(p, "m", plain_m, c->only ? NULL : m, (size_t)count * dtype_bytes(p->dt));
}
