#include "nn/mlp.h"
#include "spec/layer_traits.h"

#include <stdio.h>

void mlp_init(struct mlp *m, struct params *p, const char *name, const struct model_spec *spec)
{
    char full[96];
    enum bias bias = spec->mlp_bias ? BIAS_ADD : BIAS_NONE;
    m->act = (enum activation)spec->activation;
    m->f = spec->ffn_size;
    snprintf(full, sizeof full, "%s.up", name);
    linear_init(&m->up, p, full, ROLE_MATRIX, m->act == ACT_SWIGLU ? 2 * m->f : m->f, spec->hidden_size,
                bias);
    linear_split(&m->up, p, SPLIT_COLUMN_PARALLEL, (const int64_t[]){m->f, m->f},
                 m->act == ACT_SWIGLU ? 2 : 1);
    snprintf(full, sizeof full, "%s.down", name);
    linear_init(&m->down, p, full, ROLE_RESIDUAL, spec->hidden_size, m->f, bias);
    linear_split(&m->down, p, SPLIT_ROW_PARALLEL, NULL, 0);
    m->f = m->down.in;
}

/* Whether SwiGLU writes the codes that its two linears read. */
static bool writes_codes(const struct mlp *m, const struct params *p)
{
    return m->act == ACT_SWIGLU && p->fp8.count > 0 && p->rows[m->up.w].fp8 >= 0 &&
           p->rows[m->down.w].fp8 >= 0;
}

static bool codes_layout(const struct mlp *m, struct mlp_saved *s, const struct layout *l)
{
    const int64_t ld = quantized_ld(l->n);
    if (l->recipe != RECIPE_FP8 || !writes_codes(m, l->params)) return false;
    s->m_codes = tensor_take(l->scratch, "FP8 codes of the activation", DTYPE_U8, 2, m->f, ld).data;
    if (l->mode != LAYOUT_TRAIN) return true;
    s->up_codes = tensor_take(l->scratch, "FP8 codes of up's gradient", DTYPE_U8, 2, l->n, m->up.out).data;
    s->up_codes_t = tensor_take(l->scratch, "FP8 codes of up's gradient", DTYPE_U8, 2, m->up.out, ld).data;
    return true;
}

void mlp_layout(const struct mlp *m, struct mlp_saved *s, const struct layout *l)
{
    *s = (struct mlp_saved){
        .up = tensor_take(layout_arena(l, RECOMPUTE_FULL), "mlp up", l->dt, 2, l->n, m->up.out),
        .m = tensor_take(l->scratch, "mlp activation", l->dt, 2, l->n, m->f)};
    const bool codes = codes_layout(m, s, l);
    linear_layout(&m->up, &s->up_saved, linear_given_y(l) | (codes ? LINEAR_DY : LINEAR_NONE), l);
    linear_layout(&m->down, &s->down_saved, linear_given_dout(l) | (codes ? LINEAR_X : LINEAR_NONE), l);
}

void mlp_rows(struct mlp_saved *s, int64_t rows)
{
    tensor_rows(&s->up, rows);
    tensor_rows(&s->m, rows);
}

/* FP8: the codes of m, for `down`; its values are written if that computes in bf16. */
static void codes_fwd(const struct mlp *m, struct mlp_saved *s, const struct exec *r)
{
    s->m_q = (struct quantized){0};
    if (!writes_codes(m, r->params)) return;
    s->m_q = linear_quantized(&m->down, FP8_X, s->m_codes, NULL, r->params);
    s->m_q.only = linear_fp8(&m->down, s->up.shape[0], r);
    s->m.q = &s->m_q;
}

/* m, and with FP8 its codes, for `down`. */
static status activate(const struct mlp *m, struct mlp_saved *s, const struct exec *r)
{
    int64_t n = s->up.shape[0];
    codes_fwd(m, s, r);
    if (m->act == ACT_SWIGLU)
        return r->ops->swiglu_fwd(
            &(struct swiglu_fwd_args){
                .gu = s->up.data, .m = s->m.data, .q = s->m_q, .rows = n, .f = m->f, .dt = s->m.dt},
            r->stream);
    return r->ops->gelu_fwd(
        &(struct gelu_fwd_args){.x = s->up.data, .y = s->m.data, .count = n * m->f, .dt = s->m.dt},
        r->stream);
}

/* SwiGLU fused as the epilogue of the GEMM before it (FWD: up), or its backward as the epilogue of down's
 * dgrad (BWD). In FP8 forward alone, if its input brings codes. Needs a set that supports it, no bias, and no
 * rows of other ranks. `in`: up's input, or the gradient of down's output. *done: it was fused. */
static status fused(const struct mlp *m, enum gemm_pass pass, struct mlp_saved *s, struct tensor in,
                    const struct exec *r, bool *done)
{
    const bool fwd = pass == GEMM_FWD;
    *done = false;
    if (m->act != ACT_SWIGLU || m->up.b >= 0 || params_tp_size(r->params) > 1) return STATUS_OK;
    const bool codes = writes_codes(m, r->params);
    if (codes && !(fwd && linear_fp8(&m->up, in.shape[0], r) && linear_codes(in))) return STATUS_OK;
    if (linear_current(fwd ? &m->up : &m->down, in.shape[0], r)) return STATUS_OK;
    if (!codes && linear_fp8(fwd ? &m->up : &m->down, in.shape[0], r)) return STATUS_OK;
    if (codes) codes_fwd(m, s, r);
    struct gemm_args g =
        fwd ? linear_gemm(&m->up, pass, in, s->up, r) : linear_gemm(&m->down, pass, in, s->m, r);
    g.epilogue = (struct epilogue){.kind = fwd ? EPILOGUE_SWIGLU_FWD : EPILOGUE_SWIGLU_BWD,
                                   .swiglu = {.gu = s->up.data, .dgu = s->up.data, .act = s->m.data}};
    if (codes) g.epilogue.swiglu.q = s->m_q;
    if (!fwd) g.c = NULL;
    *done = r->ops->gemm_supports(&g, r->stream);
    return *done ? r->ops->gemm(&g, r->stream) : STATUS_OK;
}

