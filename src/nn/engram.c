#include "nn/engram.h"
#include "base/rng.h"
#include "dev/dev.h"
#include "nn/context_rows.h"
#include "parallel/sparse_grad.h"
#include "parallel/unit_grad.h"

#include <assert.h>
#include <stdio.h>

/* Odd multipliers, small enough that multiplier * id stays below 2^63. */
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
    struct {
        struct linear *linear;
        enum role role;
        const char *name;
    } const projections[] = {{&m->k, ROLE_MATRIX, "k"}, {&m->v, ROLE_RESIDUAL, "v"}};
    for (int i = 0; i < 2; i++) {
        struct linear *linear = projections[i].linear;
        snprintf(full, sizeof full, "%s.%s", name, projections[i].name);
        linear_init(linear, p, full, projections[i].role, d, per_token * m->width, BIAS_NONE);
        p->rows[linear->w].columns = m->width;
        linear_split(linear, p, SPLIT_ROW_PARALLEL, NULL, 0);
    }
    struct {
        struct norm_block *norm;
        const char *name;
    } const norms[] = {{&m->k_norm, "k_norm"}, {&m->h_norm, "h_norm"}, {&m->u_norm, "u_norm"}};
    for (int i = 0; i < 3; i++) {
        snprintf(full, sizeof full, "%s.%s", name, norms[i].name);
        norm_init(norms[i].norm, p, full, NORM_RMSNORM, d, spec->norm_eps);
        params_split(p, norms[i].norm->w, SPLIT_PARTIAL_GRAD, NULL, 0);
    }
    m->width /= params_tp_size(p); /* from here on: columns of this rank */
    m->conv = params_add(p, ROLE_CONV, 0, d, ENGRAM_CONV, "%s.conv.weight", name);
    p->rows[m->conv].zero = true;
}

void engram_table_init(struct engram *m, struct params *p, const char *name, const struct model_spec *spec,
                       int block)
{
    params_table(p, block);
    m->table = params_add(p, ROLE_TABLE, 0, m->rows, spec->engram_dim, "%s.table.weight", name);
    params_split(p, m->table, SPLIT_ROW_PARALLEL, NULL, 0);
}

/* What context parallelism needs. */
static void context_layout(const struct engram *m, struct engram_saved *s, const struct layout *l)
{
    if (l->cp_size <= 1) return;
    const int64_t per_token = (m->hash.order - 1) * m->hash.heads, rows = l->n * l->cp_size,
                  own = m->d / l->cp_size;
    const bool train = l->mode == LAYOUT_TRAIN;
    s->all_ids = tensor_take(l->scratch, "n-gram rows of all ranks", DTYPE_I32, 2, rows, per_token);
    s->all_x = tensor_take(l->scratch, "channels of all rows", l->dt, 2, rows, own);
    s->all_y = tensor_take(l->scratch, "convolution of all rows", l->dt, 2, rows, own);
    if (train) s->all_dx = tensor_take(l->scratch, "channels' gradient", l->dt, 2, rows, own);
    context_heads_layout(&s->exchange, train ? 2 * m->d : m->d, l);
}

void engram_layout(const struct engram *m, struct engram_saved *s, const struct layout *l)
{
    *s = (struct engram_saved){0};
    linear_layout(&m->k, &s->k_saved, LINEAR_NONE, l);
    linear_layout(&m->v, &s->v_saved, LINEAR_NONE, l);
    struct arena *kept = layout_arena(l, RECOMPUTE_FULL), *cheap = layout_arena(l, RECOMPUTE_SELECTIVE);
    const struct layout part = sp_local_layout(l);
    const int64_t per_token = (m->hash.order - 1) * m->hash.heads, n = part.n, d = m->d;
    const dtype acc = dtype_acc(l->dt);
    /* The residual stream may be in scratch that all layers share (s2 of block_layout, two rows' width further
     * on) while h and nh are computed from it. So h and nh are laid out first. */
    s->h = tensor_take(l->mode == LAYOUT_TRAIN ? l->act : l->scratch, "stream before engram", l->dt, 2, n, d);
    s->nh = tensor_take(cheap, "norm of the stream", l->dt, 2, n, d);
    norm_layout(&m->h_norm, &s->h_norm, &part);
    s->ids = tensor_take(cheap, "n-gram rows", DTYPE_I32, 2, l->n, per_token);
    s->e = tensor_take(cheap, "n-gram embeddings", l->dt, 2, l->n, per_token * m->width);
    s->k = tensor_take(kept, "engram keys", l->dt, 2, n, d);
    s->v = tensor_take(kept, "engram values", l->dt, 2, n, d);
    s->u = tensor_take(kept, "gated values", l->dt, 2, n, d);
    s->nk = tensor_take(cheap, "norm of keys", l->dt, 2, n, d);
    s->x = tensor_take(cheap, "norm of gated values", l->dt, 2, n, d);
    s->delta = tensor_take(kept, "engram scores", acc, 1, n);
    s->sum = tensor_take(l->scratch, "stream and gated values", l->dt, 2, n, d);
    s->out = tensor_take(l->scratch, "engram convolution", l->dt, 2, n, d);
    norm_layout(&m->k_norm, &s->k_norm, &part);
    norm_layout(&m->u_norm, &s->u_norm, &part);
    context_layout(m, s, l);
    if (l->mode != LAYOUT_TRAIN) return;
    s->dx = tensor_take(l->scratch, "engram gradient", l->dt, 2, l->n, d);
    s->dk = tensor_take(l->scratch, "key gradient", l->dt, 2, n, d);
    s->dh = tensor_take(l->scratch, "stream norm gradient", l->dt, 2, n, d);
    s->dv = tensor_take(l->scratch, "value gradient", l->dt, 2, n, d);
    if (!l->sparse)
        s->de = tensor_take(l->scratch, "n-gram embedding gradient", acc, 2, l->n, per_token * m->width);
}

