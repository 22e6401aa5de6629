/* The ops of Gated DeltaNet: support_run.c says how cases become calls. */
#include "run.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

RUN_CALL(conv_fwd)
RUN_CALL(conv_bwd)
RUN_CALL(gates_fwd)
RUN_CALL(gates_bwd)
RUN_CALL(delta_fwd)
RUN_CALL(delta_bwd)
RUN_CALL(gated_norm_fwd)
RUN_CALL(gated_norm_bwd)
RUN_CALL(ssm_in_fwd)
RUN_CALL(ssm_in_bwd)
RUN_CALL(ssm_out_fwd)
RUN_CALL(ssm_out_bwd)

/* Gradients are paired with inputs by name, and then have their layout. */
static int64_t own_gap(bool gaps, const struct probe *p)
{
    return gaps && !p->zero_out ? 6 : 0;
}

void run_conv(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_conv *c = &oc->conv;
    const dtype acc = dtype_acc(p->dt);
    int32_t *cu = run_cu_seqlens(&c->docs, p);
    const int64_t rows = cu[c->docs.count], gap = c->gaps ? 3 : 0, stride = c->channels + gap;
    const void *x = probe_in(p, "x", p->dt, rows * stride, 0, 1),
               *w = probe_in(p, "w", p->dt, c->channels * c->width, 0, 0.5);
    const void *bias = c->with_bias ? probe_in(p, "bias", p->dt, c->channels, 0, 0.5) : NULL;
    const double tol = 4 * tol_reduce(acc, c->width), tol_dw = 4 * tol_reduce(acc, rows) * sqrt((double)rows);
    if (oc->op == OP_conv_fwd) {
        RUN(o, conv_fwd, .x = x, .w = w, .bias = bias,
            .before = c->before ? probe_in(p, "before", p->dt,
                                           c->docs.count * (c->width - 1) * conv_dilation(c->dilation) *
                                               c->channels,
                                           0, 1)
                                : NULL,
            .y = probe_out(p, "y", PROBE_OUT, p->dt, rows * stride, tol), .x_stride = stride,
            .y_stride = stride, .cu_seqlens = cu, .docs = c->docs.count, .rows = rows,
            .channels = c->channels, .width = c->width, .dilation = c->dilation, .dt = p->dt);
        return;
    }
    const int64_t dx_stride = stride + own_gap(c->gaps, p);
    RUN(o, conv_bwd, .dy = probe_in(p, "dy", p->dt, rows * stride, 0, 1), .x = x, .w = w, .bias = bias,
        .dx = probe_out(p, "dx", PROBE_OUT, p->dt, rows * dx_stride, 2 * tol),
        .dbias = bias ? probe_out(p, "dbias", PROBE_ACC, acc, c->channels, tol_dw) : NULL,
        .dw = probe_out(p, "dw", PROBE_ACC, acc, c->channels * c->width, tol_dw), .dy_stride = stride,
        .x_stride = stride, .dx_stride = dx_stride, .cu_seqlens = cu, .docs = c->docs.count, .rows = rows,
        .channels = c->channels, .width = c->width, .dilation = c->dilation, .dt = p->dt);
}

void run_gates(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_heads *c = &oc->heads;
    const dtype acc = dtype_acc(p->dt);
    const int64_t stride = c->heads + (c->gaps ? 3 : 0), count = c->rows * stride;
    const void *a = probe_in(p, "a", p->dt, count, 0, 2), *b = probe_in(p, "b", p->dt, count, 0, 2);
    const void *a_log = probe_in(p, "a_log", acc, c->heads, 0.5, 1),
               *dt_bias = probe_in(p, "dt_bias", acc, c->heads, 0, 1);
    const double tol = 16 * tol_round(acc) * 8,
                 tol_sum = 40 * tol_reduce(acc, c->rows) * sqrt((double)c->rows + 1);
    if (oc->op == OP_gates_fwd) {
        RUN(o, gates_fwd, .a = a, .b = b, .a_log = a_log, .dt_bias = dt_bias,
            .g = probe_out(p, "g", PROBE_OUT, acc, c->rows * c->heads, 8 * tol),
            .beta = probe_out(p, "beta", PROBE_OUT, acc, c->rows * c->heads, tol), .rows = c->rows,
            .heads = c->heads, .stride = stride, .dt = p->dt);
        return;
    }
    const int64_t d_stride = stride + own_gap(c->gaps, p);
    RUN(o, gates_bwd, .dg = probe_in(p, "dg", acc, c->rows * c->heads, 0, 1),
        .dbeta = probe_in(p, "dbeta", acc, c->rows * c->heads, 0, 1), .a = a, .b = b, .a_log = a_log,
        .dt_bias = dt_bias, .da = probe_out(p, "da", PROBE_OUT, p->dt, c->rows * d_stride, 8 * tol),
        .db = probe_out(p, "db", PROBE_OUT, p->dt, c->rows * d_stride, tol),
        .da_log = probe_out(p, "da_log", PROBE_ACC, acc, c->heads, tol_sum),
        .ddt_bias = probe_out(p, "ddt_bias", PROBE_ACC, acc, c->heads, tol_sum), .rows = c->rows,
        .heads = c->heads, .stride = stride, .d_stride = d_stride, .dt = p->dt);
}

