#include "nn/gdn.h"
#include "spec/layer_traits.h"

#include <math.h>
#include <stdio.h>

static int64_t key_width(const struct gdn *m)
{
    return m->heads_k * m->dk;
}
static int64_t value_width(const struct gdn *m)
{
    return m->heads * m->dv;
}
static int64_t channels(const struct gdn *m)
{
    return 2 * key_width(m) + value_width(m);
}

/* Columns of `in` and of its gradient after the convolution's channels. */
static int64_t z_at(const struct gdn *m)
{
    return channels(m);
}
static int64_t b_at(const struct gdn *m)
{
    return z_at(m) + value_width(m);
}
static int64_t a_at(const struct gdn *m)
{
    return b_at(m) + m->heads;
}

void gdn_init(struct gdn *m, struct params *p, const char *name, const struct model_spec *spec, int64_t layer)
{
    (void)layer;
    char full[96];
    *m = (struct gdn){.heads_k = spec->gdn_key_heads,
                      .heads = spec->gdn_value_heads,
                      .dk = spec->gdn_key_dim,
                      .dv = spec->gdn_value_dim,
                      .width = spec->gdn_conv,
                      .eps = spec->norm_eps};
    snprintf(full, sizeof full, "%s.in", name);
    linear_init(&m->in, p, full, ROLE_MATRIX, a_at(m) + m->heads, spec->hidden_size, BIAS_NONE);
    const int64_t keys = key_width(m), values = value_width(m),
                  parts[] = {keys, keys, values, values, m->heads, m->heads}; /* q, k, v, z, b, a */
    linear_split(&m->in, p, SPLIT_COLUMN_PARALLEL, parts, 6);
    m->conv = params_add(p, ROLE_CONV, 0, channels(m), m->width, "%s.conv.weight", name);
    m->a_log = params_add(p, ROLE_RATE, 0, m->heads, 0, "%s.A_log", name);
    p->rows[m->a_log].derived[DERIVED_F32] = true;
    m->dt_bias = params_add(p, ROLE_BIAS, (float)spec->gdn_dt_bias, m->heads, 0, "%s.dt_bias", name);
    p->rows[m->dt_bias].derived[DERIVED_F32] = true;
    m->norm = params_add(p, ROLE_NORM, 1, m->dv, 0, "%s.norm.weight", name);
    params_split(p, m->conv, SPLIT_COLUMN_PARALLEL, parts, 3);
    params_split(p, m->a_log, SPLIT_COLUMN_PARALLEL, NULL, 0);
    params_split(p, m->dt_bias, SPLIT_COLUMN_PARALLEL, NULL, 0);
    params_split(p, m->norm, SPLIT_PARTIAL_GRAD, NULL, 0);
    snprintf(full, sizeof full, "%s.out", name);
    linear_init(&m->out, p, full, ROLE_RESIDUAL, spec->hidden_size, value_width(m), BIAS_NONE);
    linear_split(&m->out, p, SPLIT_ROW_PARALLEL, NULL, 0);
    m->heads_k /= params_tp_size(p); /* from here on: heads of this rank */
    m->heads /= params_tp_size(p);
}

/* The heads of one of several context-parallel ranks. */
static struct gdn gdn_part(const struct gdn *m, int share, int shares)
{
    struct gdn part = *m;
    if (shares <= 1) return part;
    part.heads_k /= shares, part.heads /= shares, part.in.out /= shares;
    part.share = share, part.shares = shares;
    return part;
}
static struct gdn heads_here(const struct gdn *m, const struct batch *b, const struct exec *r)
{
    return b->context ? gdn_part(m, comm_rank(r->cp), comm_ranks(r->cp)) : *m;
}

/* Of a parameter with an element per value head, the first element of these heads. */
static const void *exact_of(const struct gdn *m, const struct exec *r, int row)
{
    return (const char *)params_exact(r->params, row) +
           (size_t)(m->share * m->heads) * dtype_bytes(dtype_acc(r->params->dt));
}
static void *grad_of(const struct gdn *m, const struct exec *r, int row)
{
    return (char *)params_grad(r->params, row) +
           (size_t)(m->share * m->heads) * dtype_bytes(dtype_acc(r->params->dt));
}

