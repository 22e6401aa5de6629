/* From a row of the case table to one call. A gradient's buffer is "d" + the forward's name of what it
 * belongs to: the gradient check pairs buffers by that rule. Inputs that only a forward can give (rstd, lse,
 * o) are computed by the oracle. */
#include "run.h"
#include "ops/quant.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#define X(op) RUN_CALL(op)
OPS(X)
#undef X

void oracle_call(probe_op *op, const void *args)
{
    struct ops o;
    ops_oracle(&o);
    assert_int_equal(op(&o, args, NULL), STATUS_OK);
}

void probe_call(struct probe *p, const struct ops *o, probe_op *op, const void *args, size_t bytes)
{
    if (p->device)
        probe_device_call(p, o, op, args, bytes);
    else
        assert_int_equal(op(o, args, NULL), STATUS_OK);
}

const void *run_over(bool so, const void *in, void *out, int64_t count, dtype dt)
{
    if (!so || !in || !out) return in;
    memcpy(out, in, (size_t)count * dtype_bytes(dt));
    return out;
}

/* Sums of k terms, each about 1. TF32 keeps 10 bits after the point of each operand. */
double run_tol_gemm(const struct probe *p, int64_t k)
{
    double round = p->tf32 ? 6 * 0x1p-10 : tol_reduce(dtype_acc(p->dt), k);
    return round * sqrt((double)k + 4);
}

static void run_gemm(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_gemm *c = &oc->gemm;
    dtype acc = dtype_acc(p->dt), cdt = c->wide ? acc : p->dt;
    /* cuBLASLt may round a GEMM of magnitude sqrt(k) before it adds the bias (ops.h) */
    double twice = p->device && c->with_bias ? 2 * tol_round(cdt) * sqrt((double)c->k) : 0;
    const enum epilogue_kind kind = c->with_bias ? EPILOGUE_BIAS : EPILOGUE_NONE;
    const void *a = probe_in(p, "a", p->dt, c->m * c->k, 0, 1),
               *b = probe_in(p, "b", p->dt, c->k * c->n, 0, 1),
               *bias = kind == EPILOGUE_BIAS ? probe_in(p, "bias", p->dt, c->n, 0, 1) : NULL;
    RUN(o, gemm, .a = operand_at(a, p->dt, c->trans_a), .b = operand_at(b, p->dt, c->trans_b),
        .epilogue = {.kind = kind, .bias = bias},
        .c = probe_out(p, "c", c->add_to ? PROBE_ACC : PROBE_OUT, cdt, c->m * c->n,
                       run_tol_gemm(p, c->k) + twice),
        .m = c->m, .n = c->n, .k = c->k, .accum = c->add_to ? ACCUM_ADD : ACCUM_STORE, .cdt = cdt);
}

static void run_bias_bwd(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_gemm *c = &oc->gemm;
    dtype acc = dtype_acc(p->dt);
    RUN(o, bias_bwd, .dy = probe_in(p, "dc", p->dt, c->m * c->n, 0, 1),
        .db = probe_out(p, "dbias", PROBE_ACC, acc, c->n, tol_reduce(acc, c->m) * sqrt((double)c->m)),
        .rows = c->m, .n = c->n, .dt = p->dt);
}

enum { POSITION_COUNT = 11 };

static const int32_t *tokens_of_case(const struct case_embed *c, struct probe *p)
{
    int32_t *ids = probe_ids(p, "tokens", c->rows, c->ids ? c->ids : c->vocab);
    for (int64_t t = 0; t < c->rows && c->no_tokens; t += 3) ids[t] = TOKEN_NONE;
    return ids;
}

static void run_embed_fwd(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_embed *c = &oc->embed;
    bool pos = c->positions;
    RUN(o, embed_fwd, .tokens = tokens_of_case(c, p),
        .positions = pos ? probe_ids(p, "positions", c->rows, POSITION_COUNT) : NULL,
        .table = probe_in(p, "table", p->dt, c->vocab * c->d, 0, 1),
        .pos_table = pos ? probe_in(p, "pos", p->dt, POSITION_COUNT * c->d, 0, 1) : NULL,
        .x = probe_out(p, "x", PROBE_OUT, p->dt, c->rows * c->d, TOL_EXACT), .rows = c->rows, .d = c->d,
        .vocab = c->vocab, .first = c->first, .ids = c->ids, .pos_count = pos ? POSITION_COUNT : 0,
        .dt = p->dt);
}

static void run_embed_bwd(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_embed *c = &oc->embed;
    bool pos = c->positions;
    dtype acc = dtype_acc(p->dt);
    double tol = tol_reduce(acc, c->rows) * sqrt((double)c->rows);
    RUN(o, embed_bwd, .tokens = tokens_of_case(c, p),
        .positions = pos ? probe_ids(p, "positions", c->rows, POSITION_COUNT) : NULL,
        .dx = probe_in(p, "dx", p->dt, c->rows * c->d, 0, 1),
        .dtable = probe_out(p, "dtable", PROBE_ACC, acc, c->vocab * c->d, tol),
        .dpos = pos ? probe_out(p, "dpos", PROBE_ACC, acc, POSITION_COUNT * c->d, tol) : NULL,
        .rows = c->rows, .d = c->d, .vocab = c->vocab, .first = c->first, .ids = c->ids,
        .pos_count = pos ? POSITION_COUNT : 0, .dt = p->dt);
}

