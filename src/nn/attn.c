#include "nn/attn_context.h"
#include "spec/layer_traits.h"

#include <math.h>
#include <stdio.h>

static int64_t q_width(const struct attn *m)
{
    return m->heads * m->head_dim;
}
static int64_t kv_width(const struct attn *m)
{
    return m->heads_kv * m->head_dim;
}
/* Columns of `qkv` and of its gradient. */
static int64_t v_at(const struct attn *m)
{
    return q_width(m) + kv_width(m);
}
static int64_t gate_at(const struct attn *m)
{
    return v_at(m) + kv_width(m);
}

/* True: between projection and attention there is only RoPE on full heads, which a GEMM epilogue can do. */
static bool rope_alone(const struct model_spec *spec)
{
    return spec->position == POS_ROPE && spec->rope_fraction == 1 && !spec->qk_norm;
}

void attn_init(struct attn *m, struct params *p, const char *name, const struct model_spec *spec,
               int64_t layer)
{
    char full[96];
    *m = (struct attn){.heads = spec->head_count,
                       .heads_kv = spec->head_count_kv ? spec->head_count_kv : spec->head_count,
                       .head_dim = spec->head_dim ? spec->head_dim : spec->hidden_size / spec->head_count,
                       .window = model_layer_window(spec, layer) ? spec->window : 0,
                       .gate = spec->attention_gate,
                       .eps = spec->norm_eps,
                       .shift = spec->norm_zero_centered ? 1 : 0,
                       .rope_alone = rope_alone(spec),
                       .q_norm = -1,
                       .k_norm = -1};
    m->scale = 1 / sqrt((double)m->head_dim);
    snprintf(full, sizeof full, "%s.qkv", name);
    linear_init(&m->qkv, p, full, ROLE_MATRIX, gate_at(m) + (m->gate ? q_width(m) : 0), spec->hidden_size,
                spec->qkv_bias ? BIAS_ADD : BIAS_NONE);
    const int64_t parts[] = {q_width(m), kv_width(m), kv_width(m), q_width(m)};
    linear_split(&m->qkv, p, SPLIT_COLUMN_PARALLEL, parts, m->gate ? 4 : 3);
    if (spec->qk_norm) {
        const float init = spec->norm_zero_centered ? 0 : 1;
        m->q_norm = params_add(p, ROLE_NORM, init, m->head_dim, 0, "%s.q_norm.weight", name);
        m->k_norm = params_add(p, ROLE_NORM, init, m->head_dim, 0, "%s.k_norm.weight", name);
        params_split(p, m->q_norm, SPLIT_PARTIAL_GRAD, NULL, 0);
        params_split(p, m->k_norm, SPLIT_PARTIAL_GRAD, NULL, 0);
    }
    snprintf(full, sizeof full, "%s.out", name);
    linear_init(&m->out, p, full, ROLE_RESIDUAL, spec->hidden_size, q_width(m),
                spec->out_bias ? BIAS_ADD : BIAS_NONE);
    linear_split(&m->out, p, SPLIT_ROW_PARALLEL, NULL, 0);
    m->heads /= params_tp_size(p); /* from here on: heads of this rank */
    m->heads_kv /= params_tp_size(p);
}

static struct tensor scratch_of(const struct layout *l, const struct attn_shape *shape, enum attn_pass pass)
{
    return tensor_take(l->scratch,
                       pass == ATTN_FWD ? "attention forward scratch" : "attention backward scratch",
                       DTYPE_U8, 1, (int64_t)l->ops->attn_scratch(shape, pass));
}

