#include "nn/norm.h"

void norm_init(struct norm_block *m, struct params *p, const char *name, enum norm kind, int64_t d,
               double eps)
{
    *m = (struct norm_block){.kind = kind, .d = d, .eps = eps, .b = -1};
    m->w = params_add(p, ROLE_NORM, 1, d, 0, "%s.weight", name);
    if (kind == NORM_LAYERNORM) m->b = params_add(p, ROLE_NORM, 0, d, 0, "%s.bias", name);
}

void norm_center(struct norm_block *m, struct params *p)
{
    CHECK(m->kind == NORM_RMSNORM, "a LayerNorm around 0");
    m->shift = 1;
    p->rows[m->w].init_value = 0;
}

void norm_layout(const struct norm_block *m, struct norm_saved *s, const struct layout *l)
{
    struct arena *place = layout_arena(l, RECOMPUTE_FULL);
    *s = (struct norm_saved){.rstd = tensor_take(place, "norm rstd", dtype_acc(l->dt), 1, l->n)};
    if (m->kind == NORM_LAYERNORM) s->mean = tensor_take(place, "norm mean", dtype_acc(l->dt), 1, l->n);
}

status norm_fwd(const struct norm_block *m, struct norm_saved *s, struct tensor x, struct tensor branch,
                struct tensor sum, struct tensor y, const struct exec *r)
{
    CHECK(x.shape[1] == m->d, "width %lld, norm has %lld", (long long)x.shape[1], (long long)m->d);
    CHECK(m->kind == NORM_RMSNORM || y.q == NULL, "LayerNorm writes no codes");
    const struct params *p = r->params;
    const struct quantized none = {0};
    if (branch.data == NULL && sum.data == x.data) sum.data = NULL; /* the sum is there already */
    if (m->kind == NORM_RMSNORM)
        return r->ops->rmsnorm_fwd(&(struct rmsnorm_fwd_args){.x = x.data,
                                                              .branch = branch.data,
                                                              .w = params_weight(p, m->w),
                                                              .sum = sum.data,
                                                              .y = y.data,
                                                              .rstd = s->rstd.data,
                                                              .rows = x.shape[0],
                                                              .d = m->d,
                                                              .eps = m->eps,
                                                              .shift = m->shift,
                                                              .q = y.q ? *y.q : none,
                                                              .dt = x.dt},
                                   r->stream);
    return r->ops->layernorm_fwd(&(struct layernorm_fwd_args){.x = x.data,
                                                              .branch = branch.data,
                                                              .w = params_weight(p, m->w),
                                                              .b = params_weight(p, m->b),
                                                              .sum = sum.data,
                                                              .y = y.data,
                                                              .mean = s->mean.data,
                                                              .rstd = s->rstd.data,
                                                              .rows = x.shape[0],
                                                              .d = m->d,
                                                              .eps = m->eps,
                                                              .dt = x.dt},
                                 r->stream);
}

status norm_bwd(const struct norm_block *m, const struct norm_saved *s, struct tensor sum, struct tensor dy,
                struct tensor dres, struct tensor dx, const struct exec *r)
{
    const struct params *p = r->params;
    const struct quantized none = {0};
    CHECK(m->kind == NORM_RMSNORM || dx.q == NULL, "LayerNorm writes no codes");
    if (m->kind == NORM_RMSNORM)
        return r->ops->rmsnorm_bwd(&(struct rmsnorm_bwd_args){.dy = dy.data,
                                                              .s = sum.data,
                                                              .w = params_weight(p, m->w),
                                                              .rstd = s->rstd.data,
                                                              .dres = dres.data,
                                                              .dx = dx.data,
                                                              .dw = params_grad(p, m->w),
                                                              .rows = sum.shape[0],
                                                              .d = m->d,
                                                              .shift = m->shift,
                                                              .q = dx.q ? *dx.q : none,
                                                              .dt = sum.dt},
                                   r->stream);
    return r->ops->layernorm_bwd(&(struct layernorm_bwd_args){.dy = dy.data,
                                                              .s = sum.data,
                                                              .w = params_weight(p, m->w),
                                                              .mean = s->mean.data,
                                                              .rstd = s->rstd.data,
                                                              .dres = dres.data,
                                                              .dx = dx.data,
                                                              .dw = params_grad(p, m->w),
                                                              .db = params_grad(p, m->b),
                                                              .rows = sum.shape[0],
                                                              .d = m->d,
                                                              .dt = sum.dt},
                                 r->stream);
}