/* Runs of channels of the convolution whose rows of weights are contiguous. */
struct conv_run {
    int64_t at, weight, count;
};
static int conv_runs(const struct gdn *m, struct conv_run out[3])
{
    const int64_t keys = key_width(m), values = value_width(m), all = m->shares * keys;
    out[0] = (struct conv_run){0, 0, channels(m)};
    if (m->shares <= 1) return 1;
    out[0] = (struct conv_run){0, m->share * keys, keys};
    out[1] = (struct conv_run){keys, all + m->share * keys, keys};
    out[2] = (struct conv_run){2 * keys, 2 * all + m->share * values, values};
    return 3;
}

enum exchanged { PROJECTIONS, PROJECTION_GRADS, GATED, GATED_GRADS };
/* Between rows of this rank and heads of this rank; nothing without context parallelism. */
static status exchange(const struct gdn *m, const struct gdn_saved *s, enum exchanged what,
                       const struct batch *b, const struct exec *r)
{
    if (b->context == NULL) return STATUS_OK;
    const int64_t keys = key_width(m), values = value_width(m),
                  widths[] = {keys, keys, values, values, m->heads, m->heads};
    const bool grads = what == PROJECTION_GRADS;
    if (what == GATED || what == GATED_GRADS) {
        const struct context_part part = {.rows = what == GATED ? s->gated : s->rows_do,
                                          .all = what == GATED ? s->all_gated : s->do_,
                                          .width = values};
        return context_heads_exchange(&s->heads, &part, 1, what == GATED ? CONTEXT_TO_ROWS : CONTEXT_TO_HEADS,
                                      b->context, r);
    }
    struct context_part parts[6];
    int64_t at = 0;
    for (int i = 0; i < 6; at += widths[i++])
        parts[i] = (struct context_part){.rows = grads ? s->rows_din : s->rows_in,
                                         .at = at,
                                         .all = grads ? s->din : s->in,
                                         .all_at = at / s->ranks,
                                         .width = widths[i]};
    return context_heads_exchange(&s->heads, parts, 6, grads ? CONTEXT_TO_ROWS : CONTEXT_TO_HEADS, b->context,
                                  r);
}

static struct delta_shape shape_of(const struct gdn *m, int64_t docs, int64_t rows, dtype dt)
{
    return (struct delta_shape){.docs = docs,
                                .rows = rows,
                                .heads = m->heads,
                                .heads_k = m->heads_k,
                                .dk = m->dk,
                                .dv = m->dv,
                                .dt = dt};
}

/* Tensors of this rank's rows, beside those of its heads. */
static void rows_layout(const struct gdn *whole, struct gdn_saved *s, const struct layout *l)
{
    const int64_t wide = value_width(whole);
    s->rows_in = s->in, s->rows_din = s->din, s->rows_do = s->do_, s->all_gated = s->gated;
    if (s->ranks == 1) return;
    context_heads_layout(&s->heads, whole->in.out, l);
    s->rows_in = s->rows_din =
        tensor_take(l->scratch, "gdn projections by row", l->dt, 2, l->n, whole->in.out);
    s->all_gated =
        tensor_take(l->scratch, "gdn gated output by head", l->dt, 2, l->n * s->ranks, wide / s->ranks);
    if (l->mode == LAYOUT_TRAIN)
        s->rows_do = tensor_take(l->scratch, "gdn output gradient by row", l->dt, 2, l->n, wide);
}

