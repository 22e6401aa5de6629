#include "nn/conv_cache.h"
#include "nn/gdn.h"

void gdn_cache_layout(const struct gdn *m, struct gdn_cache *k, const struct cache_layout *l)
{
    const int64_t channels = 2 * m->heads_k * m->dk + m->heads * m->dv;
    k->before = tensor_take(l->memory, "rows before the convolution", l->dt, 2, l->sequences * (m->width - 1),
                            channels);
    k->state =
        tensor_take(l->memory, "delta state", dtype_acc(l->dt), 3, l->sequences * m->heads, m->dk, m->dv);
}

/* Forward does not keep its last state. It is recomputed from the same inputs, with the same bits. */
status gdn_cache_fill(const struct gdn *m, const struct gdn_saved *s, struct gdn_cache *k,
                      const struct cache_at *at, const struct exec *r)
{
    void *state = cache_of(k->state, at->sequences, at->sequence).data;
    TRY(gdn_core(m, s, at->batch, &(struct gdn_carry){.state_out = state}, r));
    return conv_cache_fill(k->before, s->in.data, m->in.out, at, r);
}

status gdn_step(const struct gdn *m, struct gdn_saved *s, struct gdn_cache *k, const struct layer_ctx *c,
                const struct cache_at *at, struct tensor y, struct tensor out, const struct exec *r)
{
    TRY(linear_fwd(&m->in, &s->in_saved, y, s->in, r));
    const struct gdn_carry carry = {
        .before = k->before.data, .state_in = k->state.data, .state_out = k->state.data};
    TRY(gdn_core(m, s, c->batch, &carry, r));
    TRY(conv_cache_shift(k->before, s->in.data, m->in.out, at, r));
    return linear_fwd(&m->out, &s->out_saved, s->gated, out, r);
}
