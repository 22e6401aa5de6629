#include "nn/mlp.h"

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
    linear_split(&m->up, p, SPLIT_OUT, (const int64_t[]){m->f, m->f}, m->act == ACT_SWIGLU ? 2 : 1);
    snprintf(full, sizeof full, "%s.down", name);
    linear_init(&m->down, p, full, ROLE_RESIDUAL, spec->hidden_size, m->f, bias);
    linear_split(&m->down, p, SPLIT_IN, NULL, 0);
    m->f = m->down.in;
}

void mlp_lay(const struct mlp *m, struct mlp_saved *s, const struct lay *l)
{
    *s = (struct mlp_saved){
        .up = tensor_take(lay_place(l, RECOMPUTE_FULL), "mlp up", l->dt, 2, l->n, m->up.out),
        .m = tensor_take(l->scratch, "mlp activation", l->dt, 2, l->n, m->f)};
}

void mlp_rows(struct mlp_saved *s, int64_t rows)
{
    tensor_rows(&s->up, rows);
    tensor_rows(&s->m, rows);
}

static status activate(const struct mlp *m, struct mlp_saved *s, const struct run *r)
{
    int64_t n = s->up.shape[0];
    if (m->act == ACT_SWIGLU)
        return r->ops->swiglu_fwd(
            &(struct swiglu_fwd_args){.gu = s->up.data, .m = s->m.data, .rows = n, .f = m->f, .dt = s->m.dt},
            r->stream);
    return r->ops->gelu_fwd(
        &(struct gelu_fwd_args){.x = s->up.data, .y = s->m.data, .count = n * m->f, .dt = s->m.dt},
        r->stream);
}

/* Where the set forms SwiGLU at the end of the product before it, or (backward) behind it, and nothing stands between them: no bias, and no
 * rows that come from other ranks or go to them. */
static bool joins(const struct mlp *m, const struct swiglu_gemm_args *a, const struct run *r)
{
    return m->act == ACT_SWIGLU && m->up.b < 0 && params_slices(r->params) == 1 && r->ops->swiglu_gemm &&
           r->ops->swiglu_gemm_serves(a, r->stream);
}

/* Up and activation. */
static status up_fwd(const struct mlp *m, struct mlp_saved *s, struct tensor y, const struct run *r)
{
    const struct swiglu_gemm_args a = {.way = SWIGLU_FWD,
                                       .a = y.data,
                                       .w = params_weight(r->params, m->up.w),
                                       .gu = s->up.data,
                                       .m = s->m.data,
                                       .rows = y.shape[0],
                                       .d = m->up.in,
                                       .f = m->f,
                                       .dt = y.dt};
    if (joins(m, &a, r)) return r->ops->swiglu_gemm(&a, r->stream);
    TRY(linear_fwd(&m->up, y, s->up, r));
    return activate(m, s, r);
}

status mlp_fwd(const struct mlp *m, struct mlp_saved *s, struct tensor y, struct tensor out,
               const struct run *r)
{
    TRY(up_fwd(m, s, y, r));
    return linear_fwd(&m->down, s->m, out, r);
}

status mlp_again(const struct mlp *m, struct mlp_saved *s, enum recompute policy, struct tensor y,
                 const struct run *r)
{
    return policy == RECOMPUTE_FULL ? up_fwd(m, s, y, r) : STATUS_OK;
}

/* From dm to m, both in s->m, and from up to its gradient in its own place: nobody reads these again. */
static status activate_bwd(const struct mlp *m, struct mlp_saved *s, const struct run *r)
{
    int64_t n = s->up.shape[0];
    void *up = s->up.data, *both = s->m.data;
    if (m->act == ACT_SWIGLU)
        return r->ops->swiglu_bwd(
            &(struct swiglu_bwd_args){
                .dm = both, .gu = up, .dgu = up, .m = both, .rows = n, .f = m->f, .dt = s->up.dt},
            r->stream);
    return r->ops->gelu_bwd(
        &(struct gelu_bwd_args){.dy = both, .x = up, .dx = up, .y = both, .count = n * m->f, .dt = s->up.dt},
        r->stream);
}

/* From dout to up's gradient, in up's place, and m. */
static status down_bwd(const struct mlp *m, struct mlp_saved *s, struct tensor dout, const struct run *r)
{
    const struct swiglu_gemm_args a = {.way = SWIGLU_BWD,
                                       .a = dout.data,
                                       .w = params_weight(r->params, m->down.w),
                                       .gu = s->up.data,
                                       .dgu = s->up.data,
                                       .m = s->m.data,
                                       .rows = dout.shape[0],
                                       .d = m->down.out,
                                       .f = m->f,
                                       .dt = dout.dt};
    if (joins(m, &a, r)) return r->ops->swiglu_gemm(&a, r->stream);
    TRY(linear_dgrad(&m->down, dout, s->m, r));
    return activate_bwd(m, s, r);
}

status mlp_bwd(const struct mlp *m, struct mlp_saved *s, const struct mix *c, struct tensor y,
               struct tensor dout, struct tensor dy, const struct run *r)
{
    (void)c;
    TRY(down_bwd(m, s, dout, r));
    TRY(linear_wgrad(&m->down, s->m, dout, r));
    TRY(linear_dgrad(&m->up, s->up, dy, r)); /* first: others may wait for it */
    return linear_wgrad(&m->up, y, s->up, r);
}