static void run_norm_fwd(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_norm *c = &oc->norm;
    dtype acc = dtype_acc(p->dt);
    int64_t count = c->rows * c->d;
    double tol = 2 * tol_reduce(acc, c->d);
    bool stats = !c->no_stats;
    const int64_t x_stride = c->d + (c->gaps ? 5 : 0);
    /* a gradient check needs the layouts of the inputs */
    const int64_t y_stride = c->d + (c->gaps && !p->zero_out ? 3 : 0);
    const void *x = probe_in(p, "x", p->dt, c->rows * x_stride, 0.3, 1),
               *w = probe_in(p, "w", p->dt, c->d, 1 - c->shift, 0.3);
    const void *branch = c->branch ? probe_in(p, "branch", p->dt, count, 0, 1) : NULL;
    void *sum = c->branch || c->dres ? probe_out(p, "sum", PROBE_OUT, p->dt, count, TOL_EXACT) : NULL;
    void *y = probe_out(p, "y", PROBE_OUT, p->dt, c->rows * y_stride, tol);
    void *rstd = stats ? probe_out(p, "rstd", PROBE_OUT, acc, c->rows, tol) : NULL;
    x = run_over(c->in_place, x, sum, count, p->dt);
    branch = run_over(c->in_place_2, branch, sum, count, p->dt);
    if (oc->op == OP_rmsnorm_fwd)
        RUN(o, rmsnorm_fwd, .x = x, .branch = branch, .w = w, .sum = sum, .y = y, .rstd = rstd,
            .rows = c->rows, .d = c->d, .x_stride = c->gaps ? x_stride : 0,
            .y_stride = c->gaps ? y_stride : 0, .eps = 1e-5, .shift = c->shift, .dt = p->dt);
    else
        RUN(o, layernorm_fwd, .x = x, .branch = branch, .w = w, .b = probe_in(p, "b", p->dt, c->d, 0, 1),
            .sum = sum, .y = y, .mean = stats ? probe_out(p, "mean", PROBE_OUT, acc, c->rows, tol) : NULL,
            .rstd = rstd, .rows = c->rows, .d = c->d, .eps = 1e-5, .dt = p->dt);
}

static void run_norm_bwd(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_norm *c = &oc->norm;
    dtype acc = dtype_acc(p->dt);
    int64_t count = c->rows * c->d;
    /* a gradient check needs the layouts of the inputs */
    const int64_t s_stride = c->d + (c->gaps ? 5 : 0),
                  dx_stride = s_stride + (c->gaps && !p->zero_out ? 4 : 0);
    /* Over dres where there is one, over dy elsewhere; or over dy all the same. */
    const bool over_dy = (c->in_place_2 || (c->in_place && !c->dres)) && !(c->gaps && p->zero_out);
    const int64_t dy_stride = over_dy ? dx_stride : c->d + (c->gaps && !p->zero_out ? 3 : 0);
    const void *s = probe_in(p, "x", p->dt, c->rows * s_stride, 0.3, 1),
               *w = probe_in(p, "w", p->dt, c->d, 1 - c->shift, 0.3);
    const void *dy = probe_in(p, "dy", p->dt, c->rows * dy_stride, 0, 1);
    const void *dres = c->dres ? probe_in(p, "dsum", p->dt, count, 0, 1) : NULL;
    void *rstd = probe_in(p, "rstd", acc, c->rows, 0, 1), *y = probe_out(p, "y", PROBE_WORK, p->dt, count, 0);
    double tol_dw = 4 * tol_reduce(acc, c->rows) * sqrt((double)c->rows), tol_dx = 4 * tol_reduce(acc, c->d);
    void *dx = probe_out(p, "dx", PROBE_OUT, p->dt, c->rows * dx_stride, tol_dx),
         *dw = probe_out(p, "dw", PROBE_ACC, acc, c->d, tol_dw);
    dy = run_over(over_dy, dy, dx, c->rows * dy_stride, p->dt);
    dres = run_over(c->in_place, dres, dx, count, p->dt);
    if (oc->op == OP_rmsnorm_bwd) {
        GIVEN(rmsnorm_fwd, .x = s, .w = w, .y = y, .rstd = rstd, .rows = c->rows, .d = c->d,
              .x_stride = s_stride, .eps = 1e-5, .shift = c->shift, .dt = p->dt);
        RUN(o, rmsnorm_bwd, .dy = dy, .s = s, .w = w, .rstd = rstd, .dres = dres, .dx = dx, .dw = dw,
            .rows = c->rows, .d = c->d, .dy_stride = dy_stride, .s_stride = s_stride, .dx_stride = dx_stride,
            .shift = c->shift, .dt = p->dt);
        return;
    }
    void *mean = probe_in(p, "mean", acc, c->rows, 0, 1);
    GIVEN(layernorm_fwd, .x = s, .w = w, .b = w, .y = y, .mean = mean, .rstd = rstd, .rows = c->rows,
          .d = c->d, .eps = 1e-5, .dt = p->dt);
    RUN(o, layernorm_bwd, .dy = dy, .s = s, .w = w, .mean = mean, .rstd = rstd, .dres = dres, .dx = dx,
        .dw = dw, .db = probe_out(p, "db", PROBE_ACC, acc, c->d, tol_dw), .rows = c->rows, .d = c->d,
        .dt = p->dt);
}

