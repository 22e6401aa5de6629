#include "nn/mamba.h"
#include "spec/layer_traits.h"

#include <stdio.h>

static int64_t inner(const struct mamba *m)
{
    return m->heads * m->d;
}

/* Columns of `in` (z is at 0) and of `conv` (x is at 0), and of their gradients. */
int64_t mamba_channels(const struct mamba *m)
{
    return inner(m) + 2 * m->groups * m->state;
}
int64_t mamba_conv_at(const struct mamba *m)
{
    return inner(m);
}
static int64_t step_at(const struct mamba *m)
{
    return mamba_conv_at(m) + mamba_channels(m);
}
static int64_t b_at(const struct mamba *m)
{
    return inner(m);
}
static int64_t c_at(const struct mamba *m)
{
    return b_at(m) + m->groups * m->state;
}

void mamba_init(struct mamba *m, struct params *p, const char *name, const struct model_spec *spec,
                int64_t layer)
{
    (void)layer;
    char full[96];
    *m = (struct mamba){.heads = spec->mamba_heads,
                        .d = spec->mamba_head_dim,
                        .groups = spec->mamba_groups,
                        .state = spec->mamba_state,
                        .width = spec->mamba_conv,
                        .eps = spec->norm_eps};
    snprintf(full, sizeof full, "%s.in", name);
    linear_init(&m->in, p, full, ROLE_MATRIX, step_at(m) + m->heads, spec->hidden_size, BIAS_NONE);
    const int64_t states = m->groups * m->state,
                  parts[] = {inner(m), inner(m), states, states, m->heads}; /* z, x, B, C, dt */
    linear_split(&m->in, p, SPLIT_COLUMN_PARALLEL, parts, 5);
    m->conv = params_add(p, ROLE_CONV, 0, mamba_channels(m), m->width, "%s.conv.weight", name);
    params_split(p, m->conv, SPLIT_COLUMN_PARALLEL, parts + 1, 3);
    m->conv_bias = params_add(p, ROLE_BIAS, 0, mamba_channels(m), 0, "%s.conv.bias", name);
    params_split(p, m->conv_bias, SPLIT_COLUMN_PARALLEL, parts + 1, 3);
    m->a_log = params_add(p, ROLE_RATE, 0, m->heads, 0, "%s.A_log", name);
    p->rows[m->a_log].derived[DERIVED_F32] = true;
    m->dt_bias = params_add(p, ROLE_STEP, 0, m->heads, 0, "%s.dt_bias", name);
    p->rows[m->dt_bias].derived[DERIVED_F32] = true;
    m->skip = params_add(p, ROLE_BIAS, 1, m->heads, 0, "%s.D", name);
    p->rows[m->skip].derived[DERIVED_F32] = true;
    m->norm = params_add(p, ROLE_NORM, 1, inner(m), 0, "%s.norm.weight", name);
    const int by_head[] = {m->a_log, m->dt_bias, m->skip, m->norm};
    for (int i = 0; i < 4; i++) params_split(p, by_head[i], SPLIT_COLUMN_PARALLEL, NULL, 0);
    snprintf(full, sizeof full, "%s.out", name);
    linear_init(&m->out, p, full, ROLE_RESIDUAL, spec->hidden_size, inner(m), BIAS_NONE);
    linear_split(&m->out, p, SPLIT_ROW_PARALLEL, NULL, 0);
    m->heads /= params_tp_size(p); /* from here on: heads of this rank */
    m->groups /= params_tp_size(p);
}

/* The heads of one of several context-parallel ranks. */
static struct mamba mamba_part(const struct mamba *m, int share, int shares)
{
    struct mamba part = *m;
    if (shares <= 1) return part;
    part.heads /= shares, part.groups /= shares, part.in.out /= shares;
    part.share = share, part.shares = shares;
    return part;
}
static struct mamba heads_here(const struct mamba *m, const struct batch *b, const struct exec *r)
{
    return b->context ? mamba_part(m, comm_rank(r->cp), comm_ranks(r->cp)) : *m;
}

