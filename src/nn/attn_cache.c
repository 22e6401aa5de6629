#include "dev/dev.h"
#include "nn/attn.h"

void attn_cache_layout(const struct attn *m, struct attn_cache *k, const struct cache_layout *l)
{
    const int64_t rows = l->sequences * l->capacity, width = m->heads_kv * m->head_dim;
    k->k = tensor_take(l->memory, "key cache", l->dt, 2, rows, width);
    k->v = tensor_take(l->memory, "value cache", l->dt, 2, rows, width);
}

status attn_cache_fill(const struct attn *m, const struct attn_saved *s, struct attn_cache *k,
                       const struct cache_at *at, const struct exec *r)
{
    const struct attn_heads h = attn_heads(m, s);
    const size_t element = dtype_bytes(k->k.dt), width = (size_t)(m->heads_kv * m->head_dim) * element;
    const struct dev_lines keys = {.to = cache_of(k->k, at->sequences, at->sequence).data,
                                   .from = h.k,
                                   .to_stride = width,
                                   .from_stride = (size_t)h.k_stride * element,
                                   .bytes = width,
                                   .count = (size_t)at->rows};
    struct dev_lines values = keys;
    values.to = cache_of(k->v, at->sequences, at->sequence).data;
    values.from = h.v;
    values.from_stride = (size_t)h.v_stride * element;
    TRY(dev_copy_lines(r->stream, &keys));
    return dev_copy_lines(r->stream, &values);
}

/* The new rows' keys and values, into the caches. */
static status extend(const struct attn *m, const struct attn_saved *s, const struct attn_cache *k,
                     const struct cache_at *at, const struct exec *r)
{
    const struct attn_heads h = attn_heads(m, s);
    const int64_t width = m->heads_kv * m->head_dim;
    const struct kv_cache_append_args put = {
        .part = {{.x = h.k, .cache = k->k.data, .x_stride = h.k_stride, .stride = width, .width = width},
                 {.x = h.v, .cache = k->v.data, .x_stride = h.v_stride, .stride = width, .width = width}},
        .lengths = at->lengths,
        .batch = at->sequences,
        .capacity = at->capacity,
        .dt = k->k.dt};
    return r->ops->kv_cache_append(&put, r->stream);
}

status attn_step(const struct attn *m, struct attn_saved *s, struct attn_cache *k, const struct layer_ctx *c,
                 const struct cache_at *at, struct tensor y, struct tensor out, const struct exec *r)
{
    TRY(attn_project(m, s, c, y, r));
    TRY(extend(m, s, k, at, r));
    TRY(r->ops->attn_decode(&(struct attn_decode_args){.q = s->rot.data,
                                                       .k_cache = k->k.data,
                                                       .v_cache = k->v.data,
                                                       .o = s->o.data,
                                                       .q_stride = s->rot.shape[1],
                                                       .k_stride = m->heads_kv * m->head_dim,
                                                       .v_stride = m->heads_kv * m->head_dim,
                                                       .lengths = at->lengths,
                                                       .batch = at->sequences,
                                                       .capacity = at->capacity,
                                                       .heads = m->heads,
                                                       .heads_kv = m->heads_kv,
                                                       .head_dim = m->head_dim,
                                                       .head_dim_v = m->head_dim,
                                                       .window = m->window,
                                                       .scale = m->scale,
                                                       .dt = s->rot.dt},
                            r->stream));
    return attn_output(m, s, (struct branch_dst){.dst = out}, r);
}