void gdn_layout(const struct gdn *whole, struct gdn_saved *s, const struct layout *l)
{
    const int ranks = l->cp_size > 1 ? l->cp_size : 1;
    const int64_t n = l->n * ranks;
    const struct gdn part = gdn_part(whole, 0, ranks), *m = &part;
    struct arena *keep = layout_arena(l, RECOMPUTE_FULL), *cheap = layout_arena(l, RECOMPUTE_SELECTIVE);
    const dtype acc = dtype_acc(l->dt);
    const struct delta_shape shape = shape_of(m, l->docs_max * ranks, n, l->dt);
    *s = (struct gdn_saved){.in = tensor_take(keep, "gdn projections", l->dt, 2, n, m->in.out),
                            .conv = tensor_take(cheap, "gdn convolution", l->dt, 2, n, channels(m)),
                            .g = tensor_take(keep, "gdn decay", acc, 2, n, m->heads),
                            .beta = tensor_take(keep, "gdn beta", acc, 2, n, m->heads),
                            .o = tensor_take(keep, "gdn output", l->dt, 2, n, value_width(m)),
                            .rstd = tensor_take(keep, "gdn rstd", acc, 2, n, m->heads),
                            .gated =
                                tensor_take(cheap, "gdn gated output", l->dt, 2, l->n, value_width(whole)),
                            .conv_kept = l->mode == LAYOUT_TRAIN && l->recompute < RECOMPUTE_SELECTIVE,
                            .ranks = ranks};
    linear_layout(&whole->in, &s->in_saved, linear_given_y(l), l);
    linear_layout(&whole->out, &s->out_saved, linear_given_dout(l), l);
    if (l->mode == LAYOUT_TRAIN)
        s->saved =
            tensor_take(keep, "gdn states", DTYPE_U8, 1, (int64_t)l->ops->delta_bytes(&shape, DELTA_SAVED));
    s->scratch_fwd = tensor_take(l->scratch, "gdn forward scratch", DTYPE_U8, 1,
                                 (int64_t)l->ops->delta_bytes(&shape, DELTA_FWD));
    if (l->mode != LAYOUT_TRAIN) {
        rows_layout(whole, s, l);
        return;
    }
    s->scratch_bwd = tensor_take(l->scratch, "gdn backward scratch", DTYPE_U8, 1,
                                 (int64_t)l->ops->delta_bytes(&shape, DELTA_BWD));
    s->din = tensor_take(l->scratch, "gdn projection gradients", l->dt, 2, n, m->in.out);
    s->dconv = tensor_take(l->scratch, "gdn convolution gradient", l->dt, 2, n, channels(m));
    s->do_ = tensor_take(l->scratch, "gdn output gradient", l->dt, 2, n, value_width(m));
    s->dg = tensor_take(l->scratch, "gdn decay gradient", acc, 2, n, m->heads);
    s->dbeta = tensor_take(l->scratch, "gdn beta gradient", acc, 2, n, m->heads);
    rows_layout(whole, s, l);
}

void gdn_rows(struct gdn_saved *s, int64_t rows)
{
    struct tensor *all[] = {&s->in,  &s->conv,  &s->g,   &s->beta, &s->o,     &s->rstd,
                            &s->din, &s->dconv, &s->do_, &s->dg,   &s->dbeta, &s->all_gated};
    struct tensor *own[] = {&s->gated, &s->rows_in, &s->rows_din, &s->rows_do};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) tensor_rows(all[i], rows * s->ranks);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) tensor_rows(own[i], rows);
}

static status convolve(const struct gdn *m, const struct gdn_saved *s, const struct batch *b,
                       const void *before, const struct exec *r)
{
    const size_t element = dtype_bytes(s->in.dt);
    struct conv_run runs[3];
    const int count = conv_runs(m, runs);
    for (int i = 0; i < count; i++) {
        const char *w = params_weight(r->params, m->conv);
        TRY(r->ops->conv_fwd(&(struct conv_fwd_args){.x = tensor_column(s->in, runs[i].at),
                                                     .w = w + (size_t)(runs[i].weight * m->width) * element,
                                                     .before = before,
                                                     .y = tensor_column(s->conv, runs[i].at),
                                                     .x_stride = m->in.out,
                                                     .y_stride = channels(m),
                                                     .cu_seqlens = b->cu_seqlens,
                                                     .docs = b->docs,
                                                     .rows = b->rows,
                                                     .channels = runs[i].count,
                                                     .width = m->width,
                                                     .dt = s->in.dt},
                             r->stream));
    }
    return STATUS_OK;
}

