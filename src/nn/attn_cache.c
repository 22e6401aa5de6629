#include "dev/dev.h"
#include "nn/attn.h"

void attn_cache_lay(const struct attn *m, struct attn_cache *k, const struct cache_lay *l)
{
    k->k = tensor_take(l->memory, "key cache", l->dt, 2, l->capacity, m->heads_kv * m->hd);
    k->v = tensor_take(l->memory, "value cache", l->dt, 2, l->capacity, m->heads_kv * m->hd);
}

status attn_cache_fill(const struct attn *m, const struct attn_saved *s, struct attn_cache *k,
                       const struct cache_at *at, const struct exec *r)
{
    struct attn_heads h = attn_heads(m, s);
    const size_t element = dtype_bytes(k->k.dt), width = (size_t)(m->heads_kv * m->hd) * element;
    for (int64_t t = 0; t < at->rows; t++) {
        const size_t to = (size_t)(at->at + t) * width;
        TRY(dev_copy(r->stream, (char *)k->k.data + to,
                     (const char *)h.k + (size_t)(t * h.k_stride) * element, width));
        TRY(dev_copy(r->stream, (char *)k->v.data + to,
                     (const char *)h.v + (size_t)(t * h.v_stride) * element, width));
    }
    return STATUS_OK;
}

status attn_step(const struct attn *m, struct attn_saved *s, struct attn_cache *k, const struct mix *c,
                 const struct cache_at *at, struct tensor y, struct tensor out, const struct exec *r)
{
    TRY(attn_project(m, s, c, y, r));
    TRY(attn_cache_fill(m, s, k, at, r));
    TRY(r->ops->attn_decode(&(struct attn_decode_args){.q = s->rot.data,
                                                       .k_cache = k->k.data,
                                                       .v_cache = k->v.data,
                                                       .o = s->o.data,
                                                       .k_stride = m->heads_kv * m->hd,
                                                       .v_stride = m->heads_kv * m->hd,
                                                       .lengths = at->length,
                                                       .batch = 1,
                                                       .capacity = at->capacity,
                                                       .heads = m->heads,
                                                       .heads_kv = m->heads_kv,
                                                       .hd = m->hd,
                                                       .hd_v = m->hd,
                                                       .window = m->window,
                                                       .scale = m->scale,
                                                       .dt = s->rot.dt},
                            r->stream));
    return attn_output(m, s, (struct sink){.to = out}, r);
}