/* Of a parameter with an element per head, the first element of these heads. */
static const void *exact_of(const struct mamba *m, const struct exec *r, int row)
{
    return (const char *)params_exact(r->params, row) +
           (size_t)(m->share * m->heads) * dtype_bytes(dtype_acc(r->params->dt));
}
/* From element `at` of a parameter, and of its gradient, on. */
static const void *weight_from(const struct exec *r, int row, int64_t at)
{
    return (const char *)params_weight(r->params, row) + (size_t)at * dtype_bytes(r->params->dt);
}
static void *grad_from(const struct exec *r, int row, int64_t at)
{
    return (char *)params_grad(r->params, row) + (size_t)at * dtype_bytes(dtype_acc(r->params->dt));
}

/* Runs of channels of the convolution whose weights are contiguous. */
struct conv_run {
    int64_t at, weight, count;
};
static int conv_runs(const struct mamba *m, struct conv_run out[3])
{
    const int64_t wide = inner(m), states = m->groups * m->state;
    out[0] = (struct conv_run){0, 0, mamba_channels(m)};
    if (m->shares <= 1) return 1;
    out[0] = (struct conv_run){0, m->share * wide, wide};
    out[1] = (struct conv_run){wide, m->shares * wide + m->share * states, states};
    out[2] = (struct conv_run){wide + states, m->shares * (wide + states) + m->share * states, states};
    return 3;
}

enum exchanged { PROJECTIONS, PROJECTION_GRADS, NORMED, NORMED_GRADS };
/* Between rows of this rank and heads of this rank; nothing without context parallelism. */
static status exchange(const struct mamba *m, const struct mamba_saved *s, enum exchanged what,
                       const struct batch *b, const struct exec *r)
{
    if (b->context == NULL) return STATUS_OK;
    const int64_t states = m->groups * m->state, widths[] = {inner(m), inner(m), states, states, m->heads};
    const bool grads = what == PROJECTION_GRADS;
    if (what == NORMED || what == NORMED_GRADS) {
        const struct context_part part = {.rows = what == NORMED ? s->normed : s->rows_ds,
                                          .all = what == NORMED ? s->all_normed : s->ds,
                                          .width = inner(m)};
        return context_heads_exchange(&s->heads_moved, &part, 1,
                                      what == NORMED ? CONTEXT_TO_ROWS : CONTEXT_TO_HEADS, b->context, r);
    }
    struct context_part parts[5];
    int64_t at = 0;
    for (int i = 0; i < 5; at += widths[i++])
        parts[i] = (struct context_part){.rows = grads ? s->rows_din : s->rows_in,
                                         .at = at,
                                         .all = grads ? s->din : s->in,
                                         .all_at = at / s->ranks,
                                         .width = widths[i]};
    return context_heads_exchange(&s->heads_moved, parts, 5, grads ? CONTEXT_TO_ROWS : CONTEXT_TO_HEADS,
                                  b->context, r);
}

static struct delta_shape shape_of(const struct mamba *m, int64_t docs, int64_t rows, dtype dt)
{
    return (struct delta_shape){.docs = docs,
                                .rows = rows,
                                .heads = m->heads,
                                .heads_k = m->groups,
                                .dk = m->state,
                                .dv = m->d,
                                .dt = dt};
}

/* Tensors of this rank's rows, beside those of its heads. */
static void rows_layout(const struct mamba *whole, struct mamba_saved *s, const struct layout *l)
{
    const int64_t wide = inner(whole);
    s->rows_in = s->in, s->rows_din = s->din, s->rows_ds = s->ds, s->all_normed = s->normed;
    if (s->ranks == 1) return;
    context_heads_layout(&s->heads_moved, whole->in.out, l);
    s->rows_in = s->rows_din =
        tensor_take(l->scratch, "mamba2 projections by row", l->dt, 2, l->n, whole->in.out);
    s->all_normed =
        tensor_take(l->scratch, "mamba2 normed output by head", l->dt, 2, l->n * s->ranks, wide / s->ranks);
    if (l->mode == LAYOUT_TRAIN)
        s->rows_ds = tensor_take(l->scratch, "mamba2 output gradient by row", l->dt, 2, l->n, wide);
}