void run_gated_norm(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_heads *c = &oc->heads;
    const dtype acc = dtype_acc(p->dt);
    const int64_t width = c->heads * c->d, count = c->rows * width, z_stride = width + (c->gaps ? 5 : 0);
    const void *x = probe_in(p, "x", p->dt, count, 0.2, 1),
               *z = probe_in(p, "z", p->dt, c->rows * z_stride, 0, 1),
               *w = probe_in(p, "w", p->dt, c->d, 1, 0.3);
    const double tol = 4 * tol_reduce(acc, c->d),
                 tol_dw = 8 * tol_reduce(acc, c->rows * c->heads) * sqrt((double)(c->rows * c->heads) + 1);
    if (oc->op == OP_gated_norm_fwd) {
        RUN(o, gated_norm_fwd, .x = x, .z = z, .w = w, .y = probe_out(p, "y", PROBE_OUT, p->dt, count, tol),
            .rstd = probe_out(p, "rstd", PROBE_OUT, acc, c->rows * c->heads, tol), .rows = c->rows,
            .heads = c->heads, .d = c->d, .z_stride = z_stride, .eps = 1e-5, .dt = p->dt);
        return;
    }
    void *rstd = probe_in(p, "rstd", acc, c->rows * c->heads, 0, 1);
    GIVEN(gated_norm_fwd, .x = x, .z = z, .w = w, .y = probe_out(p, "y", PROBE_WORK, p->dt, count, 0),
          .rstd = rstd, .rows = c->rows, .heads = c->heads, .d = c->d, .z_stride = z_stride, .eps = 1e-5,
          .dt = p->dt);
    const int64_t dz_stride = z_stride + own_gap(c->gaps, p);
    const void *dy = probe_in(p, "dy", p->dt, count, 0, 1);
    void *dx = probe_out(p, "dx", PROBE_OUT, p->dt, count, 4 * tol);
    if (c->in_place) dy = memcpy(dx, dy, (size_t)count * dtype_bytes(p->dt));
    RUN(o, gated_norm_bwd, .dy = dy, .x = x, .z = z, .w = w, .rstd = rstd, .dx = dx,
        .dz = probe_out(p, "dz", PROBE_OUT, p->dt, c->rows * dz_stride, 4 * tol),
        .dw = probe_out(p, "dw", PROBE_ACC, acc, c->d, tol_dw), .rows = c->rows, .heads = c->heads, .d = c->d,
        .z_stride = z_stride, .dz_stride = dz_stride, .dt = p->dt);
}

/* Chunked forms round q, k, U, W and P to bf16 for tensor cores: some roundoffs of values about 1, which
 * accumulate along the state. In F32 only the order of sums remains, over the rows of a document and dk. */
static double tol_delta(dtype dt, int64_t n)
{
    return dt == DTYPE_BF16 ? 16 * tol_round(dt) : 16 * tol_reduce(dt, n);
}

