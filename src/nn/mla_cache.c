#include "dev/dev.h"
#include "nn/mla.h"

static size_t bytes_of(int64_t count, dtype dt)
{
    return (size_t)count * dtype_bytes(dt);
}

void mla_cache_layout(const struct mla *m, struct mla_cache *k, const struct cache_layout *l)
{
    const int64_t width = m->rank + m->rope, heads = l->sequences * m->heads;
    k->rows = tensor_take(l->memory, "latent cache", l->dt, 2, l->sequences * l->capacity, width);
    k->q = tensor_take(l->memory, "absorbed query", l->dt, 2, heads, width);
    k->o = tensor_take(l->memory, "latent output", l->dt, 2, heads, m->rank);
}

/* Forward leaves c_normed, and the rotated rope columns in every head of k: those of the first head are read. */
status mla_cache_fill(const struct mla *m, const struct mla_saved *s, struct mla_cache *k,
                      const struct cache_at *at, const struct exec *r)
{
    const dtype dt = k->rows.dt;
    const struct tensor own = cache_of(k->rows, at->sequences, at->sequence);
    const struct dev_lines latent = {.to = own.data,
                                     .from = s->c_normed.data,
                                     .to_stride = bytes_of(own.shape[1], dt),
                                     .from_stride = bytes_of(m->rank, dt),
                                     .bytes = bytes_of(m->rank, dt),
                                     .count = (size_t)at->rows};
    struct dev_lines tail = latent;
    tail.to = (char *)own.data + bytes_of(m->rank, dt);
    tail.from = (const char *)s->k.data + bytes_of(m->nope, dt);
    tail.from_stride = bytes_of(s->k.shape[1], dt);
    tail.bytes = bytes_of(m->rope, dt);
    TRY(dev_copy_lines(r->stream, &latent));
    return dev_copy_lines(r->stream, &tail);
}

/* Appends the new tokens' rows to the caches, and computes their rotated queries. The rotated tails of the keys go
 * through the memory of k. */
static status new_rows(const struct mla *m, struct mla_saved *s, const struct mla_cache *k,
                       const struct layer_ctx *c, const struct cache_at *at, const struct exec *r)
{
    const struct rope *rope = c->rope;
    const struct mla_view q = mla_queries(m, s), tail = mla_tail(m, s);
    const int64_t width = k->rows.shape[1];
    struct mla_rope_fwd_args rotation = {.q = q.data,
                                         .q_stride = q.stride,
                                         .positions = c->batch->positions,
                                         .cos = rope->tails.cos.data,
                                         .sin = rope->tails.sin.data,
                                         .rows = at->sequences,
                                         .heads = m->heads,
                                         .nope = m->nope,
                                         .half = m->rope / 2,
                                         .pos_count = rope->positions,
                                         .dt = s->in.dt};
    TRY(mla_form_queries(m, s, r));
    TRY(mla_norm_c(m, s, s->c_normed.data, r));
    TRY(r->ops->mla_rope_fwd(&rotation, r->stream));
    rotation.q = NULL;
    rotation.k_rope = tail.data;
    rotation.k_rope_stride = tail.stride;
    rotation.k = s->k.data;
    rotation.heads = 1;
    rotation.nope = 0;
    TRY(r->ops->mla_rope_fwd(&rotation, r->stream));
    const struct kv_cache_append_args put = {
        .part = {{.x = s->c_normed.data,
                  .cache = k->rows.data,
                  .x_stride = m->rank,
                  .stride = width,
                  .width = m->rank},
                 {.x = s->k.data,
                  .cache = (char *)k->rows.data + bytes_of(m->rank, k->rows.dt),
                  .x_stride = m->rope,
                  .stride = width,
                  .width = m->rope}},
        .lengths = at->lengths,
        .batch = at->sequences,
        .capacity = at->capacity,
        .dt = k->rows.dt};
    return r->ops->kv_cache_append(&put, r->stream);
}

/* k->q = [W_k^T q_nope | q_rope] of every head. */
static status absorb(const struct mla *m, const struct mla_saved *s, const struct mla_cache *k,
                     const struct exec *r)
{
    const struct mla_view q = mla_queries(m, s);
    return r->ops->per_head_gemm(&(struct per_head_gemm_args){.a = q.data,
                                                              .w = params_weight(r->params, m->kv.w),
                                                              .c = k->q.data,
                                                              .a_stride = q.stride,
                                                              .a_head = m->nope + m->rope,
                                                              .c_stride = m->heads * k->q.shape[1],
                                                              .c_head = k->q.shape[1],
                                                              .rows = s->in.shape[0],
                                                              .heads = m->heads,
                                                              .n = m->rank,
                                                              .k = m->nope,
                                                              .tail = m->rope,
                                                              .dt = k->q.dt},
                                 r->stream);
}

/* s->o = W_v times attention's weighted sum of latent rows. */
static status release(const struct mla *m, const struct mla_saved *s, const struct mla_cache *k,
                      const struct exec *r)
{
    const char *w = params_weight(r->params, m->kv.w);
    return r->ops->per_head_gemm(
        &(struct per_head_gemm_args){.a = k->o.data,
                                     .w = w + bytes_of(m->heads * m->nope * m->rank, k->o.dt),
                                     .c = s->o.data,
                                     .a_stride = m->heads * m->rank,
                                     .a_head = m->rank,
                                     .c_stride = m->heads * m->value,
                                     .c_head = m->value,
                                     .rows = s->in.shape[0],
                                     .heads = m->heads,
                                     .n = m->value,
                                     .k = m->rank,
                                     .trans = true,
                                     .dt = k->o.dt},
        r->stream);
}

status mla_step(const struct mla *m, struct mla_saved *s, struct mla_cache *k, const struct layer_ctx *c,
                const struct cache_at *at, struct tensor y, struct tensor out, const struct exec *r)
{
    const int64_t width = m->rank + m->rope;
    TRY(linear_fwd(&m->in, &s->in_saved, y, s->in, r));
    TRY(new_rows(m, s, k, c, at, r));
    TRY(absorb(m, s, k, r));
    TRY(r->ops->attn_decode(&(struct attn_decode_args){.q = k->q.data,
                                                       .k_cache = k->rows.data,
                                                       .v_cache = k->rows.data,
                                                       .o = k->o.data,
                                                       .k_stride = width,
                                                       .v_stride = width,
                                                       .lengths = at->lengths,
                                                       .batch = at->sequences,
                                                       .capacity = at->capacity,
                                                       .heads = m->heads,
                                                       .heads_kv = 1,
                                                       .head_dim = width,
                                                       .head_dim_v = m->rank,
                                                       .scale = m->scale,
                                                       .dt = k->q.dt},
                            r->stream));
    TRY(release(m, s, k, r));
    return linear_fwd(&m->out, &s->out_saved, s->o, out, r);
}