void mamba_layout(const struct mamba *whole, struct mamba_saved *s, const struct layout *l)
{
    const int ranks = l->cp_size > 1 ? l->cp_size : 1;
    const int64_t n = l->n * ranks;
    const struct mamba part = mamba_part(whole, 0, ranks), *m = &part;
    struct arena *keep = layout_arena(l, RECOMPUTE_FULL), *cheap = layout_arena(l, RECOMPUTE_SELECTIVE);
    const dtype acc = dtype_acc(l->dt);
    const struct delta_shape shape = shape_of(m, l->docs_max * ranks, n, l->dt);
    const int64_t wide = inner(m), channels = mamba_channels(m);
    *s = (struct mamba_saved){.in = tensor_take(keep, "mamba2 projections", l->dt, 2, n, m->in.out),
                              .conv = tensor_take(cheap, "mamba2 convolution", l->dt, 2, n, channels),
                              .step = tensor_take(keep, "mamba2 steps", acc, 2, n, m->heads),
                              .g = tensor_take(keep, "mamba2 decay", acc, 2, n, m->heads),
                              .v = tensor_take(cheap, "mamba2 values", l->dt, 2, n, wide),
                              .o = tensor_take(keep, "mamba2 output", l->dt, 2, n, wide),
                              .gated = tensor_take(cheap, "mamba2 gated output", l->dt, 2, n, wide),
                              .rstd = tensor_take(keep, "mamba2 rstd", acc, 2, n, m->groups),
                              .normed =
                                  tensor_take(cheap, "mamba2 normed output", l->dt, 2, l->n, inner(whole)),
                              .kept = l->mode == LAYOUT_TRAIN && l->recompute < RECOMPUTE_SELECTIVE,
                              .ranks = ranks};
    linear_layout(&whole->in, &s->in_saved, linear_given_y(l), l);
    linear_layout(&whole->out, &s->out_saved, linear_given_dout(l), l);
    if (l->mode == LAYOUT_TRAIN)
        s->saved = tensor_take(keep, "mamba2 states", DTYPE_U8, 1,
                               (int64_t)l->ops->delta_bytes(&shape, DELTA_SAVED));
    s->scratch_fwd = tensor_take(l->scratch, "mamba2 forward scratch", DTYPE_U8, 1,
                                 (int64_t)l->ops->delta_bytes(&shape, DELTA_FWD));
    if (l->mode != LAYOUT_TRAIN) {
        rows_layout(whole, s, l);
        return;
    }
    s->scratch_bwd = tensor_take(l->scratch, "mamba2 backward scratch", DTYPE_U8, 1,
                                 (int64_t)l->ops->delta_bytes(&shape, DELTA_BWD));
    s->din = tensor_take(l->scratch, "mamba2 projection gradients", l->dt, 2, n, m->in.out);
    s->dconv = tensor_take(l->scratch, "mamba2 convolution gradient", l->dt, 2, n, channels);
    s->ds = tensor_take(l->scratch, "mamba2 output gradient", l->dt, 2, n, wide);
    s->dv = tensor_take(l->scratch, "mamba2 value gradient", l->dt, 2, n, wide);
    s->dg = tensor_take(l->scratch, "mamba2 decay gradient", acc, 2, n, m->heads);
    rows_layout(whole, s, l);
}

void mamba_rows(struct mamba_saved *s, int64_t rows)
{
    struct tensor *all[] = {&s->in,   &s->conv, &s->step,  &s->g,  &s->v,  &s->o,  &s->gated,
                            &s->rstd, &s->din,  &s->dconv, &s->ds, &s->dv, &s->dg, &s->all_normed};
    struct tensor *own[] = {&s->normed, &s->rows_in, &s->rows_din, &s->rows_ds};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) tensor_rows(all[i], rows * s->ranks);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) tensor_rows(own[i], rows);
}