void run_delta(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_delta *c = &oc->delta;
    const dtype acc = dtype_acc(p->dt);
    int32_t *cu = run_cu_seqlens(&c->docs, p);
    const int64_t rows = cu[c->docs.count], gap = c->gaps ? 5 : 0,
                  states = c->docs.count * c->heads * c->dk * c->dv;
    const int64_t qs = c->heads_k * c->dk + gap, vs = c->heads * c->dv + 2 * gap;
    const bool fwd = oc->op == OP_delta_fwd, normalize = c->qk_norm;
    const struct delta_shape shape = {.docs = c->docs.count,
                                      .rows = rows,
                                      .heads = c->heads,
                                      .heads_k = c->heads_k,
                                      .dk = c->dk,
                                      .dv = c->dv,
                                      .dt = p->dt};
    /* Without normalisation the keys are short, so that states stay about 1. */
    const double size = normalize ? 1 : 1 / sqrt((double)c->dk), scale = 1 / sqrt((double)c->dk);
    const double tol = tol_delta(p->dt, rows + c->dk);
    const void *q = probe_in(p, "q", p->dt, rows * qs, 0, normalize ? 1 : sqrt(size)),
               *k = probe_in(p, "k", p->dt, rows * qs, 0, size),
               *v = probe_in(p, "v", p->dt, rows * vs, 0, 1);
    const bool slow = c->slow;
    void *g = probe_in(p, "g", acc, rows * c->heads, slow ? -0.004 : -0.6, slow ? 0.001 : 0.15), *beta = NULL;
    for (int64_t i = 3; i < rows * c->heads && !slow; i += 17) /* now and then as good as forgetting all */
        dtype_store(g, i, acc, dtype_load(g, i, acc) - 30);
    if (!c->no_delta) beta = probe_in(p, "beta", acc, rows * c->heads, 0.6, 0.2);
    void *saved = probe_kept(p, "saved", o->delta_bytes(&shape, DELTA_SAVED));
#define FWD_ARGS(o_, in_, out_)                                                                              \
    .q = q, .k = k, .v = v, .g = g, .beta = beta, .o = o_, .saved = saved, .state_in = in_,                  \
    .state_out = out_, .q_stride = qs, .k_stride = qs, .v_stride = vs, .cu_seqlens = cu, .shape = shape,     \
    .scale = scale, .normalize = normalize,                                                                  \
    .scratch = probe_scratch(p, "forward's scratch", o->delta_bytes(&shape, DELTA_FWD))
    if (fwd) {
        const void *in = c->state ? probe_in(p, "state_in", acc, states, 0, 1) : NULL;
        void *out = c->state ? probe_out(p, "state_out", PROBE_OUT, acc, states, tol) : NULL;
        RUN(o, delta_fwd,
            FWD_ARGS(probe_out(p, "o", PROBE_OUT, p->dt, rows * c->heads * c->dv, tol), in, out));
        return;
    }
    RUN(o, delta_fwd, FWD_ARGS(probe_out(p, "o", PROBE_WORK, p->dt, rows * c->heads * c->dv, 0), NULL, NULL));
#undef FWD_ARGS
    const int64_t more = own_gap(c->gaps, p), dqs = qs + more, dvs = vs + more;
    const double group = (double)(c->heads / c->heads_k);
    RUN(o, delta_bwd, .q = q, .k = k, .v = v, .g = g, .beta = beta,
        .do_ = probe_in(p, "do", p->dt, rows * c->heads * c->dv, 0, 1), .saved = saved,
        .dq = probe_out(p, "dq", PROBE_OUT, p->dt, rows * dqs, 2 * group * tol),
        .dk = probe_out(p, "dk", PROBE_OUT, p->dt, rows * dqs, 4 * group * tol / size),
        .dv = probe_out(p, "dv", PROBE_OUT, p->dt, rows * dvs, 2 * tol),
        .dg = probe_out(p, "dg", PROBE_OUT, acc, rows * c->heads, 4 * tol * sqrt((double)c->dv)),
        .dbeta = beta ? probe_out(p, "dbeta", PROBE_OUT, acc, rows * c->heads, 4 * tol * sqrt((double)c->dv))
                      : NULL,
        .q_stride = qs, .k_stride = qs, .v_stride = vs, .dq_stride = dqs, .dk_stride = dqs, .dv_stride = dvs,
        .cu_seqlens = cu, .shape = shape, .scale = scale, .normalize = normalize,
        .scratch = probe_scratch(p, "scratch", o->delta_bytes(&shape, DELTA_BWD)));
}

