#include "nn/mla.h"
#include "dev/dev.h"
#include "spec/layer_traits.h"

#include <math.h>
#include <stdio.h>

static const double NORM_EPS =
    1e-6; /* DeepSeek's modelling code does not use the configured epsilon for these norms */

static int64_t head_width(const struct mla *m)
{
    return m->nope + m->rope;
}
static int64_t query_width(const struct mla *m)
{
    return m->heads * head_width(m);
}
/* Columns of `in` and of its gradient. */
static int64_t c_at(const struct mla *m)
{
    return m->q_rank ? m->q_rank : query_width(m);
}
static int64_t tail_at(const struct mla *m)
{
    return c_at(m) + m->rank;
}
/* Columns of kv. */
static int64_t v_at(const struct mla *m)
{
    return m->heads * m->nope;
}

void mla_init(struct mla *m, struct params *p, const char *name, const struct model_spec *spec, int64_t layer)
{
    (void)layer;
    char full[96];
    const int64_t d = spec->hidden_size;
    const float init = spec->norm_zero_centered ? 0 : 1;
    *m = (struct mla){.heads = spec->mla_heads ? spec->mla_heads : spec->head_count,
                      .q_rank = spec->mla_q_rank,
                      .rank = spec->mla_kv_rank,
                      .nope = spec->mla_nope_dim,
                      .rope = spec->mla_rope_dim,
                      .value = spec->mla_value_dim,
                      .shift = 1 - init,
                      .q_norm = -1};
    m->scale = rope_softmax_factor(spec) / sqrt((double)head_width(m));
    snprintf(full, sizeof full, "%s.in", name);
    linear_init(&m->in, p, full, ROLE_MATRIX, tail_at(m) + m->rope, d, BIAS_NONE);
    const int64_t parts[] = {c_at(m), m->rank, m->rope};
    /* parts: q or its latent, the latent of k and v, the shared rope part of k. All heads read the latents, so a
     * rank's gradient is the sum over its own heads. */
    linear_split(&m->in, p, m->q_rank ? SPLIT_PARTIAL_GRAD : SPLIT_FIRST, parts, 3);
    if (m->q_rank) {
        m->q_norm = params_add(p, ROLE_NORM, init, m->q_rank, 0, "%s.q_norm.weight", name);
        params_split(p, m->q_norm, SPLIT_PARTIAL_GRAD, NULL, 0);
        snprintf(full, sizeof full, "%s.q", name);
        linear_init(&m->q, p, full, ROLE_MATRIX, query_width(m), m->q_rank, BIAS_NONE);
        linear_split(&m->q, p, SPLIT_COLUMN_PARALLEL, NULL, 0);
    }
    m->kv_norm = params_add(p, ROLE_NORM, init, m->rank, 0, "%s.kv_norm.weight", name);
    params_split(p, m->kv_norm, SPLIT_PARTIAL_GRAD, NULL, 0);
    snprintf(full, sizeof full, "%s.kv", name);
    linear_init(&m->kv, p, full, ROLE_MATRIX, m->heads * (m->nope + m->value), m->rank, BIAS_NONE);
    linear_split(&m->kv, p, SPLIT_COLUMN_PARALLEL, (const int64_t[]){v_at(m), m->heads * m->value}, 2);
    p->rows[m->kv.w].all_rows = true;
    snprintf(full, sizeof full, "%s.out", name);
    linear_init(&m->out, p, full, ROLE_RESIDUAL, d, m->heads * m->value, BIAS_NONE);
    linear_split(&m->out, p, SPLIT_ROW_PARALLEL, NULL, 0);
    m->heads /= params_tp_size(p); /* from here on: heads of this rank */
}

static struct tensor scratch_of(const struct layout *l, const struct attn_shape *shape, enum attn_pass pass)
{
    return tensor_take(l->scratch,
                       pass == ATTN_FWD ? "attention forward scratch" : "attention backward scratch",
                       DTYPE_U8, 1, (int64_t)l->ops->attn_scratch(shape, pass));
}

/* Rows of keys and values. */
static int64_t key_rows(const struct layout *l)
{
    return l->cp_size > 1 ? l->n * l->cp_size : l->n;
}