status mlp_fwd(const struct mlp *m, struct mlp_saved *s, const struct layer_ctx *c, struct tensor y,
               struct branch_dst out, const struct exec *r)
{
    bool done;
    (void)c;
    s->up.q = NULL;
    TRY(fused(m, GEMM_FWD, s, y, r, &done));
    if (!done) {
        TRY(linear_fwd(&m->up, &s->up_saved, y, s->up, r));
        TRY(activate(m, s, r));
    }
    return linear_last(&m->down, &s->down_saved, s->m, out, r);
}

/* Recomputes up by the same GEMM as in forward, so with the same bits. */
status mlp_recompute(const struct mlp *m, struct mlp_saved *s, enum recompute policy, struct tensor y,
                     const struct exec *r)
{
    bool done;
    if (policy != RECOMPUTE_FULL) return STATUS_OK;
    TRY(fused(m, GEMM_FWD, s, y, r, &done));
    return done ? STATUS_OK : linear_fwd(&m->up, &s->up_saved, y, s->up, r);
}

/* FP8: codes of up's gradient and their transpose, for dgrad and wgrad of `up`, and the transposed codes of m, for wgrad
 * of `down`. Values are written for GEMMs in bf16, and for a bias. */
static void codes_bwd(const struct mlp *m, struct mlp_saved *s, const struct exec *r)
{
    const int64_t n = s->up.shape[0];
    s->m_q = s->up_q = (struct quantized){0};
    if (!writes_codes(m, r->params)) return;
    s->m_q = linear_quantized(&m->down, FP8_X, NULL, s->m_codes, r->params);
    s->m_q.only = linear_fp8_all(&m->down, n, r);
    s->up_q = linear_quantized(&m->up, FP8_DY, s->up_codes, s->up_codes_t, r->params);
    s->up_q.only = linear_fp8_all(&m->up, n, r) && m->up.b < 0;
    s->m.q = &s->m_q;
    s->up.q = &s->up_q;
}

/* From dm to m, both in s->m, and from up to its gradient, in place: nothing reads the old values again. */
static status activate_bwd(const struct mlp *m, struct mlp_saved *s, const struct exec *r)
{
    int64_t n = s->up.shape[0];
    void *up = s->up.data, *both = s->m.data;
    codes_bwd(m, s, r);
    if (m->act == ACT_SWIGLU)
        return r->ops->swiglu_bwd(&(struct swiglu_bwd_args){.dm = both,
                                                            .gu = up,
                                                            .dgu = up,
                                                            .m = both,
                                                            .q = s->up_q,
                                                            .mq = s->m_q,
                                                            .rows = n,
                                                            .f = m->f,
                                                            .dt = s->up.dt},
                                  r->stream);
    return r->ops->gelu_bwd(
        &(struct gelu_bwd_args){.dy = both, .x = up, .dx = up, .y = both, .count = n * m->f, .dt = s->up.dt},
        r->stream);
}

status mlp_bwd(const struct mlp *m, struct mlp_saved *s, const struct layer_ctx *c, struct tensor y,
               struct tensor dout, struct tensor dy, const struct exec *r)
{
    bool done;
    (void)c;
    TRY(fused(m, GEMM_DGRAD, s, dout, r, &done));
    if (!done) {
        TRY(linear_dgrad(&m->down, &s->down_saved, dout, s->m, r));
        TRY(activate_bwd(m, s, r));
    }
    TRY(linear_wgrad(&m->down, &s->down_saved, s->m, dout, r));
    TRY(linear_dgrad(&m->up, &s->up_saved, s->up, dy, r)); /* first: communication may wait for it */
    return linear_wgrad(&m->up, &s->up_saved, y, s->up, r);
}

bool mlp_adds(const struct mlp *m, const struct exec *r)
{
    return linear_adds(&m->down, r);
}

/* ---- computed from the spec alone */

static status check(const struct model_spec *m)
{
    if (m->ffn_size == 0)
        return FAIL(STATUS_CONFIG,
                    "model.ffn_size is not given; set it or start from a preset (model.preset)");
    return STATUS_OK;
}

static int widths(struct model_spec *m, struct layer_width out[LAYER_WIDTHS_MAX])
{
    out[0] = (struct layer_width){"ffn_size", &m->ffn_size};
    return 1;
}

static int gemms(const struct model_spec *m, struct layer_gemm *out, int n)
{
    n = layer_gemm_add(out, n, m->hidden_size, (m->activation == ACT_SWIGLU ? 2 : 1) * m->ffn_size);
    return layer_gemm_add(out, n, m->ffn_size, m->hidden_size);
}

static struct ffn_flow flow(const struct model_spec *m)
{
    const double f = (double)m->ffn_size;
    return m->activation == ACT_SWIGLU ? (struct ffn_flow){3 * f, 6 * f, 3 * f, !m->mlp_bias}
                                       : (struct ffn_flow){2 * f, 3 * f, 2 * f, !m->mlp_bias};
}

const struct layer_traits mlp_traits = {
    .check = check, .widths = widths, .gemms = gemms, .ffn_flow = flow, .sp_overlap = true};