void run_ssm_in(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_heads *c = &oc->heads;
    const dtype acc = dtype_acc(p->dt);
    const int64_t all = c->rows * c->heads, width = c->heads * c->d, gap = c->gaps ? 3 : 0,
                  raw_stride = c->heads + gap, x_stride = width + gap;
    const void *raw = probe_in(p, "raw", p->dt, c->rows * raw_stride, 0, 2),
               *x = probe_in(p, "x", p->dt, c->rows * x_stride, 0, 1),
               *a_log = probe_in(p, "a_log", acc, c->heads, 0.5, 1),
               *dt_bias = probe_in(p, "dt_bias", acc, c->heads, 0, 1);
    const double tol = 64 * tol_round(acc),
                 tol_sum = 60 * tol_reduce(acc, c->rows) * sqrt((double)(c->rows * (c->d + 1)));
    if (oc->op == OP_ssm_in_fwd) {
        RUN(o, ssm_in_fwd, .raw = raw, .x = x, .a_log = a_log, .dt_bias = dt_bias,
            .step = probe_out(p, "step", PROBE_OUT, acc, all, tol),
            .g = probe_out(p, "g", PROBE_OUT, acc, all, 16 * tol),
            .v = probe_out(p, "v", PROBE_OUT, p->dt, all * c->d, 4 * tol), .rows = c->rows, .heads = c->heads,
            .d = c->d, .raw_stride = raw_stride, .x_stride = x_stride, .dt = p->dt);
        return;
    }
    void *step = probe_in(p, "step", acc, all, 0, 1);
    GIVEN(ssm_in_fwd, .raw = raw, .x = x, .a_log = a_log, .dt_bias = dt_bias, .step = step,
          .g = probe_out(p, "g", PROBE_WORK, acc, all, 0),
          .v = probe_out(p, "v", PROBE_WORK, p->dt, all * c->d, 0), .rows = c->rows, .heads = c->heads,
          .d = c->d, .raw_stride = raw_stride, .x_stride = x_stride, .dt = p->dt);
    /* With ds, gradients are of more than this forward: by other names they are not taken for its slopes. */
    const bool more = c->with_skip;
    const int64_t draw_stride = raw_stride + own_gap(c->gaps, p), dx_stride = x_stride + own_gap(c->gaps, p);
    RUN(o, ssm_in_bwd, .dg = probe_in(p, "dg", acc, all, 0, 1),
        .dv = probe_in(p, "dv", p->dt, all * c->d, 0, 1),
        .ds = more ? probe_in(p, "ds", p->dt, all * c->d, 0, 1) : NULL, .raw = raw, .x = x, .step = step,
        .a_log = a_log, .dt_bias = dt_bias, .skip = more ? probe_in(p, "skip", acc, c->heads, 1, 1) : NULL,
        .draw = probe_out(p, "draw", PROBE_OUT, p->dt, c->rows * draw_stride, 8 * tol * sqrt((double)c->d)),
        .dx = probe_out(p, more ? "all of dx" : "dx", PROBE_OUT, p->dt, c->rows * dx_stride, 4 * tol),
        .da_log = probe_out(p, "da_log", PROBE_ACC, acc, c->heads, 4 * tol_sum),
        .ddt_bias = probe_out(p, "ddt_bias", PROBE_ACC, acc, c->heads, tol_sum),
        .dskip = more ? probe_out(p, "all of dskip", PROBE_ACC, acc, c->heads, tol_sum) : NULL,
        .rows = c->rows, .heads = c->heads, .d = c->d, .raw_stride = raw_stride, .x_stride = x_stride,
        .draw_stride = draw_stride, .dx_stride = dx_stride, .dt = p->dt);
}

void run_ssm_out(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_heads *c = &oc->heads;
    const int64_t width = c->heads * c->d, count = c->rows * width, gap = c->gaps ? 3 : 0,
                  x_stride = width + gap, z_stride = width + 2 * gap;
    const void *out = probe_in(p, "s", p->dt, count, 0, 1), /* its gradient is that of the sum */
        *x = probe_in(p, "x", p->dt, c->rows * x_stride, 0, 1),
               *z = probe_in(p, "z", p->dt, c->rows * z_stride, 0, 1),
               *skip = probe_in(p, "skip", dtype_acc(p->dt), c->heads, 1, 1);
    const double tol = 64 * tol_round(dtype_acc(p->dt));
    if (oc->op == OP_ssm_out_fwd) {
        RUN(o, ssm_out_fwd, .o = out, .x = x, .z = z, .skip = skip,
            .y = probe_out(p, "y", PROBE_OUT, p->dt, count, tol), .rows = c->rows, .heads = c->heads,
            .d = c->d, .x_stride = x_stride, .z_stride = z_stride, .dt = p->dt);
        return;
    }
    const int64_t dz_stride = z_stride + own_gap(c->gaps, p);
    const void *dy = probe_in(p, "dy", p->dt, count, 0, 1);
    void *ds = probe_out(p, "ds", PROBE_OUT, p->dt, count, tol);
    if (c->in_place) dy = memcpy(ds, dy, (size_t)count * dtype_bytes(p->dt));
    RUN(o, ssm_out_bwd, .dy = dy, .o = out, .x = x, .z = z, .skip = skip, .ds = ds,
        .dz = probe_out(p, "dz", PROBE_OUT, p->dt, c->rows * dz_stride, tol), .rows = c->rows,
        .heads = c->heads, .d = c->d, .x_stride = x_stride, .z_stride = z_stride, .dz_stride = dz_stride,
        .dt = p->dt);
}