/* ---- forward */

static status convolve(const struct mamba *m, const struct mamba_saved *s, const struct batch *b,
                       const void *before, const struct exec *r)
{
    struct conv_run runs[3];
    const int count = conv_runs(m, runs);
    for (int i = 0; i < count; i++)
        TRY(r->ops->conv_fwd(&(struct conv_fwd_args){.x = tensor_column(s->in, mamba_conv_at(m) + runs[i].at),
                                                     .w = weight_from(r, m->conv, runs[i].weight * m->width),
                                                     .bias = weight_from(r, m->conv_bias, runs[i].weight),
                                                     .before = before,
                                                     .y = tensor_column(s->conv, runs[i].at),
                                                     .x_stride = m->in.out,
                                                     .y_stride = mamba_channels(m),
                                                     .cu_seqlens = b->cu_seqlens,
                                                     .docs = b->docs,
                                                     .rows = b->rows,
                                                     .channels = runs[i].count,
                                                     .width = m->width,
                                                     .dt = s->in.dt},
                             r->stream));
    return STATUS_OK;
}

/* The convolution, and the inputs of the scan. */
static status inputs(const struct mamba *m, const struct mamba_saved *s, const struct batch *b,
                     const void *before, const struct exec *r)
{
    const int64_t n = mamba_channels(m);
    TRY(convolve(m, s, b, before, r));
    return r->ops->ssm_in_fwd(&(struct ssm_in_fwd_args){.raw = tensor_column(s->in, step_at(m)),
                                                        .x = s->conv.data,
                                                        .a_log = exact_of(m, r, m->a_log),
                                                        .dt_bias = exact_of(m, r, m->dt_bias),
                                                        .step = s->step.data,
                                                        .g = s->g.data,
                                                        .v = s->v.data,
                                                        .rows = b->rows,
                                                        .heads = m->heads,
                                                        .d = m->d,
                                                        .raw_stride = m->in.out,
                                                        .x_stride = n,
                                                        .dt = s->in.dt},
                              r->stream);
}

/* Columns of a norm group, and its saved statistics. */
static int64_t group_width(const struct mamba *m)
{
    return inner(m) / m->groups;
}
static void *group_rstd(const struct mamba_saved *s, const struct batch *b, int64_t group)
{
    return (char *)s->rstd.data + (size_t)(group * b->rows) * dtype_bytes(s->rstd.dt);
}

static status norm_groups(const struct mamba *m, const struct mamba_saved *s, const struct batch *b,
                          const struct exec *r)
{
    const int64_t width = group_width(m);
    for (int64_t g = 0; g < m->groups; g++) {
        const int64_t at = m->share * inner(m) + g * width;
        TRY(r->ops->rmsnorm_fwd(&(struct rmsnorm_fwd_args){.x = tensor_column(s->gated, g * width),
                                                           .w = weight_from(r, m->norm, at),
                                                           .y = tensor_column(s->all_normed, g * width),
                                                           .rstd = group_rstd(s, b, g),
                                                           .rows = b->rows,
                                                           .d = width,
                                                           .x_stride = inner(m),
                                                           .y_stride = inner(m),
                                                           .eps = m->eps,
                                                           .dt = s->gated.dt},
                                r->stream));
    }
    return STATUS_OK;
}