static void gradients_layout(const struct mla *m, struct mla_saved *s, const struct layout *l)
{
    s->din = tensor_take(l->scratch, "mla projection gradients", l->dt, 2, l->n, m->in.out);
    s->dk = tensor_take(l->scratch, "mla key gradients", l->dt, 2, key_rows(l), query_width(m));
    s->dkv = tensor_take(l->scratch, "mla key and value gradients", l->dt, 2, key_rows(l), m->kv.out);
    s->dc_normed = s->dlatents = tensor_take(l->scratch, "mla latent gradient", l->dt, 2, l->n, m->rank);
    if (l->cp_size > 1)
        s->dlatents =
            tensor_take(l->scratch, "mla latent gradient of all ranks", l->dt, 2, key_rows(l), m->rank);
    s->do_ = tensor_take(l->scratch, "attention output gradient", l->dt, 2, l->n, m->out.in);
    if (m->q_rank == 0) return;
    s->dq = tensor_take(l->scratch, "mla query gradients", l->dt, 2, l->n, query_width(m));
    s->dq_normed = tensor_take(l->scratch, "mla query latent gradient", l->dt, 2, l->n, m->q_rank);
}

static void exchange_layout(const struct mla *m, struct mla_saved *s, const struct layout *l)
{
    if (l->cp_size <= 1) return;
    context_rows_layout(&s->exchange, m->rank + m->rope, l);
    s->latents = tensor_take(l->scratch, "mla latents of all ranks", l->dt, 2, key_rows(l), m->rank);
}

void mla_layout(const struct mla *m, struct mla_saved *s, const struct layout *l)
{
    struct arena *keep = layout_arena(l, RECOMPUTE_FULL),
                 *cheap = l->cp_size > 1 ? l->scratch : layout_arena(l, RECOMPUTE_SELECTIVE);
    const dtype acc = dtype_acc(l->dt);
    *s = (struct mla_saved){.in = tensor_take(keep, "mla projections", l->dt, 2, l->n, m->in.out),
                            .c_rstd = tensor_take(keep, "mla latent rstd", acc, 1, l->n),
                            .c_normed = tensor_take(cheap, "mla latent", l->dt, 2, l->n, m->rank),
                            .kv = tensor_take(cheap, "mla keys and values", l->dt, 2, key_rows(l), m->kv.out),
                            .k = tensor_take(cheap, "mla keys", l->dt, 2, key_rows(l), query_width(m)),
                            .o = tensor_take(keep, "attention output", l->dt, 2, l->n, m->out.in),
                            .lse = tensor_take(keep, "attention lse", acc, 2, m->heads, l->n),
                            .kept = l->mode == LAYOUT_TRAIN && l->recompute < RECOMPUTE_SELECTIVE &&
                                    l->cp_size <= 1};
    s->latents = s->c_normed;
    exchange_layout(m, s, l);
    linear_layout(&m->in, &s->in_saved, linear_given_y(l), l);
    linear_layout(&m->q, &s->q_saved, LINEAR_NONE, l);
    linear_layout(&m->kv, &s->kv_saved, LINEAR_NONE, l);
    linear_layout(&m->out, &s->out_saved, linear_given_dout(l), l);
    if (m->q_rank) {
        s->q_rstd = tensor_take(keep, "mla query latent rstd", acc, 1, l->n);
        s->q_normed = tensor_take(cheap, "mla query latent", l->dt, 2, l->n, m->q_rank);
        s->q = tensor_take(cheap, "mla queries", l->dt, 2, l->n, query_width(m));
    }
    const struct attn_shape shape = {.rows = l->n,
                                     .docs = l->docs_max,
                                     .len_max = l->len_max,
                                     .heads = m->heads,
                                     .heads_kv = m->heads,
                                     .head_dim = head_width(m),
                                     .head_dim_v = m->value,
                                     .dt = l->dt,
                                     .keys = l->cp_size > 1 ? l->n * l->cp_size : 0};
    s->scratch_fwd = scratch_of(l, &shape, ATTN_FWD);
    if (l->mode != LAYOUT_TRAIN) return;
    s->scratch_bwd = scratch_of(l, &shape, ATTN_BWD);
    gradients_layout(m, s, l);
}

void mla_rows(struct mla_saved *s, int64_t rows)
{
    struct tensor *own[] = {&s->in,        &s->q_rstd, &s->c_rstd,      &s->q_normed, &s->q,
                            &s->c_normed,  &s->o,      &s->din,         &s->dq,       &s->dq_normed,
                            &s->dc_normed, &s->do_,    &s->exchange.own};
    struct tensor *keys[] = {&s->kv, &s->k, &s->dk, &s->dkv, &s->latents, &s->dlatents};
    const int64_t ranks = s->exchange.own.rank ? s->exchange.all.shape[0] / s->exchange.own.shape[0] : 1;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) tensor_rows(keys[i], rows * ranks);
    tensor_rows(&s->exchange.all, rows * ranks), tensor_rows(&s->exchange.dall, rows * ranks);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) tensor_rows(own[i], rows);
}