/* Tables of real angles, for the given number of positions. */
void run_angles(int64_t half, struct probe *p, int64_t pos_count, void **cosines, void **sines)
{
    dtype acc = dtype_acc(p->dt);
    *cosines = probe_in(p, "cos", acc, pos_count * half, 0, 1);
    *sines = probe_in(p, "sin", acc, pos_count * half, 0, 1);
    for (int64_t t = 0; t < pos_count; t++)
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)t * pow(100, -(double)i / (double)half);
            dtype_store(*cosines, t * half + i, acc, cos(angle));
            dtype_store(*sines, t * half + i, acc, sin(angle));
        }
}

static void run_rope(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_rope *c = &oc->rope;
    dtype acc = dtype_acc(p->dt);
    bool norm = c->qk_norm, fwd = oc->op == OP_rope_fwd;
    int64_t both = c->heads + c->heads_kv, gap = c->gaps ? 5 : 0, pos_count = c->rows + 3;
    int64_t in_stride = (both + c->heads_kv) * c->head_dim + gap, out_stride = both * c->head_dim + 2 * gap;
    if (c->in_place) out_stride = in_stride;
    int64_t in_count = c->rows * in_stride, out_count = c->rows * out_stride;
    const int32_t *positions = probe_ids(p, "positions", c->rows, pos_count);
    void *cosines, *sines, *qw = norm ? probe_in(p, "qw", p->dt, c->head_dim, 1 - c->shift, 0.3) : NULL;
    void *kw = norm ? probe_in(p, "kw", p->dt, c->head_dim, 1 - c->shift, 0.3) : NULL;
    run_angles(c->half, p, pos_count, &cosines, &sines);
    const void *in = probe_in(p, "in", p->dt, in_count, 0, 1);
    double tol = 4 * tol_reduce(acc, c->head_dim),
           tol_dw = 4 * tol_reduce(acc, c->rows * both) * sqrt((double)(c->rows * both));
    if (fwd) {
        void *out = probe_out(p, "out", PROBE_OUT, p->dt, out_count, tol);
        RUN(o, rope_fwd, .in = run_over(c->in_place, in, out, in_count, p->dt), .out = out,
            .in_stride = in_stride, .out_stride = out_stride, .positions = positions, .cos = cosines,
            .sin = sines, .qw = qw, .kw = kw,
            .rstd = norm ? probe_out(p, "rstd", PROBE_OUT, acc, c->rows * both, tol) : NULL, .rows = c->rows,
            .heads = c->heads, .heads_kv = c->heads_kv, .head_dim = c->head_dim, .half = c->half,
            .pos_count = pos_count, .eps = 1e-6, .shift = c->shift, .dt = p->dt);
        return;
    }
    void *rstd = norm ? probe_in(p, "rstd", acc, c->rows * both, 0, 1) : NULL;
    if (norm)
        GIVEN(rope_fwd, .in = in, .out = probe_out(p, "out", PROBE_WORK, p->dt, out_count, 0),
              .in_stride = in_stride, .out_stride = out_stride, .positions = positions, .cos = cosines,
              .sin = sines, .qw = qw, .kw = kw, .rstd = rstd, .rows = c->rows, .heads = c->heads,
              .heads_kv = c->heads_kv, .head_dim = c->head_dim, .half = c->half, .pos_count = pos_count,
              .eps = 1e-6, .shift = c->shift, .dt = p->dt);
    const void *dout = probe_in(p, "dout", p->dt, out_count, 0, 1);
    void *din = probe_out(p, "din", PROBE_OUT, p->dt, in_count, tol);
    RUN(o, rope_bwd, .dout = run_over(c->in_place, dout, din, in_count, p->dt), .din = din,
        .dout_stride = out_stride, .din_stride = in_stride, .in = norm ? in : NULL, .in_stride = in_stride,
        .positions = positions, .cos = cosines, .sin = sines, .qw = qw, .kw = kw, .rstd = rstd,
        .dqw = norm ? probe_out(p, "dqw", PROBE_ACC, acc, c->head_dim, tol_dw) : NULL,
        .dkw = norm ? probe_out(p, "dkw", PROBE_ACC, acc, c->head_dim, tol_dw) : NULL, .rows = c->rows,
        .heads = c->heads, .heads_kv = c->heads_kv, .head_dim = c->head_dim, .half = c->half,
        .pos_count = pos_count, .shift = c->shift, .dt = p->dt);
}