/* ds: from the gradient of `normed` to that of `gated`. */
static status norm_groups_bwd(const struct mamba *m, const struct mamba_saved *s, const struct batch *b,
                              const struct exec *r)
{
    const int64_t width = group_width(m), wide = inner(m);
    for (int64_t g = 0; g < m->groups; g++) {
        const int64_t at = m->share * wide + g * width;
        TRY(r->ops->rmsnorm_bwd(&(struct rmsnorm_bwd_args){.dy = tensor_column(s->ds, g * width),
                                                           .s = tensor_column(s->gated, g * width),
                                                           .w = weight_from(r, m->norm, at),
                                                           .rstd = group_rstd(s, b, g),
                                                           .dx = tensor_column(s->ds, g * width),
                                                           .dw = grad_from(r, m->norm, at),
                                                           .rows = b->rows,
                                                           .d = width,
                                                           .dy_stride = wide,
                                                           .s_stride = wide,
                                                           .dx_stride = wide,
                                                           .dt = s->gated.dt},
                                r->stream));
    }
    return STATUS_OK;
}

/* Skip, gate and norm. */
static status outputs(const struct mamba *m, const struct mamba_saved *s, const struct batch *b,
                      const struct exec *r)
{
    TRY(r->ops->ssm_out_fwd(&(struct ssm_out_fwd_args){.o = s->o.data,
                                                       .x = s->conv.data,
                                                       .z = s->in.data,
                                                       .skip = exact_of(m, r, m->skip),
                                                       .y = s->gated.data,
                                                       .rows = b->rows,
                                                       .heads = m->heads,
                                                       .d = m->d,
                                                       .x_stride = mamba_channels(m),
                                                       .z_stride = m->in.out,
                                                       .dt = s->o.dt},
                            r->stream));
    return norm_groups(m, s, b, r);
}

status mamba_core(const struct mamba *m, const struct mamba_saved *s, const struct batch *b,
                  const struct mamba_carry *carry, const struct exec *r)
{
    const int64_t n = mamba_channels(m);
    TRY(inputs(m, s, b, carry->before, r));
    TRY(r->ops->delta_fwd(&(struct delta_fwd_args){.q = tensor_column(s->conv, c_at(m)),
                                                   .k = tensor_column(s->conv, b_at(m)),
                                                   .v = s->v.data,
                                                   .g = s->g.data,
                                                   .o = s->o.data,
                                                   .saved = s->saved.data,
                                                   .state_in = carry->state_in,
                                                   .state_out = carry->state_out,
                                                   .q_stride = n,
                                                   .k_stride = n,
                                                   .v_stride = inner(m),
                                                   .cu_seqlens = b->cu_seqlens,
                                                   .shape = shape_of(m, b->docs, b->rows, s->conv.dt),
                                                   .scale = 1,
                                                   .scratch = s->scratch_fwd.data},
                          r->stream));
    return outputs(m, s, b, r);
}

status mamba_fwd(const struct mamba *m, struct mamba_saved *s, const struct layer_ctx *c, struct tensor y,
                 struct branch_dst out, const struct exec *r)
{
    const struct mamba here = heads_here(m, c->batch, r);
    TRY(linear_fwd(&m->in, &s->in_saved, y, s->rows_in, r));
    TRY(exchange(m, s, PROJECTIONS, c->batch, r));
    TRY(mamba_core(&here, s, context_full_batch(c->batch), &(struct mamba_carry){0}, r));
    TRY(exchange(m, s, NORMED, c->batch, r));
    return linear_last(&m->out, &s->out_saved, s->normed, out, r);
}

/* ---- backward */

/* ds: from the gradient of `normed` to that of o + skip x; also computes z's gradient. */
static status outputs_bwd(const struct mamba *m, const struct mamba_saved *s, const struct batch *b,
                          const struct exec *r)
{
    TRY(norm_groups_bwd(m, s, b, r));
    return r->ops->ssm_out_bwd(&(struct ssm_out_bwd_args){.dy = s->ds.data,
                                                          .o = s->o.data,
                                                          .x = s->conv.data,
                                                          .z = s->in.data,
                                                          .skip = exact_of(m, r, m->skip),
                                                          .ds = s->ds.data,
                                                          .dz = s->din.data,
                                                          .rows = b->rows,
                                                          .heads = m->heads,
                                                          .d = m->d,
                                                          .x_stride = mamba_channels(m),
                                                          .z_stride = m->in.out,
                                                          .dz_stride = m->in.out,
                                                          .dt = s->o.dt},
                               r->stream);
}