void engram_rows(struct engram_saved *s, int64_t rows, int64_t part)
{
    struct tensor *all[] = {&s->ids, &s->e, &s->dx, &s->de},
                  *here[] = {&s->h,           &s->k,           &s->v,           &s->u,   &s->nk, &s->nh,
                             &s->x,           &s->delta,       &s->sum,         &s->out, &s->dk, &s->dh,
                             &s->k_norm.rstd, &s->h_norm.rstd, &s->u_norm.rstd, &s->dv};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) tensor_rows(all[i], rows);
    for (size_t i = 0; i < sizeof here / sizeof here[0]; i++) tensor_rows(here[i], part);
}

/* Concatenates the table rows that each token reads. */
static status look_up(const struct engram *m, struct engram_saved *s, const struct batch *b,
                      const int32_t *before, const struct exec *r)
{
    const struct batch *whole = context_full_batch(b);
    TRY(r->ops->ngram(&(struct ngram_args){.tokens = whole->tokens,
                                           .before = before,
                                           .map = m->map,
                                           .out = b->context ? s->all_ids.data : s->ids.data,
                                           .cu_seqlens = whole->cu_seqlens,
                                           .docs = whole->docs,
                                           .rows = whole->rows,
                                           .hash = &m->hash},
                      r->stream));
    if (b->context) TRY(context_rows_take(s->ids, s->all_ids, b->context, r));
    TRY(params_unshard(r->params, r->params->rows[m->table].unit, UNIT_FORWARD));
    return r->ops->embed_fwd(&(struct embed_fwd_args){.tokens = s->ids.data,
                                                      .table = params_weight(r->params, m->table),
                                                      .x = s->e.data,
                                                      .rows = tensor_count(s->ids),
                                                      .d = m->width,
                                                      .vocab = m->rows,
                                                      .dt = s->e.dt},
                             r->stream);
}

/* k or v of this rank's tokens. */
static status project(const struct linear *m, struct linear_saved *saved, const struct engram_saved *s,
                      struct tensor to, const struct sp *w, const struct exec *r)
{
    TRY(linear_fwd(m, saved, s->e, sp_out(w, to), r));
    return sp_reduce_scatter(w, to, r);
}

static status gate(const struct engram *m, struct engram_saved *s, const struct exec *r)
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

/* The channels of the convolution that this rank computes, of all rows. */
struct channels {
    int64_t first, count;
    size_t weights; /* bytes of the rows of w before them */
};
static struct channels channels_of(const struct engram *m, const struct batch *b, dtype dt,
                                   const struct exec *r)
{
    if (b->context == NULL) return (struct channels){0, m->d, 0};
    const int64_t count = m->d / comm_ranks(r->cp), first = comm_rank(r->cp) * count;
    return (struct channels){first, count, (size_t)(first * ENGRAM_CONV) * dtype_bytes(dt)};
}