void attn_layout(const struct attn *m, struct attn_saved *s, const struct layout *l)
{
    struct arena *place = layout_arena(l, RECOMPUTE_FULL);
    dtype acc = dtype_acc(l->dt);
    int64_t qk = v_at(m), all = m->qkv.out;
    *s = (struct attn_saved){.qkv = tensor_take(place, "qkv", l->dt, 2, l->n, all)};
    linear_layout(&m->qkv, &s->qkv_saved, linear_given_y(l), l);
    linear_layout(&m->out, &s->out_saved, linear_given_dout(l), l);
    s->rot = s->qkv;
    if (m->q_norm >= 0) {
        s->rot = tensor_take(place, "normed q and k", l->dt, 2, l->n, qk);
        s->qk_rstd = tensor_take(place, "qk rstd", acc, 2, l->n, m->heads + m->heads_kv);
    }
    s->o = tensor_take(place, "attention output", l->dt, 2, l->n, q_width(m));
    s->lse = tensor_take(place, "attention lse", acc, 2, m->heads, l->n);
    s->gated = s->o;
    if (m->gate && l->mode == LAYOUT_TRAIN)
        s->gated = tensor_take(l->scratch, "gated attention output", l->dt, 2, l->n, q_width(m));
    const struct attn_shape shape = attn_context_shape(m, l);
    s->scratch_fwd = scratch_of(l, &shape, ATTN_FWD);
    attn_context_layout(m, s, l);
    if (l->mode != LAYOUT_TRAIN) return;
    s->scratch_bwd = scratch_of(l, &shape, ATTN_BWD);
    s->dqkv = tensor_take(l->scratch, "dqkv", l->dt, 2, l->n, all);
    s->do_ = tensor_take(l->scratch, "attention output gradient", l->dt, 2, l->n, q_width(m));
}

struct attn_heads attn_heads(const struct attn *m, const struct attn_saved *s)
{
    return (struct attn_heads){.q = s->rot.data,
                               .k = tensor_column(s->rot, q_width(m)),
                               .v = tensor_column(s->qkv, v_at(m)),
                               .q_stride = s->rot.shape[1],
                               .k_stride = s->rot.shape[1],
                               .v_stride = s->qkv.shape[1]};
}

static struct rotation rotation_of(const struct layer_ctx *c)
{
    return (struct rotation){c->batch->positions, c->rope->heads.cos.data, c->rope->heads.sin.data};
}

/* Tries RoPE as the epilogue of the projection: the set must support it and nothing else may be in between.
 * *done: it was fused. */
static status project_fused(const struct attn *m, struct attn_saved *s, const struct layer_ctx *c,
                            struct tensor y, const struct exec *r, bool *done)
{
    *done = false;
    if (!m->rope_alone || m->qkv.b >= 0 || m->gate || params_tp_size(r->params) > 1) return STATUS_OK;
    if (r->params->rows[m->qkv.w].fp8 >= 0 || linear_current(&m->qkv, y.shape[0], r))
        return STATUS_OK; /* codes of y are made, or amax is measured */
    struct gemm_args g = linear_gemm(&m->qkv, GEMM_FWD, y, s->qkv, r);
    g.epilogue = (struct epilogue){
        .kind = EPILOGUE_ROPE,
        .rope = {
            .rotation = rotation_of(c), .heads = m->heads, .heads_kv = m->heads_kv, .head_dim = m->head_dim}};
    *done = r->ops->gemm_supports(&g, r->stream);
    return *done ? r->ops->gemm(&g, r->stream) : STATUS_OK;
}

status attn_project(const struct attn *m, struct attn_saved *s, const struct layer_ctx *c, struct tensor y,
                    const struct exec *r)
{
    const struct rope *rope = c->rope;
    const struct params *p = r->params;
    bool done;
    TRY(project_fused(m, s, c, y, r, &done));
    if (done) return STATUS_OK;
    TRY(linear_fwd(&m->qkv, &s->qkv_saved, y, s->qkv, r));
    if (rope->heads.half == 0 && m->q_norm < 0) return STATUS_OK;
    return r->ops->rope_fwd(&(struct rope_fwd_args){.in = s->qkv.data,
                                                    .out = s->rot.data,
                                                    .in_stride = s->qkv.shape[1],
                                                    .out_stride = s->rot.shape[1],
                                                    .positions = c->batch->positions,
                                                    .cos = rope->heads.cos.data,
                                                    .sin = rope->heads.sin.data,
                                                    .qw = m->q_norm >= 0 ? params_weight(p, m->q_norm) : NULL,
                                                    .kw = m->k_norm >= 0 ? params_weight(p, m->k_norm) : NULL,
                                                    .rstd = s->qk_rstd.data,
                                                    .rows = y.shape[0],
                                                    .heads = m->heads,
                                                    .heads_kv = m->heads_kv,
                                                    .head_dim = m->head_dim,
                                                    .half = rope->heads.half,
                                                    .pos_count = rope->positions,
                                                    .eps = m->eps,
                                                    .shift = m->shift,
                                                    .dt = y.dt},
                            r->stream);
}

