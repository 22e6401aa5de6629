#include "nn/mamba.h"
#include "spec/layer_traits.h"

#include <stdio.h>

static int64_t inner(const struct mamba *m)
{
    return m->heads * m->d;
}
static void *column(struct tensor t, int64_t at)
{
    return t.data ? (char *)t.data + (size_t)at * dtype_bytes(t.dt) : NULL;
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
    linear_split(&m->in, p, SPLIT_OUT, parts, 5);
    m->conv = params_add(p, ROLE_CONV, 0, mamba_channels(m), m->width, "%s.conv.weight", name);
    params_split(p, m->conv, SPLIT_OUT, parts + 1, 3);
    m->conv_bias = params_add(p, ROLE_BIAS, 0, mamba_channels(m), 0, "%s.conv.bias", name);
    params_split(p, m->conv_bias, SPLIT_OUT, parts + 1, 3);
    m->a_log = params_add(p, ROLE_RATE, 0, m->heads, 0, "%s.A_log", name);
    p->rows[m->a_log].derived[DERIVED_F32] = true;
    m->dt_bias = params_add(p, ROLE_STEP, 0, m->heads, 0, "%s.dt_bias", name);
    p->rows[m->dt_bias].derived[DERIVED_F32] = true;
    m->skip = params_add(p, ROLE_BIAS, 1, m->heads, 0, "%s.D", name);
    p->rows[m->skip].derived[DERIVED_F32] = true;
    m->norm = params_add(p, ROLE_NORM, 1, inner(m), 0, "%s.norm.weight", name);
    const int by_head[] = {m->a_log, m->dt_bias, m->skip, m->norm};
    for (int i = 0; i < 4; i++) params_split(p, by_head[i], SPLIT_OUT, NULL, 0);
    snprintf(full, sizeof full, "%s.out", name);
    linear_init(&m->out, p, full, ROLE_RESIDUAL, spec->hidden_size, inner(m), BIAS_NONE);
    linear_split(&m->out, p, SPLIT_IN, NULL, 0);
    m->heads /= params_slices(p); /* from here on: heads of this rank */
    m->groups /= params_slices(p);
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

void mamba_lay(const struct mamba *m, struct mamba_saved *s, const struct lay *l)
{
    struct arena *keep = lay_place(l, RECOMPUTE_FULL), *cheap = lay_place(l, RECOMPUTE_SELECTIVE);
    const dtype acc = dtype_acc(l->dt);
    const struct delta_shape shape = shape_of(m, l->docs_max, l->n, l->dt);
    const int64_t wide = inner(m), channels = mamba_channels(m);
    *s = (struct mamba_saved){.in = tensor_take(keep, "mamba2 projections", l->dt, 2, l->n, m->in.out),
                              .conv = tensor_take(cheap, "mamba2 convolution", l->dt, 2, l->n, channels),
                              .step = tensor_take(keep, "mamba2 steps", acc, 2, l->n, m->heads),
                              .g = tensor_take(keep, "mamba2 decay", acc, 2, l->n, m->heads),
                              .v = tensor_take(cheap, "mamba2 values", l->dt, 2, l->n, wide),
                              .o = tensor_take(keep, "mamba2 output", l->dt, 2, l->n, wide),
                              .gated = tensor_take(cheap, "mamba2 gated output", l->dt, 2, l->n, wide),
                              .rstd = tensor_take(keep, "mamba2 rstd", acc, 2, l->n, m->groups),
                              .normed = tensor_take(cheap, "mamba2 normed output", l->dt, 2, l->n, wide),
                              .kept = l->mode == LAY_TRAIN && l->recompute < RECOMPUTE_SELECTIVE};
    linear_lay(&m->in, &s->in_saved, linear_given_y(l), l);
    linear_lay(&m->out, &s->out_saved, linear_given_dout(l), l);
    if (l->mode == LAY_TRAIN)
        s->saved = tensor_take(keep, "mamba2 states", DTYPE_U8, 1,
                               (int64_t)l->ops->delta_bytes(&shape, DELTA_SAVED));
    s->scratch_fwd = tensor_take(l->scratch, "mamba2 forward scratch", DTYPE_U8, 1,
                                 (int64_t)l->ops->delta_bytes(&shape, DELTA_FWD));
    if (l->mode != LAY_TRAIN) return;
    s->scratch_bwd = tensor_take(l->scratch, "mamba2 backward scratch", DTYPE_U8, 1,
                                 (int64_t)l->ops->delta_bytes(&shape, DELTA_BWD));
    s->din = tensor_take(l->scratch, "mamba2 projection gradients", l->dt, 2, l->n, m->in.out);
    s->dconv = tensor_take(l->scratch, "mamba2 convolution gradient", l->dt, 2, l->n, channels);
    s->ds = tensor_take(l->scratch, "mamba2 output gradient", l->dt, 2, l->n, wide);
    s->dv = tensor_take(l->scratch, "mamba2 value gradient", l->dt, 2, l->n, wide);
    s->dg = tensor_take(l->scratch, "mamba2 decay gradient", acc, 2, l->n, m->heads);
}

void mamba_rows(struct mamba_saved *s, int64_t rows)
{
    struct tensor *all[] = {&s->in,   &s->conv,   &s->step, &s->g,     &s->v,  &s->o,  &s->gated,
                            &s->rstd, &s->normed, &s->din,  &s->dconv, &s->ds, &s->dv, &s->dg};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) tensor_rows(all[i], rows);
}