/* The convolution of x: of this rank's rows, or of its channels of all rows. */
static struct conv_fwd_args conv_args(const struct engram *m, const struct engram_saved *s,
                                      const struct batch *b, struct tensor x, struct tensor y,
                                      const struct exec *r)
{
    const struct batch *whole = context_full_batch(b);
    const struct channels own = channels_of(m, b, x.dt, r);
    return (struct conv_fwd_args){.x = b->context ? s->all_x.data : x.data,
                                  .w = (const char *)params_weight(r->params, m->conv) + own.weights,
                                  .y = b->context ? s->all_y.data : y.data,
                                  .x_stride = own.count,
                                  .y_stride = own.count,
                                  .cu_seqlens = whole->cu_seqlens,
                                  .docs = whole->docs,
                                  .rows = whole->rows,
                                  .channels = own.count,
                                  .width = ENGRAM_CONV,
                                  .dilation = m->hash.order,
                                  .dt = x.dt};
}

static status conv(const struct engram *m, struct engram_saved *s, const struct batch *b, const void *before,
                   struct tensor x, struct tensor y, const struct exec *r)
{
    struct conv_fwd_args a = conv_args(m, s, b, x, y, r);
    const struct context_part in = {.rows = x, .all = s->all_x, .width = m->d},
                              out = {.rows = y, .all = s->all_y, .width = m->d};
    if (b->context) TRY(context_heads_exchange(&s->exchange, &in, 1, CONTEXT_TO_HEADS, b->context, r));
    a.before = before;
    TRY(r->ops->conv_fwd(&a, r->stream));
    return b->context ? context_heads_exchange(&s->exchange, &out, 1, CONTEXT_TO_ROWS, b->context, r)
                      : STATUS_OK;
}

/* From the residual stream in s->h and its norm to s->sum and s->out. */
status engram_core(const struct engram *m, struct engram_saved *s, const struct batch *b,
                   const struct engram_carry *carry, const struct sp *w, const struct exec *r)
{
    const struct tensor none = {0};
    struct tensor x;
    TRY(look_up(m, s, b, carry->tokens, r));
    TRY(project(&m->k, &s->k_saved, s, s->k, w, r));
    TRY(project(&m->v, &s->v_saved, s, s->v, w, r));
    TRY(norm_fwd(&m->k_norm, &s->k_norm, s->k, none, none, s->nk, r));
    TRY(gate(m, s, r));
    TRY(norm_fwd(&m->u_norm, &s->u_norm, s->u, none, none, s->x, r));
    TRY(sp_all_gather(w->in, s->x, &x, r));
    TRY(conv(m, s, b, carry->before, x, sp_out(w, s->out), r));
    return sp_keep_local(w, s->out, r);
}

status engram_fwd(const struct engram *m, struct engram_saved *s, const struct layer_ctx *c, struct tensor x,
                  struct tensor branch, const struct sp *w, const struct exec *r)
{
    TRY(norm_fwd(&m->h_norm, &s->h_norm, x, branch, s->h, s->nh, r));
    return engram_core(m, s, c->batch, &(struct engram_carry){0}, w, r);
}

status engram_recompute(const struct engram *m, struct engram_saved *s, enum recompute policy,
                        const struct layer_ctx *c, const struct sp *w, const struct exec *r)
{
    const struct tensor none = {0};
    if (policy == RECOMPUTE_NONE) return STATUS_OK;
    TRY(norm_fwd(&m->h_norm, &s->h_norm, s->h, none, none, s->nh, r));
    TRY(look_up(m, s, c->batch, NULL, r));
    if (policy == RECOMPUTE_FULL) {
        TRY(project(&m->k, &s->k_saved, s, s->k, w, r));
        TRY(project(&m->v, &s->v_saved, s, s->v, w, r));
    }
    TRY(norm_fwd(&m->k_norm, &s->k_norm, s->k, none, none, s->nk, r));
    if (policy == RECOMPUTE_FULL) TRY(gate(m, s, r));
    return norm_fwd(&m->u_norm, &s->u_norm, s->u, none, none, s->x, r);
}

/* The gradient as a dense array, as large as the tables. */
static status dense_bwd(const struct engram *m, const struct engram_saved *s, const struct exec *r)
{
    const int unit = r->params->rows[m->table].unit;
    TRY(unit_grad_unshard(r->params, unit, r->stream));
    TRY(r->ops->embed_bwd(&(struct embed_bwd_args){.tokens = s->ids.data,
                                                   .dx = s->de.data,
                                                   .dtable = params_grad(r->params, m->table),
                                                   .rows = tensor_count(s->ids),
                                                   .d = m->width,
                                                   .vocab = m->rows,
                                                   .dt = s->de.dt},
                          r->stream));
    return params_reshard(r->params, unit);
}