static status states_bwd(const struct mamba *m, const struct mamba_saved *s, const struct batch *b,
                         const struct exec *r)
{
    const int64_t n = mamba_channels(m), wide = inner(m);
    return r->ops->delta_bwd(&(struct delta_bwd_args){.q = tensor_column(s->conv, c_at(m)),
                                                      .k = tensor_column(s->conv, b_at(m)),
                                                      .v = s->v.data,
                                                      .g = s->g.data,
                                                      .do_ = s->ds.data,
                                                      .saved = s->saved.data,
                                                      .dq = tensor_column(s->dconv, c_at(m)),
                                                      .dk = tensor_column(s->dconv, b_at(m)),
                                                      .dv = s->dv.data,
                                                      .dg = s->dg.data,
                                                      .q_stride = n,
                                                      .k_stride = n,
                                                      .v_stride = wide,
                                                      .dq_stride = n,
                                                      .dk_stride = n,
                                                      .dv_stride = wide,
                                                      .cu_seqlens = b->cu_seqlens,
                                                      .shape = shape_of(m, b->docs, b->rows, s->conv.dt),
                                                      .scale = 1,
                                                      .scratch = s->scratch_bwd.data},
                             r->stream);
}

static status convolve_bwd(const struct mamba *m, const struct mamba_saved *s, const struct batch *b,
                           const struct exec *r)
{
    struct conv_run runs[3];
    const int count = conv_runs(m, runs);
    for (int i = 0; i < count; i++)
        TRY(r->ops->conv_bwd(
            &(struct conv_bwd_args){.dy = tensor_column(s->dconv, runs[i].at),
                                    .x = tensor_column(s->in, mamba_conv_at(m) + runs[i].at),
                                    .w = weight_from(r, m->conv, runs[i].weight * m->width),
                                    .bias = weight_from(r, m->conv_bias, runs[i].weight),
                                    .dx = tensor_column(s->din, mamba_conv_at(m) + runs[i].at),
                                    .dw = grad_from(r, m->conv, runs[i].weight * m->width),
                                    .dbias = grad_from(r, m->conv_bias, runs[i].weight),
                                    .dy_stride = mamba_channels(m),
                                    .x_stride = m->in.out,
                                    .dx_stride = m->in.out,
                                    .cu_seqlens = b->cu_seqlens,
                                    .docs = b->docs,
                                    .rows = b->rows,
                                    .channels = runs[i].count,
                                    .width = m->width,
                                    .dt = s->in.dt},
            r->stream));
    return STATUS_OK;
}

static status inputs_bwd(const struct mamba *m, const struct mamba_saved *s, const struct batch *b,
                         const struct exec *r)
{
    const int64_t n = mamba_channels(m);
    TRY(r->ops->ssm_in_bwd(
        &(struct ssm_in_bwd_args){.dg = s->dg.data,
                                  .dv = s->dv.data,
                                  .ds = s->ds.data,
                                  .raw = tensor_column(s->in, step_at(m)),
                                  .x = s->conv.data,
                                  .step = s->step.data,
                                  .a_log = exact_of(m, r, m->a_log),
                                  .dt_bias = exact_of(m, r, m->dt_bias),
                                  .skip = exact_of(m, r, m->skip),
                                  .draw = tensor_column(s->din, step_at(m)),
                                  .dx = s->dconv.data,
                                  .da_log = grad_from(r, m->a_log, m->share * m->heads),
                                  .ddt_bias = grad_from(r, m->dt_bias, m->share * m->heads),
                                  .dskip = grad_from(r, m->skip, m->share * m->heads),
                                  .rows = b->rows,
                                  .heads = m->heads,
                                  .d = m->d,
                                  .raw_stride = m->in.out,
                                  .x_stride = n,
                                  .draw_stride = m->in.out,
                                  .dx_stride = n,
                                  .dt = s->in.dt},
        r->stream));
    return convolve_bwd(m, s, b, r);
}

