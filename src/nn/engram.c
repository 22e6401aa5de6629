#include "nn/engram.h"
#include "base/rng.h"

#include <assert.h>
#include <stdio.h>

/* Odd numbers whose products with any id stay below 2^63. */
static void draw_multipliers(struct ngram_hash *h, const struct model_spec *spec, int64_t layer)
{
    const uint64_t half = (uint64_t)INT64_MAX / (uint64_t)spec->vocab_size / 2;
    for (int64_t k = 0; k < h->order; k++) {
        const struct rng_block r =
            rng_at((uint64_t)spec->engram_seed, RNG_HASH, (uint64_t)layer, (uint64_t)k);
        const uint64_t word = (uint64_t)r.u[0] << 32 | r.u[1];
        h->multipliers[k] = (int64_t)(word % (half ? half : 1) * 2 + 1);
    }
}

void engram_init(struct engram *m, struct params *p, const char *name, const struct model_spec *spec,
                 int64_t layer)
{
    static_assert((int)MODEL_ENGRAM_ROWS == (int)NGRAM_ROWS_MAX, "rows of a token");
    char full[96];
    const int64_t d = spec->hidden_size, per_token = model_engram_rows(spec);
    *m = (struct engram){.d = d, .width = spec->engram_dim};
    m->hash = (struct ngram_hash){
        .order = spec->engram_ngram, .heads = spec->engram_heads, .pad = (int32_t)spec->engram_pad};
    m->rows = model_engram_primes(spec, layer, m->hash.primes);
    for (int64_t i = 1; i < per_token; i++)
        m->hash.offsets[i] = m->hash.offsets[i - 1] + m->hash.primes[i - 1];
    draw_multipliers(&m->hash, spec, layer);
    m->table = params_add(p, ROLE_TABLE, 0, m->rows, m->width, "%s.table.weight", name);
    snprintf(full, sizeof full, "%s.k", name);
    linear_init(&m->k, p, full, ROLE_MATRIX, d, per_token * m->width, BIAS_NONE);
    snprintf(full, sizeof full, "%s.v", name);
    linear_init(&m->v, p, full, ROLE_RESIDUAL, d, per_token * m->width, BIAS_NONE);
    snprintf(full, sizeof full, "%s.k_norm", name);
    norm_init(&m->k_norm, p, full, NORM_RMSNORM, d, spec->norm_eps);
    snprintf(full, sizeof full, "%s.h_norm", name);
    norm_init(&m->h_norm, p, full, NORM_RMSNORM, d, spec->norm_eps);
    snprintf(full, sizeof full, "%s.u_norm", name);
    norm_init(&m->u_norm, p, full, NORM_RMSNORM, d, spec->norm_eps);
    m->conv = params_add(p, ROLE_CONV, 0, d, ENGRAM_CONV, "%s.conv.weight", name);
    p->rows[m->conv].zero = true;
}

void engram_lay(const struct engram *m, struct engram_saved *s, const struct lay *l)
{
    *s = (struct engram_saved){0};
    struct arena *kept = lay_place(l, RECOMPUTE_FULL), *cheap = lay_place(l, RECOMPUTE_SELECTIVE);
    const int64_t per_token = (m->hash.order - 1) * m->hash.heads, n = l->n, d = m->d;
    const dtype acc = dtype_acc(l->dt);
    /* The stream may lie in the scratch that all layers share, behind two rows' width (s2 of block_lay), while h and nh are formed of
     * it: they come first. */
    s->h = tensor_take(l->mode == LAY_TRAIN ? l->act : l->scratch, "stream before engram", l->dt, 2, n, d);
    s->nh = tensor_take(cheap, "norm of the stream", l->dt, 2, n, d);
    norm_lay(&m->h_norm, &s->h_norm, l);
    s->ids = tensor_take(cheap, "n-gram rows", DTYPE_I32, 2, n, per_token);
    s->e = tensor_take(cheap, "n-gram embeddings", l->dt, 2, n, per_token * m->width);
    s->k = tensor_take(kept, "engram keys", l->dt, 2, n, d);
    s->v = tensor_take(kept, "engram values", l->dt, 2, n, d);
    s->u = tensor_take(kept, "gated values", l->dt, 2, n, d);
    s->nk = tensor_take(cheap, "norm of keys", l->dt, 2, n, d);
    s->x = tensor_take(cheap, "norm of gated values", l->dt, 2, n, d);
    s->delta = tensor_take(kept, "engram scores", acc, 1, n);
    s->sum = tensor_take(l->scratch, "stream and gated values", l->dt, 2, n, d);
    s->out = tensor_take(l->scratch, "engram convolution", l->dt, 2, n, d);
    norm_lay(&m->k_norm, &s->k_norm, l);
    norm_lay(&m->u_norm, &s->u_norm, l);
    if (l->mode != LAY_TRAIN) return;
    s->dx = tensor_take(l->scratch, "engram gradient", l->dt, 2, n, d);
    s->dk = tensor_take(l->scratch, "key gradient", l->dt, 2, n, d);
    s->dh = tensor_take(l->scratch, "stream norm gradient", l->dt, 2, n, d);
    s->dv = tensor_take(l->scratch, "value gradient", l->dt, 2, n, d);
    s->de = tensor_take(l->scratch, "n-gram embedding gradient", acc, 2, n, per_token * m->width);
}

