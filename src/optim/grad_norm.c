#include "optim/grad_norm.h"
#include "dev/dev.h"

void grad_norm_layout(struct grad_norm *q, const struct grad_norm_layout *l)
{
    static const struct mesh_shape one = {.pp = 1, .dp = 1, .tp = 1, .chunks = 1, .shard = 1};
    const struct params *p = l->params;
    const struct mesh_shape *s = l->mesh ? &l->mesh->shape : &one;
    struct arena *a = l->arena;
    *q = (struct grad_norm){.mesh = l->mesh, .sparse_grad = l->sparse_grad};
    if (s->tp == 1 && s->pp == 1 && s->zero == 0 && mesh_ep(s) == 1 && !p->sparse) return;
    q->slice = p->chunks_model + l->sparse_grad->chunks_model;
    q->count = s->tp * mesh_ep(s) * q->slice;
    q->own = arena_take(a, (size_t)(p->chunk_count + l->sparse_grad->chunk_count) * sizeof *q->own,
                        "squares of pieces");
    q->all = arena_take(a, (size_t)q->count * sizeof *q->all, "squares of all pieces");
    q->scratch = arena_take(a, comm_all_reduce_scratch(mesh_ranks(s), q->count, DTYPE_F64),
                            "scratch of the gradient norm");
}

status grad_norm_sum(const struct grad_norm *q, const struct params *p, const struct ops *ops, double *sum,
                     dev_stream stream)
{
    const struct mesh *m = q->mesh;
    const struct sparse_grad *t = q->sparse_grad;
    const int64_t ep = m ? mesh_ep(&m->shape) : 1;
    double *all = q->all + (m ? m->tp_rank * ep * q->slice : 0);
    TRY(dev_zero(stream, q->all, (size_t)q->count * sizeof *q->all));
    /* Of ranks with equal sums the first one contributes. Sparse gradients are not sharded by ZeRO: one of all ranks. */
    for (int u = 0; u < p->unit_count; u++) {
        const struct param_unit *unit = &p->units[u];
        if (m && mesh_data_of(m, unit->experts).replica > 0) continue;
        TRY(dev_copy(stream, all + (unit->experts ? m->ep_rank * q->slice : 0) + unit->chunk_place,
                     q->own + unit->chunk_first, (size_t)unit->chunk_count * sizeof *q->all));
    }
    for (int i = 0; i < t->count && (m == NULL || m->dp_cp_rank == 0); i++)
        TRY(dev_copy(stream, all + p->chunks_model + t->list[i].chunk_place,
                     q->own + p->chunk_count + t->list[i].chunk_first,
                     (size_t)t->list[i].chunk_count * sizeof *q->all));
    if (m) TRY(comm_all_reduce(m->world, "squares", q->all, q->count, DTYPE_F64, q->scratch, stream));
    TRY(dev_zero(stream, sum, sizeof *sum));
    if (stream)
        return ops->sum(&(struct sum_args){.x = q->all, .out = sum, .count = q->count, .dt = DTYPE_F64},
                        stream);
    for (int64_t c = 0; c < q->count; c++) *sum += q->all[c]; /* the order of UPDATE_FUSED */
    return STATUS_OK;
}