/* The sparse gradient: ids, and the address for the gradients of the rows read. */
static status sparse_bwd(const struct engram *m, struct engram_saved *s, const struct exec *r)
{
    const int64_t reads = tensor_count(s->ids);
    const struct table_reads to = sparse_grad_reads(r->sparse_grad, m->table, r->micro);
    CHECK(reads == r->sparse_grad->reads, "%lld reads, %lld planned", (long long)reads,
          (long long)r->sparse_grad->reads);
    s->de = s->e;
    s->de.data = to.grads, s->de.dt = DTYPE_F32;
    return dev_copy(r->stream, to.ids, s->ids.data, (size_t)reads * sizeof *to.ids);
}

/* From dk and dv to the gradients of projections and tables. */
static status sparse_grad_bwd(const struct engram *m, struct engram_saved *s, const struct sp *w,
                              const struct exec *r)
{
    const bool sparse = r->params->sparse;
    struct tensor dk, dv;
    if (sparse) TRY(sparse_bwd(m, s, r));
    TRY(sp_all_gather(w->in, s->dk, &dk, r));
    TRY(sp_all_gather(w->out, s->dv, &dv, r));
    TRY(linear_wgrad(&m->k, &s->k_saved, s->e, dk, r));
    TRY(linear_wgrad(&m->v, &s->v_saved, s->e, dv, r));
    TRY(linear_dgrad(&m->k, &s->k_saved, dk, s->de, r));
    TRY(linear_dgrad_add(&m->v, &s->v_saved, dv, s->de, r));
    return sparse ? STATUS_OK : dense_bwd(m, s, r);
}

/* s->dx from the gradient of the convolution's output, and the gradient of its taps. */
static status conv_grads(const struct engram *m, struct engram_saved *s, const struct batch *b,
                         struct tensor x, struct tensor dout, const struct exec *r)
{
    const dtype acc = dtype_acc(x.dt);
    const struct channels grads = channels_of(m, b, acc, r);
    const struct conv_fwd_args f = conv_args(m, s, b, x, dout, r);
    const struct context_part in[] = {{.rows = x, .all = s->all_x, .width = m->d},
                                      {.rows = dout, .all = s->all_y, .width = m->d}},
                              out = {.rows = s->dx, .all = s->all_dx, .width = m->d};
    const bool parts = b->context != NULL;
    if (parts) TRY(context_heads_exchange(&s->exchange, in, 2, CONTEXT_TO_HEADS, b->context, r));
    TRY(r->ops->conv_bwd(
        &(struct conv_bwd_args){.dy = f.y,
                                .x = f.x,
                                .w = f.w,
                                .dx = parts ? s->all_dx.data : s->dx.data,
                                .dw = (char *)params_grad(r->params, m->conv) + grads.weights,
                                .dy_stride = f.y_stride,
                                .x_stride = f.x_stride,
                                .dx_stride = f.x_stride,
                                .cu_seqlens = f.cu_seqlens,
                                .docs = f.docs,
                                .rows = f.rows,
                                .channels = f.channels,
                                .width = f.width,
                                .dilation = f.dilation,
                                .dt = f.dt},
        r->stream));
    return parts ? context_heads_exchange(&s->exchange, &out, 1, CONTEXT_TO_ROWS, b->context, r) : STATUS_OK;
}

status engram_bwd(const struct engram *m, struct engram_saved *s, const struct layer_ctx *c, struct tensor g,
                  const struct sp *w, const struct exec *r)
{
    const struct batch *b = c->batch;
    const struct tensor none = {0}, dx = sp_local_rows(s->dx, r);
    struct tensor x, dout;
    TRY(sp_all_gather(w->in, s->x, &x, r));
    TRY(sp_all_gather(w->out, g, &dout, r));
    TRY(conv_grads(m, s, b, x, dout, r));
    TRY(norm_bwd(&m->u_norm, &s->u_norm, s->u, dx, g, dx, r));
    TRY(r->ops->ngram_gate_bwd(&(struct ngram_gate_bwd_args){.du = dx.data,
                                                             .a = s->nk.data,
                                                             .b = s->nh.data,
                                                             .v = s->v.data,
                                                             .delta = s->delta.data,
                                                             .da = s->dk.data,
                                                             .db = s->dh.data,
                                                             .dv = s->dv.data,
                                                             .rows = g.shape[0],
                                                             .d = m->d,
                                                             .dt = g.dt},
                               r->stream));
    TRY(norm_bwd(&m->k_norm, &s->k_norm, s->k, s->dk, none, s->dk, r));
    TRY(sparse_grad_bwd(m, s, w, r));
    return norm_bwd(&m->h_norm, &s->h_norm, s->h, s->dh, g, g, r);
}