void engram_rows(struct engram_saved *s, int64_t rows)
{
    struct tensor *all[] = {&s->ids, &s->h,   &s->e,           &s->k,           &s->v,
                            &s->u,   &s->nk,  &s->nh,          &s->x,           &s->delta,
                            &s->sum, &s->out, &s->k_norm.rstd, &s->h_norm.rstd, &s->u_norm.rstd,
                            &s->dx,  &s->dk,  &s->dh,          &s->dv,          &s->de};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) tensor_rows(all[i], rows);
}

/* The rows of the tables that the tokens read, side by side. */
static status look_up(const struct engram *m, struct engram_saved *s, const struct batch *b,
                      const int32_t *before, const struct run *r)
{
    TRY(r->ops->ngram(&(struct ngram_args){.tokens = b->tokens,
                                           .before = before,
                                           .map = m->map,
                                           .out = s->ids.data,
                                           .cu_seqlens = b->cu_seqlens,
                                           .docs = b->docs,
                                           .rows = b->rows,
                                           .hash = &m->hash},
                      r->stream));
    return r->ops->embed_fwd(&(struct embed_fwd_args){.tokens = s->ids.data,
                                                      .table = params_weight(r->params, m->table),
                                                      .x = s->e.data,
                                                      .rows = tensor_count(s->ids),
                                                      .d = m->width,
                                                      .vocab = m->rows,
                                                      .dt = s->e.dt},
                             r->stream);
}

static status gate(const struct engram *m, struct engram_saved *s, const struct run *r)
{
    return r->ops->ngram_gate_fwd(&(struct ngram_gate_fwd_args){.a = s->nk.data,
                                                                .b = s->nh.data,
                                                                .v = s->v.data,
                                                                .h = s->h.data,
                                                                .u = s->u.data,
                                                                .sum = s->sum.data,
                                                                .delta = s->delta.data,
                                                                .rows = s->v.shape[0],
                                                                .d = m->d,
                                                                .dt = s->v.dt},
                                  r->stream);
}

/* From the stream in s->h, with its norm, to s->sum and s->out. */
status engram_core(const struct engram *m, struct engram_saved *s, const struct batch *b,
                   const struct engram_carry *carry, const struct run *r)
{
    const struct tensor none = {0};
    TRY(look_up(m, s, b, carry->tokens, r));
    TRY(linear_fwd(&m->k, s->e, s->k, r));
    TRY(linear_fwd(&m->v, s->e, s->v, r));
    TRY(norm_fwd(&m->k_norm, &s->k_norm, s->k, none, none, s->nk, r));
    TRY(gate(m, s, r));
    TRY(norm_fwd(&m->u_norm, &s->u_norm, s->u, none, none, s->x, r));
    return r->ops->conv_fwd(&(struct conv_fwd_args){.x = s->x.data,
                                                    .w = params_weight(r->params, m->conv),
                                                    .before = carry->before,
                                                    .y = s->out.data,
                                                    .x_stride = m->d,
                                                    .y_stride = m->d,
                                                    .cu_seqlens = b->cu_seqlens,
                                                    .docs = b->docs,
                                                    .rows = b->rows,
                                                    .channels = m->d,
                                                    .width = ENGRAM_CONV,
                                                    .dilation = m->hash.order,
                                                    .dt = s->x.dt},
                            r->stream);
}