struct mla_view mla_queries(const struct mla *m, const struct mla_saved *s)
{
    return (struct mla_view){m->q_rank ? s->q.data : s->in.data, m->q_rank ? query_width(m) : m->in.out};
}

struct mla_view mla_tail(const struct mla *m, const struct mla_saved *s)
{
    return (struct mla_view){tensor_column(s->in, tail_at(m)), m->in.out};
}

/* The norm of `d` columns of `in`, starting at column `at`. */
static status norm_columns(const struct mla *m, const struct mla_saved *s, int64_t at, int64_t d, int weight,
                           struct tensor rstd, void *y, const struct exec *r)
{
    return r->ops->rmsnorm_fwd(&(struct rmsnorm_fwd_args){.x = tensor_column(s->in, at),
                                                          .w = params_weight(r->params, weight),
                                                          .y = y,
                                                          .rstd = rstd.data,
                                                          .rows = s->in.shape[0],
                                                          .d = d,
                                                          .x_stride = m->in.out,
                                                          .eps = NORM_EPS,
                                                          .shift = m->shift,
                                                          .dt = s->in.dt},
                               r->stream);
}

/* From dy, the gradient of the norm's output, to the columns of din. */
static status norm_columns_bwd(const struct mla *m, const struct mla_saved *s, int64_t at, struct tensor dy,
                               int weight, struct tensor rstd, const struct exec *r)
{
    return r->ops->rmsnorm_bwd(&(struct rmsnorm_bwd_args){.dy = dy.data,
                                                          .s = tensor_column(s->in, at),
                                                          .w = params_weight(r->params, weight),
                                                          .rstd = rstd.data,
                                                          .dx = tensor_column(s->din, at),
                                                          .dw = params_grad(r->params, weight),
                                                          .rows = dy.shape[0],
                                                          .d = dy.shape[1],
                                                          .s_stride = m->in.out,
                                                          .dx_stride = m->in.out,
                                                          .shift = m->shift,
                                                          .dt = dy.dt},
                               r->stream);
}

status mla_form_queries(const struct mla *m, struct mla_saved *s, const struct exec *r)
{
    if (m->q_rank == 0) return STATUS_OK; /* `in` holds them */
    TRY(norm_columns(m, s, 0, m->q_rank, m->q_norm, s->q_rstd, s->q_normed.data, r));
    return linear_fwd(&m->q, &s->q_saved, s->q_normed, s->q, r);
}

status mla_norm_c(const struct mla *m, struct mla_saved *s, void *to, const struct exec *r)
{
    return norm_columns(m, s, c_at(m), m->rank, m->kv_norm, s->c_rstd, to, r);
}

/* Context parallelism: c and the tails of all ranks. */
static status gather_latents(const struct mla *m, struct mla_saved *s, const struct batch *b,
                             const struct exec *r)
{
    if (b->context == NULL) return STATUS_OK;
    TRY(context_columns_copy(s->exchange.own, 0, s->c_normed, 0, m->rank, r));
    TRY(context_columns_copy(s->exchange.own, m->rank, s->in, tail_at(m), m->rope, r));
    TRY(context_rows_gather(&s->exchange, b->context, r));
    return context_columns_copy(s->latents, 0, s->exchange.all, 0, m->rank, r);
}

/* The gradients of this rank's c, and of its tails in din, from those of all rows. */
static status reduce_latents(const struct mla *m, struct mla_saved *s, const struct batch *b,
                             const struct exec *r)
{
    if (b->context == NULL) return STATUS_OK;
    TRY(context_columns_copy(s->exchange.dall, 0, s->dlatents, 0, m->rank, r));
    TRY(context_rows_reduce(&s->exchange, b->context, r));
    TRY(context_columns_copy(s->dc_normed, 0, s->exchange.own, 0, m->rank, r));
    return context_columns_copy(s->din, tail_at(m), s->exchange.own, m->rank, m->rope, r);
}

