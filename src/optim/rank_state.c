#include "optim/rank_state.h"
#include "optim/muon.h"
#include "optim/optim.h"

static void layout_zero(struct zero *z, struct params *p, const struct rank_state_layout *l)
{
    zero_layout(z, p,
                &(struct zero_layout){.mesh = l->mesh,
                                      .param = l->param,
                                      .grad = l->grad,
                                      .train = l->train,
                                      .end = l->end,
                                      .stores = l->stores,
                                      .embedding_resident = l->embedding_resident});
}

static void layout_sparse_grad(struct sparse_grad *t, struct params *p, const struct rank_state_layout *l)
{
    sparse_grad_layout(t, &(struct sparse_grad_layout){.mesh = l->mesh,
                                                       .params = p,
                                                       .reads = l->table_reads,
                                                       .micros = l->step_micros,
                                                       .grad = l->grad,
                                                       .optim = l->optim});
}

void rank_state_layout(struct rank_state *s, struct params *p, const struct rank_state_layout *l)
{
    *s = (struct rank_state){0};
    layout_zero(&s->zero, p, l);
    if (!l->train) return;
    optim_layout(p, l->optim);
    offload_layout(&s->offload, p, l->optim);
    layout_sparse_grad(&s->sparse_grad, p, l);
    grad_norm_layout(&s->grad_norm, &(struct grad_norm_layout){p, &s->sparse_grad, l->mesh, l->optim});
    tp_grad_layout(&s->tp_grad, p, l->mesh, l->grad);
    grad_reduce_layout(&s->grad_reduce, l->mesh, l->gradient_groups, p, l->grad);
    if (l->verify)
        s->kept =
            arena_take(l->grad, (size_t)params_grads(p) * sizeof *s->kept, "gradient kept by train.verify");
    if (!l->muon) return;
    const size_t mark = arena_mark(l->scratch);
    muon_layout(p, l->mesh, l->scratch);
    arena_release(l->scratch, mark);
}