status engram_fwd(const struct engram *m, struct engram_saved *s, const struct mix *c, struct tensor x,
                  struct tensor branch, const struct run *r)
{
    TRY(norm_fwd(&m->h_norm, &s->h_norm, x, branch, s->h, s->nh, r));
    return engram_core(m, s, c->batch, &(struct engram_carry){0}, r);
}

status engram_again(const struct engram *m, struct engram_saved *s, enum recompute policy,
                    const struct mix *c, const struct run *r)
{
    const struct tensor none = {0};
    if (policy == RECOMPUTE_NONE) return STATUS_OK;
    TRY(norm_fwd(&m->h_norm, &s->h_norm, s->h, none, none, s->nh, r));
    TRY(look_up(m, s, c->batch, NULL, r));
    if (policy == RECOMPUTE_FULL) {
        TRY(linear_fwd(&m->k, s->e, s->k, r));
        TRY(linear_fwd(&m->v, s->e, s->v, r));
    }
    TRY(norm_fwd(&m->k_norm, &s->k_norm, s->k, none, none, s->nk, r));
    if (policy == RECOMPUTE_FULL) TRY(gate(m, s, r));
    return norm_fwd(&m->u_norm, &s->u_norm, s->u, none, none, s->x, r);
}

/* From dk and dv to the projections' and the tables' gradients. */
static status tables_bwd(const struct engram *m, struct engram_saved *s, const struct run *r)
{
    TRY(linear_wgrad(&m->k, s->e, s->dk, r));
    TRY(linear_wgrad(&m->v, s->e, s->dv, r));
    TRY(linear_dgrad(&m->k, s->dk, s->de, r));
    TRY(r->ops->gemm(&(struct gemm_args){.a = s->dv.data,
                                         .b = params_weight(r->params, m->v.w),
                                         .c = s->de.data,
                                         .m = s->dv.shape[0],
                                         .n = m->v.in,
                                         .k = m->v.out,
                                         .accum = ACCUM_ADD,
                                         .dt = s->dv.dt,
                                         .cdt = s->de.dt},
                     r->stream));
    return r->ops->embed_bwd(&(struct embed_bwd_args){.tokens = s->ids.data,
                                                      .dx = s->de.data,
                                                      .dtable = params_grad(r->params, m->table),
                                                      .rows = tensor_count(s->ids),
                                                      .d = m->width,
                                                      .vocab = m->rows,
                                                      .dt = s->de.dt},
                             r->stream);
}

status engram_bwd(const struct engram *m, struct engram_saved *s, const struct mix *c, struct tensor g,
                  const struct run *r)
{
    const struct batch *b = c->batch;
    const struct tensor none = {0};
    TRY(r->ops->conv_bwd(&(struct conv_bwd_args){.dy = g.data,
                                                 .x = s->x.data,
                                                 .w = params_weight(r->params, m->conv),
                                                 .dx = s->dx.data,
                                                 .dw = params_grad(r->params, m->conv),
                                                 .dy_stride = m->d,
                                                 .x_stride = m->d,
                                                 .dx_stride = m->d,
                                                 .cu_seqlens = b->cu_seqlens,
                                                 .docs = b->docs,
                                                 .rows = b->rows,
                                                 .channels = m->d,
                                                 .width = ENGRAM_CONV,
                                                 .dilation = m->hash.order,
                                                 .dt = g.dt},
                         r->stream));
    TRY(norm_bwd(&m->u_norm, &s->u_norm, s->u, s->dx, g, s->dx, r));
    TRY(r->ops->ngram_gate_bwd(&(struct ngram_gate_bwd_args){.du = s->dx.data,
                                                             .a = s->nk.data,
                                                             .b = s->nh.data,
                                                             .v = s->v.data,
                                                             .delta = s->delta.data,
                                                             .da = s->dk.data,
                                                             .db = s->dh.data,
                                                             .dv = s->dv.data,
                                                             .rows = b->rows,
                                                             .d = m->d,
                                                             .dt = g.dt},
                               r->stream));
    TRY(norm_bwd(&m->k_norm, &s->k_norm, s->k, s->dk, none, s->dk, r));
    TRY(tables_bwd(m, s, r));
    return norm_bwd(&m->h_norm, &s->h_norm, s->h, s->dh, g, g, r);
}
