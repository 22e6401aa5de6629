#include "optim/optim.h"
#include "base/scope.h"

#include <math.h>

int optim_moments(enum optim kind)
{
    return kind == OPTIM_ADAMW ? 2 : 1;
}

static bool decays(const struct run_spec *spec, enum role role)
{
    switch (role) {
    case ROLE_MATRIX:
    case ROLE_RESIDUAL: return true;
    case ROLE_EMBED:
    case ROLE_POSITION:
    case ROLE_HEAD: return spec->optim_decay_embeddings;
    case ROLE_NORM:
    case ROLE_BIAS:
    case ROLE_COUNT: break;
    }
    return false;
}

/* Over all gradients, in f64, in table order. */
static status norm_of_gradients(const struct run *r, double *norm)
{
    const struct params *p = r->params;
    double sum = 0;
    for (int i = 0; i < p->count; i++) {
        double part = 0;
        TRY(r->ops->sumsq(
            &(struct sumsq_args){
                .x = params_grad(p, i), .out = &part, .count = p->rows[i].count, .dt = dtype_acc(p->dt)},
            r->stream));
        sum += part;
    }
    *norm = sqrt(sum);
    return STATUS_OK;
}

status optim_blame(const struct run *r)
{
    const struct params *p = r->params;
    for (int i = 0; i < p->count; i++) {
        double part = 0;
        TRY(r->ops->sumsq(
            &(struct sumsq_args){
                .x = params_grad(p, i), .out = &part, .count = p->rows[i].count, .dt = dtype_acc(p->dt)},
            r->stream));
        if (!isfinite(part))
            return FAIL(STATUS_NUMERIC,
                        "the gradient of %s is not finite; the last checkpoint is good: resume from it with "
                        "a lower optim.lr, or "
                        "with train.precision=fp32 to see whether precision is the cause",
                        p->rows[i].name);
    }
    return FAIL(STATUS_NUMERIC,
                "the gradient norm is not finite, though every gradient is: their squares overflow");
}

void optim_scalars(const struct run_spec *spec, int64_t step, struct step_scalars *s)
{
    s->correction1 = 1 - pow(spec->optim_beta1, (double)(step + 1));
    s->correction2 = 1 - pow(spec->optim_beta2, (double)(step + 1));
    s->step = (uint64_t)step;
}

status optim_step(const struct run *r, const struct run_spec *spec)
{
    SCOPE("optim.step", -1);
    const struct params *p = r->params;
    struct step_scalars *s = r->scalars;
    TRY(norm_of_gradients(r, &s->grad_norm));
    s->clip_factor = spec->train_clip > 0 ? fmin(1, spec->train_clip / (s->grad_norm + 1e-6)) : 1;
    if (!isfinite(s->grad_norm)) return STATUS_OK;
    for (int i = 0; i < p->count; i++) {
        const struct param *row = &p->rows[i];
        double decay = decays(spec, row->role) ? spec->optim_weight_decay : 0;
        float *master = params_master(p, i), *m = p->m + row->offset;
        bf16 *copy = p->dt == DTYPE_BF16 ? params_weight(p, i) : NULL;
        if (spec->optim_name == OPTIM_ADAMW)
            TRY(r->ops->adamw(&(struct adamw_args){.p = master,
                                                   .g = params_grad(p, i),
                                                   .m = m,
                                                   .v = p->v + row->offset,
                                                   .w = copy,
                                                   .count = row->count,
                                                   .lr = s->lr,
                                                   .beta1 = spec->optim_beta1,
                                                   .beta2 = spec->optim_beta2,
                                                   .eps = spec->optim_eps,
                                                   .weight_decay = decay,
                                                   .correction1 = s->correction1,
                                                   .correction2 = s->correction2,
                                                   .grad_scale = s->clip_factor},
                              r->stream));
        else
            TRY(r->ops->lion(&(struct lion_args){.p = master,
                                                 .g = params_grad(p, i),
                                                 .m = m,
                                                 .w = copy,
                                                 .count = row->count,
                                                 .lr = s->lr,
                                                 .beta1 = spec->optim_beta1,
                                                 .beta2 = spec->optim_beta2,
                                                 .weight_decay = decay,
                                                 .grad_scale = s->clip_factor},
                             r->stream));
    }
    return STATUS_OK;
}