int32_t *run_cu_seqlens(const struct case_docs *docs, struct probe *p)
{
    int32_t *cu = probe_ids(p, "cu_seqlens", docs->count + 1, 1);
    for (int64_t i = 0; i < docs->count; i++) cu[i + 1] = cu[i] + docs->len[i];
    return cu;
}

/* Every 13th gate is far out, where a careless exp overflows. */
void *run_swiglu_gu(const struct case_act *c, struct probe *p)
{
    void *gu = probe_in(p, "gu", p->dt, 2 * c->rows * c->d, 0, 2);
    for (int64_t i = 0; i < 2 * c->rows * c->d; i += 13)
        dtype_store(gu, i, p->dt, dtype_load(gu, i, p->dt) + (i % 2 ? 100 : -100));
    return gu;
}

static void run_act(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_act *c = &oc->act;
    int64_t count = c->rows * c->d;
    double tol = 4 * tol_reduce(dtype_acc(p->dt), 1);
    if (oc->op == OP_swiglu_fwd) {
        RUN(o, swiglu_fwd, .gu = run_swiglu_gu(c, p), .m = probe_out(p, "m", PROBE_OUT, p->dt, count, tol),
            .rows = c->rows, .f = c->d, .dt = p->dt);
    } else if (oc->op == OP_swiglu_bwd) {
        const void *gu = run_swiglu_gu(c, p);
        void *dgu = probe_out(p, "dgu", PROBE_OUT, p->dt, 2 * count, 4 * tol);
        const void *dm = probe_in(p, "dm", p->dt, count, 0, 1);
        void *m = c->recompute ? probe_out(p, "m", PROBE_OUT, p->dt, count, tol) : NULL;
        RUN(o, swiglu_bwd, .dm = run_over(c->in_place, dm, m, count, p->dt), .m = m,
            .gu = run_over(c->in_place, gu, dgu, 2 * count, p->dt), .dgu = dgu, .rows = c->rows, .f = c->d,
            .dt = p->dt);
    } else if (oc->op == OP_gelu_fwd) {
        RUN(o, gelu_fwd, .x = probe_in(p, "x", p->dt, count, 0, 3),
            .y = probe_out(p, "y", PROBE_OUT, p->dt, count, tol), .count = count, .dt = p->dt);
    } else {
        const void *dy = probe_in(p, "dy", p->dt, count, 0, 1);
        void *dx = probe_out(p, "dx", PROBE_OUT, p->dt, count, 4 * tol);
        const void *x = probe_in(p, "x", p->dt, count, 0, 3);
        void *y = c->recompute ? probe_out(p, "y", PROBE_OUT, p->dt, count, tol) : NULL;
        RUN(o, gelu_bwd, .dy = run_over(c->in_place, dy, y ? y : dx, count, p->dt), .y = y,
            .x = run_over(c->in_place_2, x, dx, count, p->dt), .dx = dx, .count = count, .dt = p->dt);
    }
}

/* Every 13th gate is far out. */
static void run_gate(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_act *c = &oc->act;
    const int64_t count = c->rows * c->d, stride = c->d + (c->gaps ? 3 : 0);
    /* Gradients have their own strides; a gradient check needs the layouts of the inputs. */
    const int64_t dz_stride = stride + (c->gaps && !p->zero_out ? 2 : 0);
    const double tol = 4 * tol_reduce(dtype_acc(p->dt), 1);
    void *x = probe_in(p, "x", p->dt, count, 0, 1), *z = probe_in(p, "z", p->dt, c->rows * stride, 0, 2);
    for (int64_t i = 0; i < c->rows * stride; i += 13)
        dtype_store(z, i, p->dt, dtype_load(z, i, p->dt) + (i % 2 ? 100 : -100));
    if (oc->op == OP_gate_fwd) {
        RUN(o, gate_fwd, .x = x, .z = z, .y = probe_out(p, "y", PROBE_OUT, p->dt, count, tol),
            .rows = c->rows, .d = c->d, .z_stride = stride, .dt = p->dt);
        return;
    }
    const void *dy = probe_in(p, "dy", p->dt, count, 0, 1);
    void *dx = probe_out(p, "dx", PROBE_OUT, p->dt, count, tol),
         *dz = probe_out(p, "dz", PROBE_OUT, p->dt, c->rows * dz_stride, tol);
    void *y = c->recompute ? probe_out(p, "y", PROBE_OUT, p->dt, count, tol) : NULL;
    RUN(o, gate_bwd, .dy = run_over(c->in_place, dy, dx, count, p->dt),
        .x = run_over(c->in_place_2, x, y, count, p->dt), .z = z, .dx = dx, .dz = dz, .y = y, .rows = c->rows,
        .d = c->d, .z_stride = stride, .dz_stride = dz_stride, .dt = p->dt);
}