void attn_rows(struct attn_saved *s, int64_t rows)
{
    struct tensor *all[] = {&s->qkv, &s->rot, &s->qk_rstd, &s->o, &s->gated, &s->dqkv, &s->do_, &s->kv.own};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) tensor_rows(all[i], rows);
}

status attn_output(const struct attn *m, struct attn_saved *s, struct branch_dst out, const struct exec *r)
{
    if (m->gate)
        TRY(r->ops->gate_fwd(&(struct gate_fwd_args){.x = s->o.data,
                                                     .z = tensor_column(s->qkv, gate_at(m)),
                                                     .y = s->gated.data,
                                                     .rows = s->o.shape[0],
                                                     .d = q_width(m),
                                                     .z_stride = s->qkv.shape[1],
                                                     .dt = s->o.dt},
                             r->stream));
    return linear_last(&m->out, &s->out_saved, s->gated, out, r);
}

/* From dout to do_ and the gate columns of dqkv, and the output projection's gradient. */
static status output_bwd(const struct attn *m, struct attn_saved *s, struct tensor dout, const struct exec *r)
{
    TRY(linear_dgrad(&m->out, &s->out_saved, dout, s->do_, r));
    if (m->gate)
        TRY(r->ops->gate_bwd(&(struct gate_bwd_args){.dy = s->do_.data,
                                                     .x = s->o.data,
                                                     .z = tensor_column(s->qkv, gate_at(m)),
                                                     .dx = s->do_.data,
                                                     .dz = tensor_column(s->dqkv, gate_at(m)),
                                                     .y = s->gated.data,
                                                     .rows = s->o.shape[0],
                                                     .d = q_width(m),
                                                     .z_stride = s->qkv.shape[1],
                                                     .dz_stride = s->dqkv.shape[1],
                                                     .dt = s->o.dt},
                             r->stream));
    return linear_wgrad(&m->out, &s->out_saved, s->gated, dout, r);
}

status attn_fwd(const struct attn *m, struct attn_saved *s, const struct layer_ctx *c, struct tensor y,
                struct branch_dst out, const struct exec *r)
{
    TRY(attn_project(m, s, c, y, r));
    TRY(attn_context_fwd(m, s, c->batch, r));
    return attn_output(m, s, out, r);
}

/* From gradients of the rotated heads to those of the projection, in place in dqkv. */
static status rotate_back(const struct attn *m, struct attn_saved *s, const struct layer_ctx *c,
                          const struct exec *r)
{
    const struct rope *rope = c->rope;
    const struct params *p = r->params;
    if (rope->heads.half == 0 && m->q_norm < 0) return STATUS_OK;
    bool norm = m->q_norm >= 0;
    return r->ops->rope_bwd(&(struct rope_bwd_args){.dout = s->dqkv.data,
                                                    .din = s->dqkv.data,
                                                    .dout_stride = s->dqkv.shape[1],
                                                    .din_stride = s->dqkv.shape[1],
                                                    .in = s->qkv.data,
                                                    .in_stride = s->qkv.shape[1],
                                                    .positions = c->batch->positions,
                                                    .cos = rope->heads.cos.data,
                                                    .sin = rope->heads.sin.data,
                                                    .qw = norm ? params_weight(p, m->q_norm) : NULL,
                                                    .kw = norm ? params_weight(p, m->k_norm) : NULL,
                                                    .rstd = s->qk_rstd.data,
                                                    .dqw = norm ? params_grad(p, m->q_norm) : NULL,
                                                    .dkw = norm ? params_grad(p, m->k_norm) : NULL,
                                                    .rows = c->batch->rows,
                                                    .heads = m->heads,
                                                    .heads_kv = m->heads_kv,
                                                    .head_dim = m->head_dim,
                                                    .half = rope->heads.half,
                                                    .pos_count = rope->positions,
                                                    .shift = m->shift,
                                                    .dt = s->dqkv.dt},
                            r->stream);
}