/* What mla_rope_fwd reads but the heads: all of it is of the rows of `b`. */
static struct mla_rope_fwd_args latent_args(const struct mla *m, const struct mla_saved *s,
                                            const struct layer_ctx *c, const struct batch *b)
{
    return (struct mla_rope_fwd_args){.positions = b->positions,
                                      .cos = c->rope->tails.cos.data,
                                      .sin = c->rope->tails.sin.data,
                                      .rows = b->rows,
                                      .heads = m->heads,
                                      .nope = m->nope,
                                      .half = m->rope / 2,
                                      .pos_count = c->rope->positions,
                                      .dt = s->in.dt};
}

/* q, k and v of all heads from `in`. `again`: recompute in backward, where queries without a rank are rotated
 * already. */
enum form { FORM_FIRST, FORM_AGAIN };
static status form_heads(const struct mla *m, struct mla_saved *s, const struct layer_ctx *c, enum form form,
                         const struct exec *r)
{
    const struct mla_view q = mla_queries(m, s);
    const struct batch *b = c->batch;
    const bool rotate = form == FORM_FIRST || m->q_rank > 0, split = b->context != NULL;
    const struct mla_view tail =
        split ? (struct mla_view){tensor_column(s->exchange.all, m->rank), m->rank + m->rope}
              : mla_tail(m, s);
    TRY(mla_form_queries(m, s, r));
    TRY(mla_norm_c(m, s, s->c_normed.data, r));
    TRY(gather_latents(m, s, b, r));
    TRY(linear_fwd(&m->kv, &s->kv_saved, s->latents, s->kv, r));
    struct mla_rope_fwd_args queries = latent_args(m, s, c, b),
                             keys = latent_args(m, s, c, context_full_batch(b));
    queries.q = q.data, queries.q_stride = q.stride;
    keys.k_nope = s->kv.data, keys.k_nope_stride = m->kv.out;
    keys.k_rope = tail.data, keys.k_rope_stride = tail.stride;
    keys.k = s->k.data;
    if (split && rotate) TRY(r->ops->mla_rope_fwd(&queries, r->stream));
    if (!split && rotate) keys.q = q.data, keys.q_stride = q.stride;
    return r->ops->mla_rope_fwd(&keys, r->stream);
}

status mla_fwd(const struct mla *m, struct mla_saved *s, const struct layer_ctx *c, struct tensor y,
               struct branch_dst out, const struct exec *r)
{
    const struct batch *b = c->batch;
    const struct mla_view q = mla_queries(m, s);
    TRY(linear_fwd(&m->in, &s->in_saved, y, s->in, r));
    TRY(form_heads(m, s, c, FORM_FIRST, r));
    TRY(r->ops->attn_fwd(&(struct attn_fwd_args){.q = q.data,
                                                 .k = s->k.data,
                                                 .v = tensor_column(s->kv, v_at(m)),
                                                 .o = s->o.data,
                                                 .lse = s->lse.data,
                                                 .q_stride = q.stride,
                                                 .k_stride = query_width(m),
                                                 .v_stride = m->kv.out,
                                                 .cu_seqlens = b->cu_seqlens,
                                                 .cp_docs = b->context ? b->context->docs : NULL,
                                                 .keys = b->context ? b->context->full->rows : 0,
                                                 .docs = b->context ? b->context->count : b->docs,
                                                 .rows = b->rows,
                                                 .heads = m->heads,
                                                 .heads_kv = m->heads,
                                                 .head_dim = head_width(m),
                                                 .head_dim_v = m->value,
                                                 .len_max = b->len_max,
                                                 .scale = m->scale,
                                                 .scratch = s->scratch_fwd.data,
                                                 .dt = y.dt},
                         r->stream));
    return linear_last(&m->out, &s->out_saved, s->o, out, r);
}

/* Gradients of the heads; those of queries without a rank are in din. */
static struct mla_view query_gradients(const struct mla *m, const struct mla_saved *s)
{
    return (struct mla_view){m->q_rank ? s->dq.data : s->din.data, m->q_rank ? query_width(m) : m->in.out};
}