static status gate(const struct gdn *m, const struct gdn_saved *s, const struct batch *b,
                   const struct exec *r)
{
    return r->ops->gated_norm_fwd(&(struct gated_norm_fwd_args){.x = s->o.data,
                                                                .z = tensor_column(s->in, z_at(m)),
                                                                .w = params_weight(r->params, m->norm),
                                                                .y = s->all_gated.data,
                                                                .rstd = s->rstd.data,
                                                                .rows = b->rows,
                                                                .heads = m->heads,
                                                                .d = m->dv,
                                                                .z_stride = m->in.out,
                                                                .eps = m->eps,
                                                                .dt = s->o.dt},
                                  r->stream);
}

status gdn_core(const struct gdn *m, const struct gdn_saved *s, const struct batch *b,
                const struct gdn_carry *carry, const struct exec *r)
{
    TRY(convolve(m, s, b, carry->before, r));
    TRY(r->ops->gates_fwd(&(struct gates_fwd_args){.a = tensor_column(s->in, a_at(m)),
                                                   .b = tensor_column(s->in, b_at(m)),
                                                   .a_log = exact_of(m, r, m->a_log),
                                                   .dt_bias = exact_of(m, r, m->dt_bias),
                                                   .g = s->g.data,
                                                   .beta = s->beta.data,
                                                   .rows = b->rows,
                                                   .heads = m->heads,
                                                   .stride = m->in.out,
                                                   .dt = s->in.dt},
                          r->stream));
    TRY(r->ops->delta_fwd(&(struct delta_fwd_args){.q = s->conv.data,
                                                   .k = tensor_column(s->conv, key_width(m)),
                                                   .v = tensor_column(s->conv, 2 * key_width(m)),
                                                   .g = s->g.data,
                                                   .beta = s->beta.data,
                                                   .o = s->o.data,
                                                   .saved = s->saved.data,
                                                   .state_in = carry->state_in,
                                                   .state_out = carry->state_out,
                                                   .q_stride = channels(m),
                                                   .k_stride = channels(m),
                                                   .v_stride = channels(m),
                                                   .cu_seqlens = b->cu_seqlens,
                                                   .shape = shape_of(m, b->docs, b->rows, s->conv.dt),
                                                   .scale = 1 / sqrt((double)m->dk),
                                                   .normalize = true,
                                                   .scratch = s->scratch_fwd.data},
                          r->stream));
    return gate(m, s, b, r);
}

status gdn_fwd(const struct gdn *m, struct gdn_saved *s, const struct layer_ctx *c, struct tensor y,
               struct branch_dst out, const struct exec *r)
{
    const struct gdn here = heads_here(m, c->batch, r);
    TRY(linear_fwd(&m->in, &s->in_saved, y, s->rows_in, r));
    TRY(exchange(m, s, PROJECTIONS, c->batch, r));
    TRY(gdn_core(&here, s, context_full_batch(c->batch), &(struct gdn_carry){0}, r));
    TRY(exchange(m, s, GATED, c->batch, r));
    return linear_last(&m->out, &s->out_saved, s->gated, out, r);
}

static status delta_bwd(const struct gdn *m, const struct gdn_saved *s, const struct batch *b,
                        const struct exec *r)
{
    const int64_t n = channels(m);
    return r->ops->delta_bwd(&(struct delta_bwd_args){.q = s->conv.data,
                                                      .k = tensor_column(s->conv, key_width(m)),
                                                      .v = tensor_column(s->conv, 2 * key_width(m)),
                                                      .g = s->g.data,
                                                      .beta = s->beta.data,
                                                      .do_ = s->do_.data,
                                                      .saved = s->saved.data,
                                                      .dq = s->dconv.data,
                                                      .dk = tensor_column(s->dconv, key_width(m)),
                                                      .dv = tensor_column(s->dconv, 2 * key_width(m)),
                                                      .dg = s->dg.data,
                                                      .dbeta = s->dbeta.data,
                                                      .q_stride = n,
                                                      .k_stride = n,
                                                      .v_stride = n,
                                                      .dq_stride = n,
                                                      .dk_stride = n,
                                                      .dv_stride = n,
                                                      .cu_seqlens = b->cu_seqlens,
                                                      .shape = shape_of(m, b->docs, b->rows, s->conv.dt),
                                                      .scale = 1 / sqrt((double)m->dk),
                                                      .normalize = true,
                                                      .scratch = s->scratch_bwd.data},
                             r->stream);
}

