#include "nn/conv_cache.h"
#include "nn/mamba.h"

void mamba_cache_layout(const struct mamba *m, struct mamba_cache *k, const struct cache_layout *l)
{
    k->before = tensor_take(l->memory, "rows before the convolution", l->dt, 2, l->sequences * (m->width - 1),
                            mamba_channels(m));
    k->state =
        tensor_take(l->memory, "mamba2 state", dtype_acc(l->dt), 3, l->sequences * m->heads, m->state, m->d);
}

/* The columns that the convolution reads. */
static const void *conv_in(const struct mamba *m, const struct mamba_saved *s)
{
    return (const char *)s->in.data + (size_t)mamba_conv_at(m) * dtype_bytes(s->in.dt);
}

/* Forward does not keep its last state. It is recomputed from the same inputs, with the same bits. */
status mamba_cache_fill(const struct mamba *m, const struct mamba_saved *s, struct mamba_cache *k,
                        const struct cache_at *at, const struct exec *r)
{
    void *state = cache_of(k->state, at->sequences, at->sequence).data;
    TRY(mamba_core(m, s, at->batch, &(struct mamba_carry){.state_out = state}, r));
    return conv_cache_fill(k->before, conv_in(m, s), m->in.out, at, r);
}

status mamba_step(const struct mamba *m, struct mamba_saved *s, struct mamba_cache *k,
                  const struct layer_ctx *c, const struct cache_at *at, struct tensor y, struct tensor out,
                  const struct exec *r)
{
    const struct mamba_carry carry = {
        .before = k->before.data, .state_in = k->state.data, .state_out = k->state.data};
    TRY(linear_fwd(&m->in, &s->in_saved, y, s->in, r));
    TRY(mamba_core(m, s, c->batch, &carry, r));
    TRY(conv_cache_shift(k->before, conv_in(m, s), m->in.out, at, r));
    return linear_fwd(&m->out, &s->out_saved, s->normed, out, r);
}