static void run_xent(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_xent *c = &oc->xent;
    const double scale = 0.125;
    dtype acc = dtype_acc(p->dt), ldt = p->narrow_logits ? p->dt : acc, out_dt = c->in_place ? ldt : p->dt;
    int64_t count = c->rows * c->vocab;
    int32_t *targets = probe_ids(p, "targets", c->rows, c->used);
    for (int64_t t = 2; t < c->rows; t += 3) targets[t] = TARGET_IGNORE;
    void *logits = probe_in(p, "logits", ldt, count, 0, 3);
    const double cap = c->cap ? 2 : 0; /* with it dlogits are the gradients of what softcap reads */
    if (c->cap) GIVEN(softcap, .z = logits, .count = count, .cap = cap, .dt = ldt);
    for (int64_t i = 0; i < count; i++)
        if (i % c->vocab >= c->used) dtype_store(logits, i, ldt, NAN);
    double tol = 4 * tol_reduce(acc, 1);
    void *dlogits = c->no_grad ? NULL : probe_out(p, "dlogits", PROBE_OUT, out_dt, count, scale * tol);
    probe_in(p, "dloss", acc, c->rows, scale, 0); /* the op takes it as one number */
    RUN(o, xent, .logits = run_over(c->in_place, logits, dlogits, count, ldt), .dlogits = dlogits,
        .targets = targets, .loss = probe_out(p, "loss", PROBE_OUT, acc, c->rows, tol),
        .z_term = c->z_loss && c->no_grad ? probe_out(p, "z_term", PROBE_OUT, acc, c->rows, tol) : NULL,
        .rows = c->rows, .vocab = c->vocab, .vocab_used = c->used, .ldt = ldt,
        .grad_scale = probe_in(p, "grad_scale", DTYPE_F64, 1, scale, 0), .z_loss = c->z_loss ? 1e-2 : 0,
        .cap = cap, .dt = out_dt);
}

/* Some far beyond the cap. */
static void run_softcap(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const int64_t count = oc->rows.rows * oc->rows.d;
    const double cap = 3;
    const void *x = probe_in(p, "x", p->dt, count, 0, 5);
    void *z = probe_out(p, "z", PROBE_OUT, p->dt, count,
                        cap * (p->dt == DTYPE_BF16 ? 0x1p-18 : tol_reduce(p->dt, 1)));
    memcpy(z, x, (size_t)count * dtype_bytes(p->dt));
    if (count > 2) dtype_store(z, 1, p->dt, 1e30), dtype_store(z, 2, p->dt, -1e4);
    RUN(o, softcap, .z = z, .count = count, .cap = cap, .dt = p->dt);
}

static void run_sum(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_rows *c = &oc->rows;
    int64_t count = c->rows * c->d;
    dtype acc = dtype_acc(p->dt);
    const void *x = probe_in(p, "x", acc, count, 0, 1);
    double *out = probe_out(p, "out", PROBE_ACC, DTYPE_F64, 1, tol_reduce(DTYPE_F64, count) * (double)count);
    RUN(o, sum, .x = x, .count = count, .dt = acc, .out = out);
}

/* Chunks of all lengths with every mix of flags, and elements between them that belong to none. Returns how
 * many; `table` NULL: only counts. With TABLE_ROWS they consist of whole rows, few or as many as fit, and
 * some belong to no table. */
static int64_t chunk_table(struct update_chunk *table, const struct case_update *c)
{
    const int64_t count = c->rows * c->d;
    int64_t n = 0;
    for (int64_t at = 0, length; c->table_rows && at < count; at += length, n++) {
        const uint32_t flags = n % 3 == 1 ? UPDATE_DECAY : UPDATE_ZERO;
        length = (n % 2 ? UPDATE_CHUNK / c->d : 5) * c->d;
        if (length > count - at) length = count - at;
        if (table)
            table[n] = (struct update_chunk){
                .begin = at,
                .count = (int32_t)length,
                .flags = flags | (n % 4 == 2 ? 0 : UPDATE_ROWS | (uint32_t)c->d * UPDATE_WIDTH)};
    }
    if (c->table_rows) return n;
    for (int64_t at = 0, v_offset = 0, next; at < count; n++, at = next) {
        const bool momentum = n % 5 == 4;
        const int64_t length = n % 3 == 0 ? UPDATE_CHUNK : 1 + n * 397 % 4111, left = count - at;
        if (table)
            table[n] = (struct update_chunk){.begin = at,
                                             .count = (int32_t)(length < left ? length : left),
                                             .flags = momentum ? UPDATE_MOMENTUM : (unsigned)(n + 3) % 4,
                                             .v_offset = v_offset};
        next = at + (c->moments_8 ? (length / QUANT_BLOCK + 1) * QUANT_BLOCK : (length + 31) / 16 * 16);
        if (momentum) v_offset += next - at;
    }
    return n;
}

static struct step_scalars *scalars_of(struct probe *p)
{
    struct step_scalars *s = probe_out(p, "scalars", PROBE_OUT, DTYPE_F64, sizeof *s / sizeof(double), 1e-9);
    *s = (struct step_scalars){
        .lr = 1e-2, .correction1 = 1 - pow(0.9, 3), .correction2 = 1 - pow(0.95, 3), .step = 2};
    return s;
}

