#include "parallel/tp_grad.h"
#include "base/scope.h"
#include "dev/dev.h"

/* The elements that this rank all-reduces: the end of the part of the row that it holds. */
static struct param_local_range summed(const struct params *p, int row)
{
    struct param_local_range held = params_local_range(p, row);
    int64_t skip = params_summed(p, row) - held.from;
    if (skip < 0) skip = 0;
    if (skip > held.to - held.from) skip = held.to - held.from;
    held.from += skip;
    held.at += skip;
    return held;
}

void tp_grad_layout(struct tp_grad *s, const struct params *p, const struct mesh *mesh, struct arena *a)
{
    *s = (struct tp_grad){0};
    if (mesh == NULL || mesh->shape.tp == 1) return;
    s->comm = mesh->tp;
    for (int i = 0; i < p->count; i++) {
        const struct param_local_range held = summed(p, i);
        s->count += held.to - held.from;
    }
    s->flat = arena_take(a, (size_t)s->count * sizeof *s->flat, "gradients in parts");
    s->scratch = arena_take(a, comm_all_reduce_scratch(mesh->shape.tp, s->count, DTYPE_F32),
                            "scratch of the TP gradient all-reduce");
}

/* The gradient of this rank's part of a row: where backward wrote it, or, under ZeRO 2 and 3, in the sharded array. */
static float *held_grad(const struct params *p, int row, const struct param_local_range *held)
{
    if (p->zero >= 2) return (float *)p->grad + held->at;
    return (float *)params_grad(p, row) + held->from;
}

enum direction { PACK, UNPACK };
static status move(const struct tp_grad *s, const struct params *p, enum direction direction,
                   struct stream *stream)
{
    float *flat = s->flat;
    for (int i = 0; i < p->count; i++) {
        const struct param_local_range held = summed(p, i);
        const int64_t count = held.to - held.from;
        if (count == 0) continue;
        float *grad = held_grad(p, i, &held);
        TRY(dev_copy(stream, direction == PACK ? flat : grad, direction == PACK ? grad : flat,
                     (size_t)count * sizeof *grad));
        flat += count;
    }
    return STATUS_OK;
}

status tp_grad_all_reduce(const struct tp_grad *s, const struct params *p, struct stream *stream)
{
    if (s->count == 0) return STATUS_OK;
    SCOPE("train.share", -1);
    TRY(move(s, p, PACK, stream));
    TRY(comm_all_reduce(s->comm, "gradients in parts", s->flat, s->count, DTYPE_F32, s->scratch, stream));
    return move(s, p, UNPACK, stream);
}
