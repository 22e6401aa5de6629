#include "dev/dev.h"
#include "nn/engram.h"

void engram_cache_lay(const struct engram *m, struct engram_cache *k, const struct cache_lay *l)
{
    k->tokens = tensor_take(l->memory, "last tokens", DTYPE_I32, 1, m->hash.order - 1);
    k->before = tensor_take(l->memory, "rows before the convolution", l->dt, 2, engram_look_back(m), m->d);
}

/* The last cached rows followed by `rows` new ones; a row has `bytes` bytes. Rows before the sequence start
 * are `blank` (NULL: zeros). */
static status keep_last(struct tensor kept, const void *rows, size_t bytes, const void *blank,
                        const struct cache_at *at, const struct exec *r)
{
    const int64_t count = kept.shape[0];
    for (int64_t i = 0; i < count; i++) {
        const int64_t from = at->rows - count + i; /* a row of this batch, or one from the cache */
        char *to = (char *)kept.data + (size_t)i * bytes;
        if (from >= 0)
            TRY(dev_copy(r->stream, to, (const char *)rows + (size_t)from * bytes, bytes));
        else if (at->at > 0)
            TRY(dev_copy(r->stream, to, (const char *)kept.data + (size_t)(i + at->rows) * bytes, bytes));
        else if (blank)
            TRY(dev_upload(r->stream, to, blank, bytes));
        else
            TRY(dev_zero(r->stream, to, bytes));
    }
    return STATUS_OK;
}

status engram_cache_fill(const struct engram *m, const struct engram_saved *s, struct engram_cache *k,
                         const struct cache_at *at, const struct exec *r)
{
    static const int32_t none = TOKEN_NONE;
    TRY(keep_last(k->tokens, at->batch->tokens, sizeof none, &none, at, r));
    return keep_last(k->before, s->x.data, (size_t)m->d * dtype_bytes(s->x.dt), NULL, at, r);
}

status engram_step(const struct engram *m, struct engram_saved *s, struct engram_cache *k,
                   const struct mix *c, const struct cache_at *at, struct tensor x, struct tensor branch,
                   const struct exec *r)
{
    TRY(norm_fwd(&m->h_norm, &s->h_norm, x, branch, s->h, s->nh, r));
    TRY(engram_core(m, s, c->batch,
                    &(struct engram_carry){.tokens = k->tokens.data, .before = k->before.data},
                    &(struct sp){.shares = 1}, r));
    return engram_cache_fill(m, s, k, at, r);
}