struct moment_bufs {
    void *m, *v;
    float *m_scale, *v_scale;
    dtype sdt;
};
/* Away from 0: an update of thousands that leaves a weight of 1 would show its rounding, not the op's. */
static struct moment_bufs moments_of(struct probe *p, const struct case_update *c, int64_t count, double tol)
{
    const bool lion = c->lion;
    struct moment_bufs b = {.sdt = c->moments_8 ? DTYPE_U8 : c->moments_bf16 ? DTYPE_BF16 : DTYPE_F32};
    if (b.sdt != DTYPE_U8) {
        b.m = probe_out(p, "m", PROBE_OUT, b.sdt, count, tol);
        b.v = lion ? NULL : probe_out(p, "v", PROBE_OUT, b.sdt, count, tol);
        for (int64_t i = 0; i < count && b.v; i++)
            dtype_store(b.v, i, b.sdt, 0.01 + pow(dtype_load(b.v, i, b.sdt), 2));
        return b;
    }
    const int64_t blocks = (count + QUANT_BLOCK - 1) / QUANT_BLOCK;
    uint8_t *codes = b.m = probe_out_codes(p, "m", count);
    b.m_scale = probe_out(p, "m_scale", PROBE_OUT, DTYPE_F32, blocks, tol);
    if (count > 0) codes[0] = 0, codes[count - 1] = 255; /* the ends of the map */
    for (int64_t i = 0; i < blocks; i++) b.m_scale[i] = 2 * fabsf(b.m_scale[i]);
    if (lion) return b;
    codes = b.v = probe_out_codes(p, "v", count);
    b.v_scale = probe_out(p, "v_scale", PROBE_OUT, DTYPE_F32, blocks, tol);
    for (int64_t i = 0; i < count; i++) codes[i] |= 128;
    for (int64_t i = 0; i < blocks; i++) b.v_scale[i] = 0.1f + 2 * b.v_scale[i] * b.v_scale[i];
    return b;
}

static void run_update(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_update *c = &oc->update;
    const int64_t count = c->rows * c->d, chunk_count = chunk_table(NULL, c);
    const bool lion = c->lion;
    double tol = tol_reduce(DTYPE_F32, 1);
    float *w = probe_out(p, "p", PROBE_OUT, DTYPE_F32, count, tol),
          *g = probe_out(p, "g", PROBE_OUT, DTYPE_F32, count, tol);
    bf16 *copy = p->dt == DTYPE_BF16 ? probe_out(p, "w", PROBE_OUT, DTYPE_BF16, count, tol) : NULL;
    const struct moment_bufs b = moments_of(p, c, count, tol);
    if (lion && count > 0 && b.sdt != DTYPE_U8) g[0] = 0, dtype_store(b.m, 0, b.sdt, 0); /* sign(0) = 0 */
    enum { DOUBLES = sizeof(struct update_chunk) / sizeof(double) }; /* aligned as doubles are */
    struct update_chunk *chunks = probe_in(p, "chunks", DTYPE_F64, DOUBLES * chunk_count, 0, 0);
    (void)chunk_table(chunks, c);
    for (int64_t row = 0; c->table_rows && row < c->rows; row += 3) /* untouched */
        memset(g + row * c->d, 0, (size_t)c->d * sizeof *g);
    struct step_scalars *scalars = scalars_of(p);
    const struct run_arrays arrays = {.p = w,
                                      .g = g,
                                      .w = copy,
                                      .m = b.m,
                                      .v = b.v,
                                      .m_scale = b.m_scale,
                                      .v_scale = b.v_scale,
                                      .count = count,
                                      .g_count = count,
                                      .sdt = b.sdt};
    struct run_again h = {0};
    struct run_pair two = {0};
    if (copy) h = run_again(o, p, &arrays), two = run_pair(o, p, &arrays);
#define STEP                                                                                                 \
    .rule = lion ? UPDATE_LION : UPDATE_ADAMW, .chunks = chunks, .chunk_count = chunk_count, .beta1 = 0.9,   \
    .beta2 = lion ? 0.99 : 0.95, .eps = 1e-8, .weight_decay = 0.1, .row_rate = c->table_rows ? 5 : 0,        \
    .rate = c->no_clip ? 0.5 : 0, .momentum = 0.95, .clip = c->no_clip ? 0 : 0.4 * sqrt((double)count),      \
    .scalars = scalars, .seed = 17, .moment_dt = b.sdt
    RUN(o, update, STEP, .p = w, .g = g, .m = b.m, .v = b.v, .m_scale = b.m_scale, .v_scale = b.v_scale,
        .w = copy);
    if (copy == NULL) return;
    RUN(o, update, STEP, .master_residual = h.low, .g = h.g, .m = h.m, .v = h.v, .m_scale = h.m_scale,
        .v_scale = h.v_scale, .w = h.upper);
    run_same(o, p, &h);
    h = two.whole;
    RUN(o, update, STEP, .p = h.joined, .g = h.g, .m = h.m, .v = h.v, .m_scale = h.m_scale,
        .v_scale = h.v_scale, .w = h.upper);
    h = two.alone;
    RUN(o, update, STEP, .g = h.g, .m = h.m, .v = h.v, .m_scale = h.m_scale, .v_scale = h.v_scale,
        .w = h.upper);
#undef STEP
    run_rounded(p, &two, chunks, chunk_count, 17, scalars->step);
}