status mamba_bwd(const struct mamba *m, struct mamba_saved *s, const struct layer_ctx *c, struct tensor y,
                 struct tensor dout, struct tensor dy, const struct exec *r)
{
    const struct batch *b = c->batch, *whole = context_full_batch(b);
    const struct mamba here = heads_here(m, b, r);
    if (!s->kept) {
        TRY(inputs(&here, s, whole, NULL, r));
        TRY(outputs(&here, s, whole, r));
        TRY(exchange(m, s, NORMED, b, r));
    }
    TRY(linear_dgrad(&m->out, &s->out_saved, dout, s->rows_ds, r));
    TRY(linear_wgrad(&m->out, &s->out_saved, s->normed, dout, r));
    TRY(exchange(m, s, NORMED_GRADS, b, r));
    TRY(outputs_bwd(&here, s, whole, r));
    TRY(states_bwd(&here, s, whole, r));
    TRY(inputs_bwd(&here, s, whole, r));
    TRY(exchange(m, s, PROJECTION_GRADS, b, r));
    TRY(linear_dgrad(&m->in, &s->in_saved, s->rows_din, dy, r)); /* first: communication may wait for it */
    return linear_wgrad(&m->in, &s->in_saved, y, s->rows_din, r);
}

/* ---- computed from the spec alone */

static status check(const struct model_spec *m)
{
    if (m->mamba_heads == 0) return FAIL(STATUS_CONFIG, "model.layers names mamba2: set model.mamba_heads");
    if (m->mamba_groups == 0 || m->mamba_heads % m->mamba_groups != 0)
        return FAIL(STATUS_CONFIG, "model.mamba_heads %lld is not a multiple of model.mamba_groups %lld",
                    (long long)m->mamba_heads, (long long)m->mamba_groups);
    return STATUS_OK;
}

static status check_gpu(const struct model_spec *m)
{
    if (m->mamba_state <= DELTA_KEYS_CUDA_MAX) return STATUS_OK;
    return FAIL(STATUS_CONFIG,
                "model.mamba_state %lld: a GPU's kernels take at most %d; use --machine.device=cpu",
                (long long)m->mamba_state, (int)DELTA_KEYS_CUDA_MAX);
}

static int widths(struct model_spec *m, struct layer_width out[LAYER_WIDTHS_MAX])
{
    out[0] = (struct layer_width){"mamba_heads", &m->mamba_heads};
    out[1] = (struct layer_width){"mamba_groups", &m->mamba_groups};
    return 2;
}

static int gemms(const struct model_spec *m, struct layer_gemm *out, int n)
{
    const int64_t d = m->hidden_size, wide = m->mamba_heads * m->mamba_head_dim,
                  states = m->mamba_groups * m->mamba_state;
    n = layer_gemm_add(out, n, d, 2 * wide + 2 * states + m->mamba_heads);
    return layer_gemm_add(out, n, wide, d);
}

/* Chunks as for the delta rule, without the delta term: states, and two GEMMs inside a chunk. */
static double core_flops(const struct model_spec *m, int64_t layer, int64_t t)
{
    const double heads = (double)m->mamba_heads, p = (double)m->mamba_head_dim,
                 state = (double)m->mamba_state, chunk = 64;
    (void)layer;
    (void)t;
    return heads * (4 * state * p + 2 * chunk * (state + p));
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
    const int64_t wide = m->mamba_heads * m->mamba_head_dim, states = m->mamba_groups * m->mamba_state;
    return (struct mixer_flow){.query = 3 * (double)wide, .key = 4 * (double)states, .linear = true};
}

const struct layer_traits mamba_traits = {.check = check,
                                          .check_gpu = check_gpu,
                                          .widths = widths,
                                          .gemms = gemms,
                                          .core_flops = core_flops,
                                          .square_flops = square_flops,
                                          .mixer_flow = flow,
                                          .context = LAYER_CONTEXT_HEADS,
                                          .context_gpu = true};