static status attention_bwd(const struct mla *m, const struct mla_saved *s, const struct batch *b,
                            const struct exec *r)
{
    const struct mla_view q = mla_queries(m, s), dq = query_gradients(m, s);
    return r->ops->attn_bwd(&(struct attn_bwd_args){.q = q.data,
                                                    .k = s->k.data,
                                                    .v = tensor_column(s->kv, v_at(m)),
                                                    .o = s->o.data,
                                                    .do_ = s->do_.data,
                                                    .lse = s->lse.data,
                                                    .dq = dq.data,
                                                    .dk = s->dk.data,
                                                    .dv = tensor_column(s->dkv, v_at(m)),
                                                    .q_stride = q.stride,
                                                    .k_stride = query_width(m),
                                                    .v_stride = m->kv.out,
                                                    .dq_stride = dq.stride,
                                                    .dk_stride = query_width(m),
                                                    .dv_stride = m->kv.out,
                                                    .cu_seqlens = b->cu_seqlens,
                                                    .cp_docs = b->context ? b->context->docs : NULL,
                                                    .keys = b->context ? b->context->full->rows : 0,
                                                    .docs = b->context ? b->context->count : b->docs,
                                                    .rows = b->rows,
                                                    .heads = m->heads,
                                                    .heads_kv = m->heads,
                                                    .head_dim = head_width(m),
                                                    .head_dim_v = m->value,
                                                    .len_max = b->len_max,
                                                    .scale = m->scale,
                                                    .scratch = s->scratch_bwd.data,
                                                    .scratch_bytes = (size_t)tensor_count(s->scratch_bwd),
                                                    .dt = s->o.dt},
                            r->stream);
}

/* From gradients of q and k to those of k's parts. q's rope columns are rotated back in place. */
static status heads_bwd(const struct mla *m, const struct mla_saved *s, const struct layer_ctx *c,
                        const struct exec *r)
{
    const struct rope *rope = c->rope;
    const struct mla_view dq = query_gradients(m, s);
    const struct batch *b = c->batch, *whole = context_full_batch(b);
    const bool split = b->context != NULL;
    struct mla_rope_bwd_args a = {.dk = s->dk.data,
                                  .dk_nope = s->dkv.data,
                                  .dk_rope = split ? tensor_column(s->exchange.dall, m->rank)
                                                   : tensor_column(s->din, tail_at(m)),
                                  .dk_nope_stride = m->kv.out,
                                  .dk_rope_stride = split ? m->rank + m->rope : m->in.out,
                                  .positions = whole->positions,
                                  .cos = rope->tails.cos.data,
                                  .sin = rope->tails.sin.data,
                                  .rows = whole->rows,
                                  .heads = m->heads,
                                  .nope = m->nope,
                                  .half = m->rope / 2,
                                  .pos_count = rope->positions,
                                  .dt = s->dk.dt};
    if (split) TRY(r->ops->mla_rope_bwd(&a, r->stream));
    if (split) a.dk = a.dk_nope = a.dk_rope = NULL, a.positions = b->positions, a.rows = b->rows;
    a.dq = dq.data, a.dq_stride = dq.stride;
    return r->ops->mla_rope_bwd(&a, r->stream);
}

/* Keys without queries here have no gradient, and attention leaves them alone. */
static status clear_keys(const struct mla_saved *s, const struct batch *b, const struct exec *r)
{
    if (b->context == NULL) return STATUS_OK;
    const size_t element = dtype_bytes(s->dk.dt);
    TRY(dev_zero(r->stream, s->dk.data, (size_t)tensor_count(s->dk) * element));
    return dev_zero(r->stream, s->dkv.data, (size_t)tensor_count(s->dkv) * element);
}

status mla_bwd(const struct mla *m, struct mla_saved *s, const struct layer_ctx *c, struct tensor y,
               struct tensor dout, struct tensor dy, const struct exec *r)
{
    TRY(linear_dgrad(&m->out, &s->out_saved, dout, s->do_, r));
    TRY(linear_wgrad(&m->out, &s->out_saved, s->o, dout, r));
    if (!s->kept) TRY(form_heads(m, s, c, FORM_AGAIN, r));
    TRY(clear_keys(s, c->batch, r));
    TRY(attention_bwd(m, s, c->batch, r));
    TRY(heads_bwd(m, s, c, r));
    TRY(linear_wgrad(&m->kv, &s->kv_saved, s->latents, s->dkv, r));
    TRY(linear_dgrad(&m->kv, &s->kv_saved, s->dkv, s->dlatents, r));
    TRY(reduce_latents(m, s, c->batch, r));
    TRY(norm_columns_bwd(m, s, c_at(m), s->dc_normed, m->kv_norm, s->c_rstd, r));
    if (m->q_rank) {
        TRY(linear_wgrad(&m->q, &s->q_saved, s->q_normed, s->dq, r));
        TRY(linear_dgrad(&m->q, &s->q_saved, s->dq, s->dq_normed, r));
        TRY(norm_columns_bwd(m, s, 0, s->dq_normed, m->q_norm, s->q_rstd, r));
    }
    TRY(linear_dgrad(&m->in, &s->in_saved, s->din, dy, r)); /* first: communication may wait for it */
    return linear_wgrad(&m->in, &s->in_saved, y, s->din, r);
}