/* Stored and accumulated, in both types. */
static void run_accumulate_tree(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_rows *c = &oc->rows;
    int64_t count = c->rows * c->d;
    static const dtype dts[] = {DTYPE_F32, DTYPE_F64};
    static const char *const names[][3] = {{"x", "kept", "y"}, {"x64", "kept64", "y64"}};
    for (int i = 0; i < 2; i++) {
        const double tol = i == 0 ? tol_reduce(DTYPE_F32, 1) : TOL_EXACT;
        void *x = probe_out(p, names[i][0], PROBE_OUT, dts[i], count, TOL_EXACT),
             *kept = probe_out(p, names[i][1], PROBE_OUT, dts[i], count, TOL_EXACT),
             *y = probe_out(p, names[i][2], PROBE_OUT, dts[i], count, tol);
        for (int64_t k = 0; k < count; k++) dtype_store(y, k, dts[i], 1.0 / (double)(k + 3));
        RUN(o, accumulate_tree, .what = TREE_KEEP, .x = x, .kept = kept, .count = count, .dt = dts[i]);
        RUN(o, accumulate_tree, .what = TREE_ADD, .x = y, .kept = kept, .count = count, .dt = dts[i]);
    }
}

static int64_t most(int64_t a, int64_t b, int64_t c)
{
    const int64_t ab = a > b ? a : b;
    return ab > c ? ab : c;
}
static int64_t rows_of(const struct case_docs *docs)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < docs->count; i++) rows += docs->len[i];
    return rows;
}

/* The micro-batch in which an op of this shape would run. */
static int64_t tokens_of(const struct op_case *c)
{
    switch (case_family(c->op)) {
    case CASE_gemm: return most(0, c->gemm.m, c->gemm.k);
    case CASE_embed: /* narrow rows are those of n-grams: many to a token */
        return most(c->embed.rows, c->embed.first, 0) / (c->op == OP_embed_bwd && c->embed.d < 32 ? 32 : 1);
    case CASE_norm: return c->norm.rows;
    case CASE_act: return c->act.rows;
    case CASE_rows: return c->rows.rows;
    case CASE_rope: return c->rope.rows;
    case CASE_latent: return c->latent.rows;
    case CASE_attn:
        return c->op == OP_attn_decode || c->op == OP_kv_cache_append ? 0 : rows_of(&c->attn.docs);
    case CASE_xent: return c->xent.rows;
    case CASE_slice: return most(c->slice.rows, c->slice.slice, 0);
    case CASE_shift_tokens: return most(rows_of(&c->shift_tokens.docs), c->shift_tokens.k, 0);
    case CASE_ngram: return most(rows_of(&c->ngram.docs), c->ngram.order, 0);
    case CASE_halt: return most(rows_of(&c->halt.docs), c->halt.m, c->halt.segments);
    case CASE_conv: return most(rows_of(&c->conv.docs), c->conv.width, c->conv.dilation);
    case CASE_heads: return c->heads.rows;
    case CASE_delta: return rows_of(&c->delta.docs);
    case CASE_moe: return most(c->moe.rows + rows_of(&c->moe.docs), c->moe.k, 0);
    case CASE_dispatch: return most(c->dispatch.ranks, c->dispatch.experts, 0);
    case CASE_balance: return c->balance.routers;
    case CASE_update: return c->update.rows;
    case CASE_unique: return c->unique.count;
    case CASE_table: return most(c->table.slots, c->table.first, 0);
    case CASE_quantize: return c->quantize.rows;
    case CASE_blocks: return c->blocks.rows;
    case CASE_scales:
    case CASE_bound: return 0;
    case CASE_FAMILIES: break;
    }
    return 0;
}

static void run_normal(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_rows *c = &oc->rows;
    dtype acc = dtype_acc(p->dt);
    int64_t count = c->rows * c->d;
    float *x = probe_out(p, "x", PROBE_OUT, acc, count, 0.02 * tol_reduce(acc, 1));
#define NUMBERS .count = count, .std = 0.02, .seed = 11, .key = 0x123456789abcdefu
    RUN(o, normal, .x = x, NUMBERS, .dt = acc);
    if (p->dt != DTYPE_BF16) return;
    const struct run_arrays arrays = {.p = x, .count = count};
    const struct run_again h = run_again(o, p, &arrays);
    RUN(o, normal, .x = h.upper, .master_residual = h.low, NUMBERS, .dt = DTYPE_BF16);
#undef NUMBERS
    run_same(o, p, &h);
}