static status convolve_bwd(const struct gdn *m, const struct gdn_saved *s, const struct batch *b,
                           const struct exec *r)
{
    const size_t element = dtype_bytes(s->in.dt), acc = dtype_bytes(dtype_acc(r->params->dt));
    struct conv_run runs[3];
    const int count = conv_runs(m, runs);
    for (int i = 0; i < count; i++) {
        const char *w = params_weight(r->params, m->conv);
        char *dw = params_grad(r->params, m->conv);
        const size_t first = (size_t)(runs[i].weight * m->width);
        TRY(r->ops->conv_bwd(&(struct conv_bwd_args){.dy = tensor_column(s->dconv, runs[i].at),
                                                     .x = tensor_column(s->in, runs[i].at),
                                                     .w = w + first * element,
                                                     .dx = tensor_column(s->din, runs[i].at),
                                                     .dw = dw + first * acc,
                                                     .dy_stride = channels(m),
                                                     .x_stride = m->in.out,
                                                     .dx_stride = m->in.out,
                                                     .cu_seqlens = b->cu_seqlens,
                                                     .docs = b->docs,
                                                     .rows = b->rows,
                                                     .channels = runs[i].count,
                                                     .width = m->width,
                                                     .dt = s->in.dt},
                             r->stream));
    }
    return STATUS_OK;
}

/* From the gradients of the core's inputs to din, the gradient of the projection's output. */
static status inputs_bwd(const struct gdn *m, const struct gdn_saved *s, const struct batch *b,
                         const struct exec *r)
{
    TRY(r->ops->gates_bwd(&(struct gates_bwd_args){.dg = s->dg.data,
                                                   .dbeta = s->dbeta.data,
                                                   .a = tensor_column(s->in, a_at(m)),
                                                   .b = tensor_column(s->in, b_at(m)),
                                                   .a_log = exact_of(m, r, m->a_log),
                                                   .dt_bias = exact_of(m, r, m->dt_bias),
                                                   .da = tensor_column(s->din, a_at(m)),
                                                   .db = tensor_column(s->din, b_at(m)),
                                                   .da_log = grad_of(m, r, m->a_log),
                                                   .ddt_bias = grad_of(m, r, m->dt_bias),
                                                   .rows = b->rows,
                                                   .heads = m->heads,
                                                   .stride = m->in.out,
                                                   .d_stride = m->in.out,
                                                   .dt = s->in.dt},
                          r->stream));
    return convolve_bwd(m, s, b, r);
}

static status gate_bwd(const struct gdn *m, const struct gdn_saved *s, const struct batch *b,
                       const struct exec *r)
{
    return r->ops->gated_norm_bwd(&(struct gated_norm_bwd_args){.dy = s->do_.data,
                                                                .x = s->o.data,
                                                                .z = tensor_column(s->in, z_at(m)),
                                                                .w = params_weight(r->params, m->norm),
                                                                .rstd = s->rstd.data,
                                                                .dx = s->do_.data,
                                                                .dz = tensor_column(s->din, z_at(m)),
                                                                .dw = params_grad(r->params, m->norm),
                                                                .rows = b->rows,
                                                                .heads = m->heads,
                                                                .d = m->dv,
                                                                .z_stride = m->in.out,
                                                                .dz_stride = m->in.out,
                                                                .dt = s->o.dt},
                                  r->stream);
}