/* ---- computed from the spec alone */

static int64_t heads_of(const struct model_spec *m)
{
    return m->mla_heads ? m->mla_heads : m->head_count;
}

static status check(const struct model_spec *m)
{
    if (m->mla_kv_rank == 0) return FAIL(STATUS_CONFIG, "model.layers names mla: set model.mla_kv_rank");
    if (m->mla_rope_dim % 2 != 0)
        return FAIL(STATUS_CONFIG, "model.mla_rope_dim %lld is odd; rope rotates pairs of elements",
                    (long long)m->mla_rope_dim);
    if (m->position != POS_ROPE)
        return FAIL(STATUS_CONFIG,
                    "model.layers names mla, whose keys have rotated tails: model.position must be rope");
    return STATUS_OK;
}

static status check_gpu(const struct model_spec *m)
{
    const struct {
        const char *keys;
        int64_t width;
    } heads[] = {{"mla_nope_dim + mla_rope_dim", m->mla_nope_dim + m->mla_rope_dim},
                 {"mla_value_dim", m->mla_value_dim},
                 {"mla_kv_rank + mla_rope_dim, a row of the cache,", m->mla_kv_rank + m->mla_rope_dim}};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++)
        if (heads[i].width > HEAD_CUDA_MAX)
            return FAIL(STATUS_CONFIG,
                        "model.%s = %lld: a GPU's kernels take at most %d; use --machine.device=cpu",
                        heads[i].keys, (long long)heads[i].width, (int)HEAD_CUDA_MAX);
    return STATUS_OK;
}

static int widths(struct model_spec *m, struct layer_width out[LAYER_WIDTHS_MAX])
{
    m->mla_heads = heads_of(m);
    out[0] = (struct layer_width){"mla_heads", &m->mla_heads};
    return 1;
}

static int gemms(const struct model_spec *m, struct layer_gemm *out, int n)
{
    const int64_t d = m->hidden_size, heads = heads_of(m), q = heads * (m->mla_nope_dim + m->mla_rope_dim);
    if (m->mla_q_rank > 0) n = layer_gemm_add(out, n, d, m->mla_q_rank);
    n = layer_gemm_add(out, n, m->mla_q_rank > 0 ? m->mla_q_rank : d, q);
    n = layer_gemm_add(out, n, d, m->mla_kv_rank + m->mla_rope_dim);
    n = layer_gemm_add(out, n, m->mla_kv_rank, heads * (m->mla_nope_dim + m->mla_value_dim));
    return layer_gemm_add(out, n, heads * m->mla_value_dim, d);
}

static double scores_width(const struct model_spec *m)
{
    return (double)(heads_of(m) * (m->mla_nope_dim + m->mla_rope_dim + m->mla_value_dim));
}

static double core_flops(const struct model_spec *m, int64_t layer, int64_t t)
{
    (void)layer;
    return 2 * scores_width(m) * layer_keys_seen(t, 0);
}

static double square_flops(const struct model_spec *m, int64_t t)
{
    return 2 * scores_width(m) * (double)t;
}

static struct mixer_flow flow(const struct model_spec *m)
{
    const int64_t heads = heads_of(m), q = heads * (m->mla_nope_dim + m->mla_rope_dim);
    return (struct mixer_flow){.query = (double)q,
                               .key = (double)(q + heads * m->mla_value_dim),
                               .head_dim = m->mla_nope_dim + m->mla_rope_dim};
}

static void rope_dims(const struct model_spec *m, struct rope_dims *dims)
{
    dims->tails = m->mla_rope_dim;
}

const struct layer_traits mla_traits = {.check = check,
                                        .check_gpu = check_gpu,
                                        .widths = widths,
                                        .gemms = gemms,
                                        .core_flops = core_flops,
                                        .square_flops = square_flops,
                                        .mixer_flow = flow,
                                        .context = LAYER_CONTEXT_ROWS,
                                        .context_gpu = true,
                                        .rope_dims = rope_dims};