/* The runner of a case of FP8; NULL for the others. */
static run_fn *fp8_run(const struct op_case *c)
{
    switch (c->op) {
    case OP_quantize: return run_quantize;
    case OP_fp8_scales: return run_fp8_scales;
    case OP_fp8_bound: return run_fp8_bound;
    case OP_quantize_blocks: return run_quantize_blocks;
    case OP_gemm: return c->gemm.fp8 ? run_gemm_fp8 : NULL;
    case OP_expert_gemm: return c->moe.fp8 ? run_expert_gemm_fp8 : NULL;
    case OP_expert_codes: return run_expert_codes;
    case OP_expert_act_fwd: return c->moe.quantized ? run_expert_act_fwd_fp8 : NULL;
    case OP_expert_act_bwd: return c->moe.quantized ? run_expert_act_bwd_fp8 : NULL;
    case OP_rmsnorm_fwd: return c->norm.quantized || c->norm.measured ? run_rmsnorm_fwd_fp8 : NULL;
    case OP_rmsnorm_bwd: return c->norm.quantized || c->norm.measured ? run_rmsnorm_bwd_fp8 : NULL;
    case OP_swiglu_fwd: return c->act.quantized || c->act.measured ? run_swiglu_fwd_fp8 : NULL;
    case OP_swiglu_bwd: return c->act.quantized || c->act.measured ? run_swiglu_bwd_fp8 : NULL;
    default: return NULL;
    }
}

void op_run(const struct ops *o, const struct op_case *c, struct probe *p)
{
    static run_fn *const runs[OP_COUNT] = {
        [OP_gemm] = run_gemm,
        [OP_bias_bwd] = run_bias_bwd,
        [OP_embed_fwd] = run_embed_fwd,
        [OP_embed_bwd] = run_embed_bwd,
        [OP_shift_tokens] = run_shift_tokens,
        [OP_ngram] = run_ngram,
        [OP_halt_fwd] = run_halt_fwd,
        [OP_halt_stop] = run_halt_stop,
        [OP_halt_bwd] = run_halt_bwd,
        [OP_ngram_gate_fwd] = run_ngram_gate,
        [OP_ngram_gate_bwd] = run_ngram_gate,
        [OP_rmsnorm_fwd] = run_norm_fwd,
        [OP_rmsnorm_bwd] = run_norm_bwd,
        [OP_layernorm_fwd] = run_norm_fwd,
        [OP_layernorm_bwd] = run_norm_bwd,
        [OP_rope_fwd] = run_rope,
        [OP_rope_bwd] = run_rope,
        [OP_attn_fwd] = run_attn_fwd,
        [OP_attn_bwd] = run_attn_bwd,
        [OP_attn_decode] = run_attn_decode,
        [OP_mla_rope_fwd] = run_latent,
        [OP_mla_rope_bwd] = run_latent,
        [OP_kv_cache_append] = run_kv_cache_append,
        [OP_per_head_gemm] = run_per_head_gemm,
        [OP_swiglu_fwd] = run_act,
        [OP_swiglu_bwd] = run_act,
        [OP_gelu_fwd] = run_act,
        [OP_gelu_bwd] = run_act,
        [OP_gate_fwd] = run_gate,
        [OP_gate_bwd] = run_gate,
        [OP_xent] = run_xent,
        [OP_top1_correct] = run_top1_correct,
        [OP_vocab_xent_partial] = run_vocab_xent_partial,
        [OP_vocab_xent_finish] = run_vocab_xent_finish,
        [OP_softcap] = run_softcap,
        [OP_sum] = run_sum,
        [OP_update] = run_update,
        [OP_rows_unique] = run_rows_unique,
        [OP_rows_update] = run_rows_update,
        [OP_muon_normalize] = run_muon_normalize,
        [OP_newton_schulz_poly] = run_newton_schulz_poly,
        [OP_muon_apply] = run_muon_apply,
        [OP_split_master] = run_split_master,
        [OP_accumulate_tree] = run_accumulate_tree,
        [OP_normal] = run_normal,
        [OP_conv_fwd] = run_conv,
        [OP_conv_bwd] = run_conv,
        [OP_gates_fwd] = run_gates,
        [OP_gates_bwd] = run_gates,
        [OP_delta_fwd] = run_delta,
        [OP_delta_bwd] = run_delta,
        [OP_gated_norm_fwd] = run_gated_norm,
        [OP_gated_norm_bwd] = run_gated_norm,
        [OP_route_fwd] = run_route,
        [OP_route_bwd] = run_route,
        [OP_expert_gemm] = run_expert_gemm,
        [OP_expert_act_fwd] = run_expert_act,
        [OP_expert_act_bwd] = run_expert_act,
        [OP_combine] = run_combine,
        [OP_combine_gate_bwd] = run_combine,
        [OP_dispatch_sort] = run_dispatch_sort,
        [OP_balance] = run_balance,
        [OP_ssm_in_fwd] = run_ssm_in,
        [OP_ssm_in_bwd] = run_ssm_in,
        [OP_ssm_out_fwd] = run_ssm_out,
        [OP_ssm_out_bwd] = run_ssm_out,
    };
    p->tokens = tokens_of(c);
    (fp8_run(c) ? fp8_run(c) : runs[c->op])(o, c, p);
}
