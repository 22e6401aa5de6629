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
    snprintf(full, sizeof full, "%s.down", name);
    linear_init(&m->down, p, full, ROLE_RESIDUAL, spec->hidden_size, m->f, bias);
}

void mlp_lay(const struct mlp *m, struct mlp_saved *s, const struct lay *l)
{
    *s = (struct mlp_saved){
        .up = tensor_take(lay_place(l, RECOMPUTE_FULL), "mlp up", l->dt, 2, l->n, m->up.out),
        .m = tensor_take(lay_place(l, RECOMPUTE_SELECTIVE), "mlp activation", l->dt, 2, l->n, m->f)};
    if (l->mode == LAY_TRAIN)
        s->dm = tensor_take(l->scratch, "mlp activation gradient", l->dt, 2, l->n, m->f);
}

void mlp_rows(struct mlp_saved *s, int64_t rows)
{
    struct tensor *all[] = {&s->up, &s->m, &s->dm};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) tensor_rows(all[i], rows);
}

/* m from up, alone: forward's middle part, and backward's first under recompute. */
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

status mlp_fwd(const struct mlp *m, struct mlp_saved *s, struct tensor y, struct tensor out,
               const struct run *r)
{
    TRY(linear_fwd(&m->up, y, s->up, r));
    TRY(activate(m, s, r));
    return linear_fwd(&m->down, s->m, out, r);
}

status mlp_again(const struct mlp *m, struct mlp_saved *s, enum recompute policy, struct tensor y,
                 const struct run *r)
{
    if (policy == RECOMPUTE_FULL) TRY(linear_fwd(&m->up, y, s->up, r));
    return policy == RECOMPUTE_NONE ? STATUS_OK : activate(m, s, r);
}

status mlp_bwd(const struct mlp *m, struct mlp_saved *s, struct tensor y, struct tensor dout,
               struct tensor dy, const struct run *r)
{
    int64_t n = s->up.shape[0];
    struct tensor dup =
        s->up; /* the gradient takes the place of what it is the gradient of: nobody reads that again */
    TRY(linear_dgrad(&m->down, dout, s->dm, r));
    TRY(linear_wgrad(&m->down, s->m, dout, r));
    if (m->act == ACT_SWIGLU)
        TRY(r->ops->swiglu_bwd(
            &(struct swiglu_bwd_args){
                .dm = s->dm.data, .gu = s->up.data, .dgu = dup.data, .rows = n, .f = m->f, .dt = dup.dt},
            r->stream));
    else
        TRY(r->ops->gelu_bwd(
            &(struct gelu_bwd_args){
                .dy = s->dm.data, .x = s->up.data, .dx = dup.data, .count = n * m->f, .dt = dup.dt},
            r->stream));
    TRY(linear_wgrad(&m->up, y, dup, r));
    return linear_dgrad(&m->up, dup, dy, r);
}
