#include "dev/dev.h"
#include "nn/conv_cache.h"
#include "nn/engram.h"

void engram_cache_layout(const struct engram *m, struct engram_cache *k, const struct cache_layout *l)
{
    k->tokens =
        tensor_take(l->memory, "last tokens", DTYPE_I32, 2, l->sequences * (m->hash.order - 1), (int64_t)1);
    k->before = tensor_take(l->memory, "rows before the convolution", l->dt, 2,
                            l->sequences * engram_look_back(m), m->d);
}

status engram_cache_fill(const struct engram *m, const struct engram_saved *s, struct engram_cache *k,
                         const struct cache_at *at, const struct exec *r)
{
    static const int32_t none[NGRAM_ORDER_MAX] = {TOKEN_NONE, TOKEN_NONE, TOKEN_NONE, TOKEN_NONE,
                                                  TOKEN_NONE, TOKEN_NONE, TOKEN_NONE, TOKEN_NONE};
    const int64_t count = m->hash.order - 1, blank = at->rows < count ? count - at->rows : 0;
    const struct tensor tokens = cache_of(k->tokens, at->sequences, at->sequence);
    TRY(conv_cache_fill(k->tokens, at->batch->tokens, 1, at, r));
    TRY(dev_upload(r->stream, tokens.data, none, (size_t)blank * sizeof none[0]));
    return conv_cache_fill(k->before, s->x.data, m->d, at, r);
}

status engram_step(const struct engram *m, struct engram_saved *s, struct engram_cache *k,
                   const struct layer_ctx *c, const struct cache_at *at, struct tensor x,
                   struct tensor branch, const struct exec *r)
{
    TRY(norm_fwd(&m->h_norm, &s->h_norm, x, branch, s->h, s->nh, r));
    TRY(engram_core(m, s, c->batch,
                    &(struct engram_carry){.tokens = k->tokens.data, .before = k->before.data},
                    &(struct sp){.tp_size = 1}, r));
    TRY(conv_cache_shift(k->tokens, at->batch->tokens, 1, at, r));
    return conv_cache_shift(k->before, s->x.data, m->d, at, r);
}
