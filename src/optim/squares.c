#include "optim/squares.h"
#include "dev/dev.h"

void squares_lay(struct squares *q, const struct params *p, const struct mesh *mesh, struct arena *a)
{
    *q = (struct squares){.mesh = mesh};
    if (mesh == NULL) return;
    const struct mesh_shape *s = &mesh->shape;
    if (s->tp == 1 && s->pp == 1 && s->zero == 0) return;
    q->count = s->tp * p->chunks_model;
    q->own = arena_take(a, (size_t)p->chunk_count * sizeof *q->own, "squares of pieces");
    q->all = arena_take(a, (size_t)q->count * sizeof *q->all, "squares of all pieces");
    q->scratch =
        arena_take(a, comm_sum_scratch(s->tp * s->dp * s->pp, q->count, DTYPE_F64), "squares on their way");
}

status squares_sum(const struct squares *q, const struct params *p, const struct ops *ops, double *sum,
                   dev_stream stream)
{
    const struct mesh *m = q->mesh;
    TRY(dev_zero(stream, q->all, (size_t)q->count * sizeof *q->all));
    /* Of ranks that have the same sums the first one answers. */
    for (int u = 0; u < p->unit_count && mesh_replica(m) == 0; u++) {
        const struct param_unit *unit = &p->units[u];
        TRY(dev_copy(stream, q->all + m->tp_rank * p->chunks_model + unit->chunk_place,
                     q->own + unit->chunk_first, (size_t)unit->chunk_count * sizeof *q->all));
    }
    TRY(comm_sum(m->world, "squares", q->all, q->count, DTYPE_F64, q->scratch, stream));
    TRY(dev_zero(stream, sum, sizeof *sum));
    if (stream)
        return ops->sum(&(struct sum_args){.x = q->all, .out = sum, .count = q->count, .dt = DTYPE_F64},
                        stream);
    for (int64_t c = 0; c < q->count; c++) *sum += q->all[c]; /* the order of UPDATE_WHOLE */
    return STATUS_OK;
}