status attn_bwd(const struct attn *m, struct attn_saved *s, const struct layer_ctx *c, struct tensor y,
                struct tensor dout, struct tensor dy, const struct exec *r)
{
    const struct rotation rope = rotation_of(c);
    bool rotated;
    TRY(attn_context_bwd_begin(m, s, c->batch, r));
    TRY(output_bwd(m, s, dout, r));
    TRY(attn_context_bwd(m, s, c->batch, &rope, &rotated, r));
    if (!rotated) TRY(rotate_back(m, s, c, r));
    TRY(linear_dgrad(&m->qkv, &s->qkv_saved, s->dqkv, dy, r)); /* first: communication may wait for it */
    return linear_wgrad(&m->qkv, &s->qkv_saved, y, s->dqkv, r);
}

/* ---- computed from the spec alone */

static int64_t head_dim(const struct model_spec *m)
{
    return m->head_dim ? m->head_dim : m->hidden_size / m->head_count;
}
static int64_t heads_kv(const struct model_spec *m)
{
    return m->head_count_kv ? m->head_count_kv : m->head_count;
}

static status check(const struct model_spec *m)
{
    if (m->head_dim == 0 && m->hidden_size % m->head_count != 0)
        return FAIL(STATUS_CONFIG,
                    "model.hidden_size %lld is not a multiple of model.head_count %lld; set model.head_dim",
                    (long long)m->hidden_size, (long long)m->head_count);
    if (m->head_count_kv > 0 && m->head_count % m->head_count_kv != 0)
        return FAIL(STATUS_CONFIG, "model.head_count %lld is not a multiple of model.head_count_kv %lld",
                    (long long)m->head_count, (long long)m->head_count_kv);
    return STATUS_OK;
}

static int widths(struct model_spec *m, struct layer_width out[LAYER_WIDTHS_MAX])
{
    m->head_count_kv = heads_kv(m);
    out[0] = (struct layer_width){"head_count", &m->head_count};
    out[1] = (struct layer_width){"head_count_kv", &m->head_count_kv};
    return 2;
}

static int gemms(const struct model_spec *m, struct layer_gemm *out, int n)
{
    const int64_t d = m->hidden_size, q = m->head_count * head_dim(m), kv = heads_kv(m) * head_dim(m);
    n = layer_gemm_add(out, n, d, q + 2 * kv + (m->attention_gate ? q : 0));
    return layer_gemm_add(out, n, q, d);
}

static double core_flops(const struct model_spec *m, int64_t layer, int64_t t)
{
    const double q = (double)(m->head_count * head_dim(m));
    return 4 * q * layer_keys_seen(t, model_layer_window(m, layer) ? m->window : 0);
}

static double square_flops(const struct model_spec *m, int64_t t)
{
    return 4 * (double)(m->head_count * head_dim(m)) * (double)t;
}

static struct mixer_flow flow(const struct model_spec *m)
{
    return (struct mixer_flow){.query = (double)(m->head_count * head_dim(m)),
                               .key = (double)(heads_kv(m) * head_dim(m)),
                               .head_dim = head_dim(m),
                               .rope_fused = rope_alone(m) && !m->qkv_bias && !m->attention_gate};
}

/* int(head_dim * rope_fraction), rounded down to even. */
static void rope_dims(const struct model_spec *m, struct rope_dims *dims)
{
    if (m->position != POS_ROPE) return;
    dims->heads = (int64_t)((double)head_dim(m) * m->rope_fraction) / 2 * 2;
}

const struct layer_traits attn_traits = {.check = check,
                                         .widths = widths,
                                         .gemms = gemms,
                                         .core_flops = core_flops,
                                         .square_flops = square_flops,
                                         .mixer_flow = flow,
                                         .context = LAYER_CONTEXT_KIND,
                                         .context_gpu = true,
                                         .rope_dims = rope_dims};
