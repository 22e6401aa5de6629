#include "plan/grad_overlay.h"

const char *overlay_apart(const struct model_spec *m, const struct mesh_shape *shape, int64_t micros)
{
    if (micros > 1) return "micro-batches of a step add to them";
    if (shape && shape->pp > 1) return "a pipeline has several micro-batches at once";
    if (shape && shape->zero >= 2) return "ranks keep parts of them";
    if (shape && shape->ep > 1) return "experts that ranks shard have a place of their own";
    if (m->tied_embeddings) return "that of a tied embedding begins with the head";
    if (m->mtp_depth > 0) return "that of the embedding begins with the MTP modules";
    if (m->hrm_cycles > 0) return "blocks are gone through again behind the first backward";
    return NULL;
}

double grad_overlay_block(double from, const struct grad_overlay_block *b, int slices)
{
    from = grad_overlay_from(from, b->end, b->back);
    return grad_overlay_from(from, slices > 1 ? b->end : b->middle, b->front);
}

size_t grad_overlay_bytes(const struct params *p)
{
    return p->overlaid ? (size_t)p->grad_count * dtype_bytes(dtype_acc(p->dt)) : 0;
}

void grad_overlay_layout(struct decoder *d, const struct activations *a, struct arena *act)
{
    struct params *p = &d->params;
    const double element = (double)dtype_bytes(dtype_acc(p->dt));
    const int64_t layers = d->spec.layer_count;
    double from = grad_overlay_from(0, (double)a->act_front, 0);
    for (int64_t i = 0; i < layers; i++) {
        const struct block_saved *s = &a->blocks[i];
        const double front = element * (double)p->units[i + 1].begin,
                     back = element * (double)p->rows[d->blocks[i].norm2.w].offset;
        from = grad_overlay_block(
            from, &(struct grad_overlay_block){(double)s->act_mixer, (double)s->act_end, front, back},
            (int)params_tp_size(p));
    }
    from = grad_overlay_from(from, (double)arena_mark(act), element * (double)p->units[layers + 1].begin);
    params_layout_grad(
        p, arena_overlay(act, (size_t)from, grad_overlay_bytes(p), "gradients where activations were"));
}