status gdn_bwd(const struct gdn *m, struct gdn_saved *s, const struct layer_ctx *c, struct tensor y,
               struct tensor dout, struct tensor dy, const struct exec *r)
{
    const struct batch *b = c->batch, *whole = context_full_batch(b);
    const struct gdn here = heads_here(m, b, r);
    if (!s->conv_kept) {
        TRY(convolve(&here, s, whole, NULL, r));
        TRY(gate(&here, s, whole, r));
        TRY(exchange(m, s, GATED, b, r));
    }
    TRY(linear_dgrad(&m->out, &s->out_saved, dout, s->rows_do, r));
    TRY(linear_wgrad(&m->out, &s->out_saved, s->gated, dout, r));
    TRY(exchange(m, s, GATED_GRADS, b, r));
    TRY(gate_bwd(&here, s, whole, r));
    TRY(delta_bwd(&here, s, whole, r));
    TRY(inputs_bwd(&here, s, whole, r));
    TRY(exchange(m, s, PROJECTION_GRADS, b, r));
    TRY(linear_dgrad(&m->in, &s->in_saved, s->rows_din, dy, r)); /* first: communication may wait for it */
    return linear_wgrad(&m->in, &s->in_saved, y, s->rows_din, r);
}

/* ---- computed from the spec alone */

static status check(const struct model_spec *m)
{
    if (m->gdn_key_heads == 0 || m->gdn_value_heads == 0)
        return FAIL(STATUS_CONFIG,
                    "model.layers names gdn: set model.gdn_key_heads and model.gdn_value_heads");
    if (m->gdn_value_heads % m->gdn_key_heads != 0)
        return FAIL(STATUS_CONFIG, "model.gdn_value_heads %lld is not a multiple of model.gdn_key_heads %lld",
                    (long long)m->gdn_value_heads, (long long)m->gdn_key_heads);
    return STATUS_OK;
}

static status check_gpu(const struct model_spec *m)
{
    if (m->gdn_key_dim <= DELTA_KEYS_CUDA_MAX) return STATUS_OK;
    return FAIL(STATUS_CONFIG,
                "model.gdn_key_dim %lld: a GPU's kernels take at most %d; use --machine.device=cpu",
                (long long)m->gdn_key_dim, (int)DELTA_KEYS_CUDA_MAX);
}

static int widths(struct model_spec *m, struct layer_width out[LAYER_WIDTHS_MAX])
{
    out[0] = (struct layer_width){"gdn_key_heads", &m->gdn_key_heads};
    out[1] = (struct layer_width){"gdn_value_heads", &m->gdn_value_heads};
    return 2;
}

static int gemms(const struct model_spec *m, struct layer_gemm *out, int n)
{
    const int64_t d = m->hidden_size, keys = m->gdn_key_heads * m->gdn_key_dim,
                  values = m->gdn_value_heads * m->gdn_value_dim;
    n = layer_gemm_add(out, n, d, 2 * keys + 2 * values + 2 * m->gdn_value_heads);
    return layer_gemm_add(out, n, values, d);
}

/* The delta rule in chunks of 64 rows: states, GEMMs inside a chunk, the triangular solve. */
static double core_flops(const struct model_spec *m, int64_t layer, int64_t t)
{
    const double heads = (double)m->gdn_value_heads, dk = (double)m->gdn_key_dim,
                 dv = (double)m->gdn_value_dim, chunk = 64;
    (void)layer;
    (void)t;
    return heads * (6 * dk * dv + 2 * chunk * (3 * dk + 2 * dv) + 2 * chunk * chunk / 3);
}

/* mfu_full counts the scores of softmax attention only. */
static double square_flops(const struct model_spec *m, int64_t t)
{
    (void)m;
    (void)t;
    return 0;
}

static struct mixer_flow flow(const struct model_spec *m)
{
    const int64_t keys = m->gdn_key_heads * m->gdn_key_dim, values = m->gdn_value_heads * m->gdn_value_dim;
    return (struct mixer_flow){.query = 3 * (double)values, .key = 4 * (double)keys, .linear = true};
}

const struct layer_traits gdn_traits = {.check = check,
                                        .check_gpu = check_gpu,
                                        .widths = widths,
                                        .gemms = gemms,
                                        .core_flops = core_flops,
                                        .square_flops = square_flops,
                                        .mixer_flow = flow,
                                        .context = LAYER_CONTEXT_HEADS,
                                        .context_gpu = true};