/* ---- forward */

/* The convolution, and the inputs of the scan. */
static status inputs(const struct mamba *m, const struct mamba_saved *s, const struct batch *b,
                     const void *before, const struct exec *r)
{
    const struct params *p = r->params;
    const int64_t n = mamba_channels(m);
    TRY(r->ops->conv_fwd(&(struct conv_fwd_args){.x = column(s->in, mamba_conv_at(m)),
                                                 .w = params_weight(p, m->conv),
                                                 .bias = params_weight(p, m->conv_bias),
                                                 .before = before,
                                                 .y = s->conv.data,
                                                 .x_stride = m->in.out,
                                                 .y_stride = n,
                                                 .cu_seqlens = b->cu_seqlens,
                                                 .docs = b->docs,
                                                 .rows = b->rows,
                                                 .channels = n,
                                                 .width = m->width,
                                                 .dt = s->in.dt},
                         r->stream));
    return r->ops->ssm_in_fwd(&(struct ssm_in_fwd_args){.raw = column(s->in, step_at(m)),
                                                        .x = s->conv.data,
                                                        .a_log = params_exact(p, m->a_log),
                                                        .dt_bias = params_exact(p, m->dt_bias),
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
        const char *w = params_weight(r->params, m->norm);
        TRY(r->ops->rmsnorm_fwd(
            &(struct rmsnorm_fwd_args){.x = column(s->gated, g * width),
                                       .w = w + (size_t)(g * width) * dtype_bytes(r->params->dt),
                                       .y = column(s->normed, g * width),
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
        const char *w = params_weight(r->params, m->norm);
        char *dw = params_grad(r->params, m->norm);
        TRY(r->ops->rmsnorm_bwd(
            &(struct rmsnorm_bwd_args){.dy = column(s->ds, g * width),
                                       .s = column(s->gated, g * width),
                                       .w = w + (size_t)(g * width) * dtype_bytes(r->params->dt),
                                       .rstd = group_rstd(s, b, g),
                                       .dx = column(s->ds, g * width),
                                       .dw = dw + (size_t)(g * width) * dtype_bytes(dtype_acc(r->params->dt)),
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
                                                       .skip = params_exact(r->params, m->skip),
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
    TRY(r->ops->delta_fwd(&(struct delta_fwd_args){.q = column(s->conv, c_at(m)),
                                                   .k = column(s->conv, b_at(m)),
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

status mamba_fwd(const struct mamba *m, struct mamba_saved *s, const struct mix *c, struct tensor y,
                 struct sink out, const struct exec *r)
{
    TRY(linear_fwd(&m->in, &s->in_saved, y, s->in, r));
    TRY(mamba_core(m, s, c->batch, &(struct mamba_carry){0}, r));
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
                                                          .skip = params_exact(r->params, m->skip),
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
    return r->ops->delta_bwd(&(struct delta_bwd_args){.q = column(s->conv, c_at(m)),
                                                      .k = column(s->conv, b_at(m)),
                                                      .v = s->v.data,
                                                      .g = s->g.data,
                                                      .do_ = s->ds.data,
                                                      .saved = s->saved.data,
                                                      .dq = column(s->dconv, c_at(m)),
                                                      .dk = column(s->dconv, b_at(m)),
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

static status inputs_bwd(const struct mamba *m, const struct mamba_saved *s, const struct batch *b,
                         const struct exec *r)
{
    const struct params *p = r->params;
    const int64_t n = mamba_channels(m);
    TRY(r->ops->ssm_in_bwd(&(struct ssm_in_bwd_args){.dg = s->dg.data,
                                                     .dv = s->dv.data,
                                                     .ds = s->ds.data,
                                                     .raw = column(s->in, step_at(m)),
                                                     .x = s->conv.data,
                                                     .step = s->step.data,
                                                     .a_log = params_exact(p, m->a_log),
                                                     .dt_bias = params_exact(p, m->dt_bias),
                                                     .skip = params_exact(p, m->skip),
                                                     .draw = column(s->din, step_at(m)),
                                                     .dx = s->dconv.data,
                                                     .da_log = params_grad(p, m->a_log),
                                                     .ddt_bias = params_grad(p, m->dt_bias),
                                                     .dskip = params_grad(p, m->skip),
                                                     .rows = b->rows,
                                                     .heads = m->heads,
                                                     .d = m->d,
                                                     .raw_stride = m->in.out,
                                                     .x_stride = n,
                                                     .draw_stride = m->in.out,
                                                     .dx_stride = n,
                                                     .dt = s->in.dt},
                           r->stream));
    return r->ops->conv_bwd(&(struct conv_bwd_args){.dy = s->dconv.data,
                                                    .x = column(s->in, mamba_conv_at(m)),
                                                    .w = params_weight(p, m->conv),
                                                    .bias = params_weight(p, m->conv_bias),
                                                    .dx = column(s->din, mamba_conv_at(m)),
                                                    .dw = params_grad(p, m->conv),
                                                    .dbias = params_grad(p, m->conv_bias),
                                                    .dy_stride = n,
                                                    .x_stride = m->in.out,
                                                    .dx_stride = m->in.out,
                                                    .cu_seqlens = b->cu_seqlens,
                                                    .docs = b->docs,
                                                    .rows = b->rows,
                                                    .channels = n,
                                                    .width = m->width,
                                                    .dt = s->in.dt},
                            r->stream);
}

status mamba_bwd(const struct mamba *m, struct mamba_saved *s, const struct mix *c, struct tensor y,
                 struct tensor dout, struct tensor dy, const struct exec *r)
{
    const struct batch *b = c->batch;
    if (!s->kept) {
        TRY(inputs(m, s, b, NULL, r));
        TRY(outputs(m, s, b, r));
    }
    TRY(linear_dgrad(&m->out, &s->out_saved, dout, s->ds, r));
    TRY(linear_wgrad(&m->out, &s->out_saved, s->normed, dout, r));
    TRY(outputs_bwd(m, s, b, r));
    TRY(states_bwd(m, s, b, r));
    TRY(inputs_bwd(m, s, b, r));
    TRY(linear_dgrad(&m->in, &s->in_saved, s->din, dy, r)); /* first: communication may wait for it */
    return linear_wgrad(&m->in, &s->in_saved, y, s->din, r);
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
                                          .mixer_flow = flow};
