#include "dev/dev.h"
#include "nn/mla.h"

static size_t bytes_of(int64_t count, dtype dt)
{
    return (size_t)count * dtype_bytes(dt);
}

void mla_cache_lay(const struct mla *m, struct mla_cache *k, const struct cache_lay *l)
{
    const int64_t width = m->rank + m->rope;
    k->rows = tensor_take(l->memory, "latent cache", l->dt, 2, l->capacity, width);
    k->q = tensor_take(l->memory, "absorbed query", l->dt, 2, m->heads, width);
    k->o = tensor_take(l->memory, "latent output", l->dt, 2, m->heads, m->rank);
}

/* Forward leaves c_normed, and the rotated rope columns in every head of k: those of the first head are read. */
status mla_cache_fill(const struct mla *m, const struct mla_saved *s, struct mla_cache *k,
                      const struct cache_at *at, const struct exec *r)
{
    const dtype dt = k->rows.dt;
    const size_t c = bytes_of(m->rank, dt), tail = bytes_of(m->rope, dt), key = bytes_of(s->k.shape[1], dt);
    for (int64_t t = 0; t < at->rows; t++) {
        char *row = (char *)k->rows.data + (size_t)(at->at + t) * (c + tail);
        TRY(dev_copy(r->stream, row, (const char *)s->c_normed.data + (size_t)t * c, c));
        TRY(dev_copy(r->stream, row + c, (const char *)s->k.data + (size_t)t * key + bytes_of(m->nope, dt),
                     tail));
    }
    return STATUS_OK;
}

/* Appends the new token's row to the cache, and computes its rotated queries. */
static status new_row(const struct mla *m, struct mla_saved *s, const struct mla_cache *k,
                      const struct mix *c, const struct cache_at *at, const struct exec *r)
{
    const struct rope *rope = c->rope;
    const struct mla_view q = mla_queries(m, s), tail = mla_tail(m, s);
    char *row = (char *)k->rows.data + bytes_of(at->at * k->rows.shape[1], k->rows.dt);
    struct latent_fwd_args rotation = {.q = q.data,
                                       .q_stride = q.stride,
                                       .positions = c->batch->positions,
                                       .cos = rope->tails.cos.data,
                                       .sin = rope->tails.sin.data,
                                       .rows = 1,
                                       .heads = m->heads,
                                       .nope = m->nope,
                                       .half = m->rope / 2,
                                       .pos_count = rope->positions,
                                       .dt = s->in.dt};
    TRY(mla_form_queries(m, s, r));
    TRY(mla_norm_c(m, s, row, r));
    TRY(r->ops->latent_fwd(&rotation, r->stream));
    rotation.q = NULL;
    rotation.k_rope = tail.data;
    rotation.k_rope_stride = tail.stride;
    rotation.k = row + bytes_of(m->rank, k->rows.dt);
    rotation.heads = 1;
    rotation.nope = 0;
    return r->ops->latent_fwd(&rotation, r->stream);
}

/* k->q = [W_k^T q_nope | q_rope] of every head. */
static status absorb(const struct mla *m, const struct mla_saved *s, const struct mla_cache *k,
                     const struct exec *r)
{
    const dtype dt = k->q.dt;
    const char *q = mla_queries(m, s).data;
    const struct operand w = params_operand(r->params, m->kv.w, GEMM_DGRAD);
    for (int64_t h = 0; h < m->heads; h++) {
        const char *head = q + bytes_of(h * (m->nope + m->rope), dt);
        char *to = (char *)k->q.data + bytes_of(h * (m->rank + m->rope), dt);
        TRY(r->ops->gemm(&(struct gemm_args){.a = operand_at(head, dt, false),
                                             .b = operand_from(w, h * m->nope * m->rank),
                                             .c = to,
                                             .m = 1,
                                             .n = m->rank,
                                             .k = m->nope,
                                             .accum = ACCUM_STORE,
                                             .cdt = dt},
                         r->stream));
        TRY(dev_copy(r->stream, to + bytes_of(m->rank, dt), head + bytes_of(m->nope, dt),
                     bytes_of(m->rope, dt)));
    }
    return STATUS_OK;
}

/* s->o = W_v times attention's weighted sum of latent rows. */
static status release(const struct mla *m, const struct mla_saved *s, const struct mla_cache *k,
                      const struct exec *r)
{
    const dtype dt = k->o.dt;
    const struct operand values =
        operand_from(params_operand(r->params, m->kv.w, GEMM_FWD), m->heads * m->nope * m->rank);
    for (int64_t h = 0; h < m->heads; h++)
        TRY(r->ops->gemm(
            &(struct gemm_args){.a = operand_at((char *)k->o.data + bytes_of(h * m->rank, dt), dt, false),
                                .b = operand_from(values, h * m->value * m->rank),
                                .c = (char *)s->o.data + bytes_of(h * m->value, dt),
                                .m = 1,
                                .n = m->value,
                                .k = m->rank,
                                .accum = ACCUM_STORE,
                                .cdt = dt},
            r->stream));
    return STATUS_OK;
}

status mla_step(const struct mla *m, struct mla_saved *s, struct mla_cache *k, const struct mix *c,
                const struct cache_at *at, struct tensor y, struct tensor out, const struct exec *r)
{
    const int64_t width = m->rank + m->rope;
    TRY(linear_fwd(&m->in, &s->in_saved, y, s->in, r));
    TRY(new_row(m, s, k, c, at, r));
    TRY(absorb(m, s, k, r));
    TRY(r->ops->attn_decode(&(struct attn_decode_args){.q = k->q.data,
                                                       .k_cache = k->rows.data,
                                                       .v_cache = k->rows.data,
                                                       .o = k->o.data,
                                                       .k_stride = width,
                                                       .v_stride = width,
                                                       .lengths = at->length,
                                                       .batch = 1,
                                                       .capacity = at->capacity,
                                                       .heads = m->heads,
                                                       .heads_kv = 1,
                                                       .hd = width,
                                                       .hd_v = m->rank,
                                                       .scale = m->scale,
                                                       .dt = k->q.dt},
                            r->stream));
    TRY(release(m, s, k, r));
    return linear_fwd(&m->out, &s->out_saved, s->o, out, r);
}
