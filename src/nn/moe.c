#include "nn/moe.h"
#include "nn/sequence_parallel.h"
#include "parallel/side_stream.h"
#include "spec/layer_traits.h"

#include <math.h>
#include <stdio.h>

/* ---- parameters and memory */

static int matrices(struct params *p, enum role role, int64_t experts, int64_t out, int64_t in,
                    const char *name, const char *part)
{
    int row = params_add(p, role, 0, out, in, "%s.experts.%s.weight", name, part);
    p->rows[row].gemm_overwrites_grad = true;
    p->rows[row].experts = experts;
    return row;
}

static void add_experts(struct moe *m, struct params *p, const char *name)
{
    const int64_t experts = m->rule.experts, f = m->f;
    m->up = matrices(p, ROLE_MATRIX, experts, experts * 2 * f, m->d, name, "up");
    params_split(p, m->up, SPLIT_COLUMN_PARALLEL, (const int64_t[]){f, f}, 2); /* of each expert: gate, up */
    params_shard_experts(p, m->up);
    m->down = matrices(p, ROLE_RESIDUAL, experts, experts * m->d, f, name, "down");
    params_split(p, m->down, SPLIT_ROW_PARALLEL, &m->d, 1);
    params_shard_experts(p, m->down);
    m->f /= params_tp_size(p); /* from here on: columns of this rank */
}

void moe_experts_init(struct moe *m, struct params *p, const char *name, int of)
{
    params_experts(p, of);
    add_experts(m, p, name);
}

static void shared_init(struct moe *m, struct params *p, const char *name, const struct model_spec *spec)
{
    char full[96];
    struct model_spec own = *spec;
    own.ffn_size = spec->moe_shared_size;
    own.mlp_bias = false;
    snprintf(full, sizeof full, "%s.shared", name);
    mlp_init(&m->shared, p, full, &own);
    if (!spec->moe_shared_gate) return;
    snprintf(full, sizeof full, "%s.shared_gate", name);
    linear_init(&m->gate, p, full, ROLE_MATRIX, 1, m->d, BIAS_NONE);
    linear_split(&m->gate, p, SPLIT_PARTIAL_GRAD, NULL, 0);
    p->rows[m->gate.w].rowwise = true;
}

void moe_init(struct moe *m, struct params *p, const char *name, const struct model_spec *spec)
{
    static const enum route_score scores[] = {
        [ROUTER_SOFTMAX] = ROUTE_SOFTMAX, [ROUTER_SIGMOID] = ROUTE_SIGMOID};
    static const enum route_aux kinds[] = {
        [AUX_SWITCH] = ROUTE_AUX_SWITCH, [AUX_SEQUENCE] = ROUTE_AUX_SEQUENCE};
    char full[96];
    *m = (struct moe){.rule = {.score = scores[spec->moe_router],
                               .experts = spec->moe_experts,
                               .top_k = spec->moe_top_k,
                               .groups = spec->moe_groups ? spec->moe_groups : 1,
                               .groups_kept = spec->moe_groups ? spec->moe_groups_kept : 1,
                               .normalize = spec->moe_normalize,
                               .scale = spec->moe_scale},
                      .d = spec->hidden_size,
                      .f = spec->moe_size,
                      .ranks = p->expert_ranks > 1 ? p->expert_ranks : 1,
                      .aux_kind = kinds[spec->moe_aux_kind],
                      .aux = spec->moe_aux,
                      .z = spec->moe_z,
                      .capacity = spec->moe_capacity,
                      .gate.w = -1};
    const int64_t experts = m->rule.experts;
    snprintf(full, sizeof full, "%s.router", name);
    linear_init(&m->router, p, full, ROLE_MATRIX, experts, m->d, BIAS_NONE);
    linear_split(&m->router, p, SPLIT_PARTIAL_GRAD, NULL,
                 0); /* a rank's gradient comes from its part of the experts */
    p->rows[m->router.w].rowwise = true;
    m->bias = params_add(p, ROLE_BALANCE, 0, experts, 0, "%s.router.bias", name);
    p->rows[m->bias].derived[DERIVED_F32] = true;
    if (m->ranks == 1) add_experts(m, p, name);
    if (spec->moe_shared_size > 0) shared_init(m, p, name, spec);
}

static struct dispatch_shape dispatch_shape_of(const struct moe *m, const struct layout *l)
{
    return (struct dispatch_shape){.ranks = m->ranks,
                                   .context = l->cp_size > 1 ? l->cp_size : 1,
                                   .experts = m->rule.experts,
                                   .top_k = m->rule.top_k,
                                   .d = m->d,
                                   .n = l->n,
                                   .capacity = m->capacity};
}

/* Of the sorted rows of this rank's tokens: other ranks' experts read them as they arrive there. */
static int64_t route_align(const struct moe_saved *s)
{
    return s->apart ? 1 : s->align;
}
static int64_t sorted_max(const struct moe_saved *s, int64_t rows)
{
    return moe_rows_max(rows, s->top_k, s->experts, route_align(s));
}

static struct tensor scratch_take(const struct moe *m, const struct layout *l, enum moe_memory what,
                                  const char *name)
{
    struct moe_shape shape = {.rows = l->n,
                              .experts = m->rule.experts,
                              .top_k = m->rule.top_k,
                              .d = m->d,
                              .f = m->f,
                              .docs = m->aux > 0 && m->aux_kind == ROUTE_AUX_SEQUENCE ? l->docs_max : 0,
                              .ranks = l->cp_size,
                              .dt = l->dt};
    if (m->ranks > 1 && what == MOE_GEMM) {
        const struct dispatch_shape arrived = dispatch_shape_of(m, l);
        shape.rows = dispatch_rows_max(&arrived), shape.top_k = 1, shape.experts /= m->ranks;
    }
    return tensor_take(l->scratch, name, DTYPE_U8, 1, (int64_t)l->ops->moe_scratch(&shape, what));
}

static void backward_layout(const struct moe *m, struct moe_saved *s, const struct layout *l)
{
    const dtype acc = dtype_acc(l->dt);
    s->wide = tensor_take(l->scratch, "moe input gradient", acc, 2, l->n, m->d);
    s->dweight = tensor_take(l->scratch, "router weight gradient", acc, 2, l->n, m->rule.top_k);
    s->dlogits = tensor_take(l->scratch, "router logits gradient", l->dt, 2, l->n, m->rule.experts);
    s->cost = tensor_take(l->scratch, "router costs", acc, 1, l->n);
    s->scratch_bwd = scratch_take(m, l, MOE_ROUTE_BWD, "router's backward scratch");
    if (m->gate.w >= 0) s->dgate = tensor_take(l->scratch, "gate gradient", l->dt, 2, l->n, (int64_t)1);
}

/* Choices of all ranks of a sequence, where something is counted over the micro-batch. */
static void choices_layout(const struct moe *m, struct moe_saved *s, const struct layout *l)
{
    const bool counts = m->capacity > 0 || (m->aux > 0 && s->train);
    if (l->cp_size <= 1 || !counts) return;
    const int64_t rows = l->n * l->cp_size, k = m->rule.top_k;
    s->choices = (struct context_rows){
        .name = "choices of experts",
        .own = s->expert,
        .all = tensor_take(l->scratch, "choices of all ranks", DTYPE_I32, 2, rows, k),
        .dall = tensor_take(l->scratch, "choices of all ranks, unordered", DTYPE_I32, 2, rows, k)};
}

void moe_layout(const struct moe *m, struct moe_saved *s, const struct layout *l)
{
    struct arena *keep = layout_arena(l, RECOMPUTE_FULL),
                 *always = l->mode == LAYOUT_TRAIN ? l->act : l->scratch;
    const int64_t experts = m->rule.experts, k = m->rule.top_k;
    const dtype acc = dtype_acc(l->dt);
    *s = (struct moe_saved){.align = l->ops->expert_align,
                            .experts = experts,
                            .top_k = k,
                            .apart = m->ranks > 1,
                            .train = l->mode == LAYOUT_TRAIN};
    linear_layout(&m->router, &s->router_saved, LINEAR_NONE, l);
    linear_layout(&m->gate, &s->gate_saved, LINEAR_NONE, l);
    const struct dispatch_shape shape = dispatch_shape_of(m, l);
    const int64_t own = sorted_max(s, l->n),
                  rows = m->ranks > 1 ? dispatch_sorted_max(&shape, s->align) : own;
    s->logits = tensor_take(keep, "router logits", acc, 2, l->n, experts);
    s->expert = tensor_take(always, "chosen experts", DTYPE_I32, 2, l->n, k);
    s->weight = tensor_take(always, "expert weights", acc, 2, l->n, k);
    s->place = tensor_take(always, "expert places", DTYPE_I32, 2, l->n, k);
    s->source = tensor_take(always, "expert sources", DTYPE_I32, 1, own);
    s->offsets = tensor_take(always, "expert offsets", DTYPE_I32, 1, experts + 1);
    s->counts = tensor_take(always, "expert counts", DTYPE_I32, 1, experts);
    s->demand = tensor_take(always, "expert demand", DTYPE_I32, 1, experts);
    if (m->ranks > 1) dispatch_layout(&s->dispatch, &shape, l);
    choices_layout(m, s, l);
    s->up = tensor_take(keep, "moe up", l->dt, 2, rows, 2 * m->f);
    s->m = tensor_take(l->scratch, "moe activation", l->dt, 2, rows, m->f);
    s->sorted = tensor_take(l->scratch, "moe sorted rows", l->dt, 2, rows, m->d);
    moe_codes_layout(m, s, m->ranks > 1 ? dispatch_rows_max(&shape) : l->n, rows, l);
    if (m->shared.f > 0) mlp_layout(&m->shared, &s->shared, l);
    if (m->gate.w >= 0) {
        s->shared_out = tensor_take(keep, "shared expert output", l->dt, 2, l->n, m->d);
        s->gate = tensor_take(keep, "shared expert gate", acc, 2, l->n, (int64_t)1);
    }
    s->scratch_fwd = scratch_take(m, l, MOE_ROUTE_FWD, "router's scratch");
    s->scratch_gemm = scratch_take(m, l, MOE_GEMM, "scratch of expert GEMMs");
    if (s->train) backward_layout(m, s, l);
}

void moe_rows(struct moe_saved *s, int64_t rows)
{
    struct tensor *by_token[] = {&s->logits,     &s->expert, &s->weight, &s->place,
                                 &s->shared_out, &s->gate,   &s->wide,   &s->dweight,
                                 &s->dlogits,    &s->cost,   &s->dgate,  &s->choices.own},
                  *sorted[] = {&s->source, &s->up, &s->m, &s->sorted};
    const size_t own = s->dispatch.shape.ranks > 1 ? 1 : sizeof sorted / sizeof sorted[0];
    for (size_t i = 0; i < sizeof by_token / sizeof by_token[0]; i++) tensor_rows(by_token[i], rows);
    for (size_t i = 0; i < own; i++)
        tensor_rows(sorted[i], sorted_max(s, rows)); /* arrived rows keep theirs */
    mlp_rows(&s->shared, rows);
}

/* ---- forward */

/* Ranks that shard the experts must choose alike, but a GEMM may round differently on each. So each row's
 * logits are computed on one rank and gathered. */
static status form_logits(const struct moe *m, struct moe_saved *s, struct tensor y, const struct exec *r)
{
    TRY(linear_fwd(&m->router, &s->router_saved, sp_local_rows(y, r), sp_local_rows(s->logits, r), r));
    return sp_all_gather_in_place(s->logits, "router logits", r);
}

/* Gathers the choices of the whole micro-batch from the ranks of a sequence. */
static status gather_choices(struct moe_saved *s, const struct batch *b, struct route_whole *w,
                             const struct exec *r)
{
    const struct context_batch *part = b->context;
    TRY(context_rows_gather(&s->choices, part, r));
    *w = (struct route_whole){.expert = s->choices.all.data,
                              .rows = part->full->rows,
                              .length = part->length,
                              .rank = comm_rank(r->cp),
                              .ranks = comm_ranks(r->cp),
                              .cu_seqlens = part->full->cu_seqlens,
                              .docs = part->full->docs};
    return STATUS_OK;
}

static status route(const struct moe *m, struct moe_saved *s, const struct batch *b, const struct exec *r)
{
    const struct route_rule *rule = &m->rule;
    const int64_t rows = s->logits.shape[0];
    const bool parts = m->capacity > 0 && b->context;
    const double even =
        (double)(rule->top_k * rows * (parts ? comm_ranks(r->cp) : 1)) / (double)rule->experts;
    struct route_whole whole;
    struct route_fwd_args a = {.logits = s->logits.data,
                               .bias = params_exact(r->params, m->bias),
                               .rule = *rule,
                               .rows = rows,
                               .capacity = m->capacity > 0 ? (int64_t)ceil(m->capacity * even) : 0,
                               .align = route_align(s),
                               .expert = s->expert.data,
                               .weight = s->weight.data,
                               .place = s->place.data,
                               .source = s->source.data,
                               .offsets = s->offsets.data,
                               .counts = s->counts.data,
                               .demand = s->demand.data,
                               .scratch = s->scratch_fwd.data,
                               .dt = s->up.dt};
    if (!parts) return r->ops->route_fwd(&a, r->stream);
    a.part = ROUTE_CHOOSE;
    TRY(r->ops->route_fwd(&a, r->stream));
    TRY(gather_choices(s, b, &whole, r));
    a.part = ROUTE_PLACE, a.whole = &whole;
    return r->ops->route_fwd(&a, r->stream);
}

static struct expert_rows rows_of(const struct moe *m, const struct moe_saved *s, struct tensor y,
                                  struct tensor dout, const struct exec *r)
{
    const struct dispatch *a = &s->dispatch;
    if (m->ranks > 1)
        return (struct expert_rows){.y = a->rows,
                                    .dout = a->back,
                                    .weight = a->weight.data,
                                    .dweight = a->dweight.data,
                                    .source = a->source.data,
                                    .offsets = a->offsets.data,
                                    .counts = a->counts.data,
                                    .count = dispatch_count(a),
                                    .rows = dispatch_arrived(a, r),
                                    .top_k = 1,
                                    .experts = m->rule.experts / m->ranks};
    return (struct expert_rows){.y = y,
                                .dout = dout,
                                .weight = s->weight.data,
                                .dweight = s->dweight.data,
                                .source = s->source.data,
                                .offsets = s->offsets.data,
                                .counts = s->counts.data,
                                .rows = y.shape[0],
                                .top_k = m->rule.top_k,
                                .experts = m->rule.experts};
}

static struct dispatch_route route_of(const struct moe_saved *s)
{
    return (struct dispatch_route){.source = s->source.data,
                                   .place = s->place.data,
                                   .counts = s->counts.data,
                                   .weight = s->weight.data,
                                   .slots = s->place.shape[0] * s->top_k};
}

/* The outputs of the experts, or their input gradients, where `place` finds them. */
static const void *returned(const struct moe *m, const struct moe_saved *s)
{
    return m->ranks > 1 ? s->dispatch.sent.data : s->sorted.data;
}

/* One GEMM per expert, with one of the experts' matrices. */
struct matrices_gemm {
    enum expert_pass pass;
    enum expert_gather gather;
    struct operand a, b;
    void *c;
    int64_t n, k;
};

/* dgrad sums up to this depth in the tensor core's 14 bits, as in a linear; forward always, wgrad never. */
enum { FAST_K = 4096 };

static status gemm_experts(const struct moe_saved *s, const struct expert_rows *x,
                           const struct matrices_gemm *p, const struct exec *r)
{
    return r->ops->expert_gemm(
        &(struct expert_gemm_args){.pass = p->pass,
                                   .gather = p->gather,
                                   .a = p->a,
                                   .b = p->b,
                                   .c = p->c,
                                   .source = x->source,
                                   .offsets = x->offsets,
                                   .counts = x->counts,
                                   .rows = x->rows,
                                   .top_k = x->top_k,
                                   .experts = x->experts,
                                   .n = p->n,
                                   .k = p->k,
                                   .align = s->align,
                                   .ld = moe_codes_ld(s),
                                   .fast_accum =
                                       p->pass == EXPERT_FWD || (p->pass == EXPERT_DGRAD && p->n <= FAST_K),
                                   .accum = p->pass == EXPERT_WGRAD ? r->accum : ACCUM_STORE,
                                   .scratch = s->scratch_gemm.data,
                                   .dt = s->up.dt},
        r->stream);
}

static status form_up(const struct moe *m, const struct moe_saved *s, const struct expert_rows *x,
                      const struct exec *r)
{
    struct operand y;
    TRY(moe_tokens(m, s, FP8_X, x, &y, r));
    return gemm_experts(s, x,
                        &(struct matrices_gemm){.pass = EXPERT_FWD,
                                                .gather = EXPERT_GATHER_A,
                                                .a = y,
                                                .b = moe_matrices(m->up, GEMM_FWD, r),
                                                .c = s->up.data,
                                                .n = 2 * m->f,
                                                .k = m->d},
                        r);
}

static status experts_fwd(const struct moe *m, const struct moe_saved *s, const struct expert_rows *x,
                          const struct exec *r)
{
    TRY(form_up(m, s, x, r));
    TRY(r->ops->expert_act_fwd(&(struct expert_act_fwd_args){.up = s->up.data,
                                                             .m = s->m.data,
                                                             .weight = x->weight,
                                                             .source = x->source,
                                                             .offsets = x->offsets,
                                                             .q = moe_act_codes(m, s, r),
                                                             .rows = x->rows,
                                                             .top_k = x->top_k,
                                                             .experts = x->experts,
                                                             .f = m->f,
                                                             .align = s->align,
                                                             .ld = moe_codes_ld(s),
                                                             .dt = s->up.dt},
                               r->stream));
    return gemm_experts(s, x,
                        &(struct matrices_gemm){.pass = EXPERT_FWD,
                                                .a = moe_sorted(m, s, FP8_X, r),
                                                .b = moe_matrices(m->down, GEMM_FWD, r),
                                                .c = s->sorted.data,
                                                .n = m->d,
                                                .k = m->f},
                        r);
}

/* With expert parallelism: rows of x to the ranks that have their experts, while the step's stream computes what no
 * expert is needed for. No expert is run before the rows have arrived. */
static status rows_leave(const struct moe *m, const struct moe_saved *s, const char *name, struct tensor x,
                         struct tensor to, const struct exec *r)
{
    const struct dispatch_route route = route_of(s);
    struct exec aside = *r;
    if (m->ranks == 1) return STATUS_OK;
    if (r->side) TRY(side_stream_fork(r->side, &aside.stream));
    return dispatch_rows(&s->dispatch, &route, name, x, to, &aside);
}
static status rows_arrive(const struct moe *m, const struct exec *r)
{
    return m->ranks > 1 && r->side ? side_stream_join(r->side) : STATUS_OK;
}
static status distribute(const struct moe *m, struct moe_saved *s, struct tensor y, const struct exec *r)
{
    const struct dispatch_route route = route_of(s);
    if (m->ranks > 1) TRY(dispatch_begin(&s->dispatch, &route, r));
    return rows_leave(m, s, "rows for experts", y, s->dispatch.rows, r);
}

status moe_fwd(const struct moe *m, struct moe_saved *s, const struct layer_ctx *c, struct tensor y,
               struct branch_dst out, const struct exec *r)
{
    const bool gated = m->gate.w >= 0, shared = m->shared.f > 0;
    const struct branch_dst base = {.dst = gated ? s->shared_out : out.dst};
    CHECK(out.residual.data == NULL, "experts do not add the stream");
    TRY(form_logits(m, s, y, r));
    TRY(route(m, s, c->batch, r));
    TRY(distribute(m, s, y, r));
    if (shared) TRY(mlp_fwd(&m->shared, &s->shared, c, y, base, r));
    if (gated) TRY(linear_fwd(&m->gate, &s->gate_saved, y, s->gate, r));
    TRY(rows_arrive(m, r));
    const struct expert_rows x = rows_of(m, s, y, y, r);
    TRY(experts_fwd(m, s, &x, r));
    if (m->ranks > 1) TRY(dispatch_return(&s->dispatch, "outputs of experts", s->sorted, r));
    return r->ops->combine(&(struct combine_args){.x = returned(m, s),
                                                  .place = s->place.data,
                                                  .base = shared ? base.dst.data : NULL,
                                                  .gate = gated ? s->gate.data : NULL,
                                                  .y = out.dst.data,
                                                  .rows = y.shape[0],
                                                  .top_k = m->rule.top_k,
                                                  .d = m->d,
                                                  .dt = y.dt,
                                                  .base_dt = y.dt},
                           r->stream);
}

static status shared_recompute(const struct moe *m, struct moe_saved *s, enum recompute policy,
                               struct tensor y, const struct exec *r)
{
    if (m->gate.w < 0)
        return m->shared.f > 0 ? mlp_recompute(&m->shared, &s->shared, policy, y, r) : STATUS_OK;
    TRY(mlp_fwd(&m->shared, &s->shared, NULL, y, (struct branch_dst){.dst = s->shared_out}, r));
    return linear_fwd(&m->gate, &s->gate_saved, y, s->gate, r);
}

status moe_recompute(const struct moe *m, struct moe_saved *s, enum recompute policy, struct tensor y,
                     const struct exec *r)
{
    if (policy != RECOMPUTE_FULL) return STATUS_OK;
    TRY(form_logits(m, s, y, r));
    TRY(rows_leave(m, s, "rows for experts", y, s->dispatch.rows, r));
    TRY(shared_recompute(m, s, policy, y, r));
    TRY(rows_arrive(m, r));
    const struct expert_rows x = rows_of(m, s, y, y, r);
    return form_up(m, s, &x, r);
}

/* ---- backward */

/* Backward of the shared expert and its gate from `wide`. With a gate, shared_out becomes its gradient. */
static status shared_bwd(const struct moe *m, struct moe_saved *s, const struct layer_ctx *c, struct tensor y,
                         struct tensor dout, const struct exec *r)
{
    if (m->gate.w < 0) return mlp_bwd(&m->shared, &s->shared, c, y, dout, s->wide, r);
    TRY(r->ops->combine_gate_bwd(&(struct combine_gate_bwd_args){.dy = dout.data,
                                                                 .base = s->shared_out.data,
                                                                 .gate = s->gate.data,
                                                                 .dbase = s->shared_out.data,
                                                                 .dgate = s->dgate.data,
                                                                 .rows = y.shape[0],
                                                                 .d = m->d,
                                                                 .dt = y.dt},
                                 r->stream));
    TRY(mlp_bwd(&m->shared, &s->shared, c, y, s->shared_out, s->wide, r));
    TRY(linear_wgrad(&m->gate, &s->gate_saved, y, s->dgate, r));
    return linear_dgrad_add(&m->gate, &s->gate_saved, s->dgate, s->wide, r);
}

/* From dout to the gradients of `down`'s input, in s->m. */
static status down_dgrad(const struct moe *m, struct moe_saved *s, const struct expert_rows *x,
                         const struct exec *r)
{
    struct operand dout;
    TRY(moe_tokens(m, s, FP8_DY, x, &dout, r));
    return gemm_experts(s, x,
                        &(struct matrices_gemm){.pass = EXPERT_DGRAD,
                                                .gather = EXPERT_GATHER_A,
                                                .a = dout,
                                                .b = moe_matrices(m->down, GEMM_DGRAD, r),
                                                .c = s->m.data,
                                                .n = m->d,
                                                .k = m->f},
                        r);
}

/* In place: dm becomes m, and up its gradient, which no one reads later; or codes alone are written. */
static status act_bwd(const struct moe *m, struct moe_saved *s, const struct expert_rows *x,
                      const struct exec *r)
{
    return r->ops->expert_act_bwd(&(struct expert_act_bwd_args){.dm = s->m.data,
                                                                .up = s->up.data,
                                                                .weight = x->weight,
                                                                .source = x->source,
                                                                .offsets = x->offsets,
                                                                .dup = s->up.data,
                                                                .m = s->m.data,
                                                                .dweight = x->dweight,
                                                                .q = moe_dup_codes(m, s, r),
                                                                .mq = moe_act_codes_t(m, s, r),
                                                                .rows = x->rows,
                                                                .top_k = x->top_k,
                                                                .experts = x->experts,
                                                                .f = m->f,
                                                                .align = s->align,
                                                                .ld = moe_codes_ld(s),
                                                                .dt = s->up.dt},
                                  r->stream);
}

static status down_wgrad(const struct moe *m, struct moe_saved *s, const struct expert_rows *x,
                         const struct exec *r)
{
    struct matrices_gemm g = {.pass = EXPERT_WGRAD,
                              .gather = EXPERT_GATHER_A,
                              .a = operand_of(x->dout),
                              .b = operand_of(s->m),
                              .c = params_grad(r->params, m->down),
                              .n = m->d,
                              .k = m->f};
    if (moe_wgrad_reads(m->down, r)) TRY(moe_wgrad(m, s, m->down, x, &g.a, &g.b, r));
    return gemm_experts(s, x, &g, r);
}

static status up_wgrad(const struct moe *m, struct moe_saved *s, const struct expert_rows *x,
                       const struct exec *r)
{
    struct matrices_gemm g = {.pass = EXPERT_WGRAD,
                              .gather = EXPERT_GATHER_B,
                              .a = operand_of(s->up),
                              .b = operand_of(x->y),
                              .c = params_grad(r->params, m->up),
                              .n = 2 * m->f,
                              .k = m->d};
    if (moe_wgrad_reads(m->up, r)) TRY(moe_wgrad(m, s, m->up, x, &g.a, &g.b, r));
    return gemm_experts(s, x, &g, r);
}

/* From dout to the gradients of the experts' matrices, of their inputs (sorted) and of the weights. */
static status experts_bwd(const struct moe *m, struct moe_saved *s, const struct expert_rows *x,
                          const struct exec *r)
{
    TRY(down_dgrad(m, s, x, r));
    TRY(act_bwd(m, s, x, r));
    TRY(down_wgrad(m, s, x, r));
    TRY(up_wgrad(m, s, x, r));
    return gemm_experts(s, x,
                        &(struct matrices_gemm){.pass = EXPERT_DGRAD,
                                                .a = moe_sorted(m, s, FP8_DY, r),
                                                .b = moe_matrices(m->up, GEMM_DGRAD, r),
                                                .c = s->sorted.data,
                                                .n = 2 * m->f,
                                                .k = m->d},
                        r);
}

/* The same on all ranks that shard the experts, to which the rows of dout have gone: gradients come back. */
static status distributed_bwd(const struct moe *m, struct moe_saved *s, struct tensor y, struct tensor dout,
                              const struct exec *r)
{
    const struct dispatch_route route = route_of(s);
    const struct expert_rows x = rows_of(m, s, y, dout, r);
    if (m->ranks == 1) return experts_bwd(m, s, &x, r);
    TRY(experts_bwd(m, s, &x, r));
    TRY(dispatch_return(&s->dispatch, "gradients of experts", s->sorted, r));
    return dispatch_return_weights(&s->dispatch, &route, s->dweight.data, r);
}

/* The router. Its auxiliary loss belongs to the step (grad_scale), so each micro-batch adds its share by
 * tokens. A rank computes the part of dweight, and so of dlogits, from its own columns; the first rank adds
 * the auxiliary loss's. */
static status route_bwd(const struct moe *m, struct moe_saved *s, const struct batch *b, struct tensor y,
                        const struct exec *r)
{
    const bool costs = m->aux > 0 || m->z > 0, parts = m->aux > 0 && b->context;
    struct route_whole whole;
    if (parts) TRY(gather_choices(s, b, &whole, r));
    TRY(r->ops->route_bwd(
        &(struct route_bwd_args){.whole = parts ? &whole : NULL,
                                 .dweight = s->dweight.data,
                                 .logits = s->logits.data,
                                 .expert = s->expert.data,
                                 .place = s->place.data,
                                 .demand = s->demand.data,
                                 .rule = m->rule,
                                 .rows = y.shape[0],
                                 .aux_kind = m->aux_kind,
                                 .aux = m->aux,
                                 .z = m->z,
                                 .grad_scale = comm_rank(r->tp) > 0 ? NULL : &r->scalars->grad_scale,
                                 .cu_seqlens = b->cu_seqlens,
                                 .docs = b->docs,
                                 .dlogits = s->dlogits.data,
                                 .cost = costs ? s->cost.data : NULL,
                                 .load = params_grad(r->params, m->bias),
                                 .dropped = m->capacity > 0 ? r->scalars->dropped_sum : NULL,
                                 .scratch = s->scratch_bwd.data,
                                 .dt = y.dt},
        r->stream));
    if (costs)
        TRY(r->ops->sum(
            &(struct sum_args){
                .x = s->cost.data, .out = &r->scalars->aux_sum, .count = y.shape[0], .dt = s->cost.dt},
            r->stream));
    return linear_wgrad(&m->router, &s->router_saved, y, s->dlogits, r);
}

status moe_bwd(const struct moe *m, struct moe_saved *s, const struct layer_ctx *c, struct tensor y,
               struct tensor dout, struct tensor dy, const struct exec *r)
{
    const bool shared = m->shared.f > 0;
    CHECK(s->train, "backward of a mixture that was laid out without one");
    TRY(rows_leave(m, s, "gradients for experts", dout, s->dispatch.back, r));
    if (shared) TRY(shared_bwd(m, s, c, y, dout, r));
    TRY(rows_arrive(m, r));
    TRY(distributed_bwd(m, s, y, dout, r));
    TRY(route_bwd(m, s, c->batch, y, r));
    TRY((shared ? linear_dgrad_add : linear_dgrad)(&m->router, &s->router_saved, s->dlogits, s->wide, r));
    return r->ops->combine(&(struct combine_args){.x = returned(m, s),
                                                  .place = s->place.data,
                                                  .base = s->wide.data,
                                                  .y = dy.data,
                                                  .rows = y.shape[0],
                                                  .top_k = m->rule.top_k,
                                                  .d = m->d,
                                                  .dt = y.dt,
                                                  .base_dt = s->wide.dt},
                           r->stream);
}

/* The last op gathers the experts' outputs: no GEMM writes to the residual stream. */
bool moe_adds(const struct moe *m, const struct exec *r)
{
    (void)m;
    (void)r;
    return false;
}

/* ---- computed from the spec alone */

static status check_groups(const struct model_spec *m)
{
    if (m->moe_groups == 0 && m->moe_groups_kept == 0) return STATUS_OK;
    if (m->moe_groups_kept > m->moe_groups)
        return FAIL(STATUS_CONFIG, "model.moe_groups_kept %lld is more than model.moe_groups %lld",
                    (long long)m->moe_groups_kept, (long long)m->moe_groups);
    if (m->moe_groups_kept == 0)
        return FAIL(
            STATUS_CONFIG,
            "model.moe_groups needs model.moe_groups_kept, the groups that a token's experts come from");
    if (m->moe_experts % m->moe_groups != 0)
        return FAIL(STATUS_CONFIG, "model.moe_experts %lld is not a multiple of model.moe_groups %lld",
                    (long long)m->moe_experts, (long long)m->moe_groups);
    const int64_t left = m->moe_experts / m->moe_groups * m->moe_groups_kept;
    if (m->moe_top_k > left)
        return FAIL(STATUS_CONFIG, "model.moe_top_k %lld is more than the %lld experts of %lld groups",
                    (long long)m->moe_top_k, (long long)left, (long long)m->moe_groups_kept);
    return STATUS_OK;
}

static status check(const struct model_spec *m)
{
    if (m->moe_experts == 0 || m->moe_top_k == 0 || m->moe_size == 0)
        return FAIL(STATUS_CONFIG,
                    "model.layers names moe: set model.moe_experts, model.moe_top_k and model.moe_size");
    if (m->moe_top_k > m->moe_experts)
        return FAIL(STATUS_CONFIG, "model.moe_top_k %lld is more than model.moe_experts %lld",
                    (long long)m->moe_top_k, (long long)m->moe_experts);
    if (m->activation != ACT_SWIGLU)
        return FAIL(STATUS_CONFIG,
                    "model.layers names moe: experts are swiglu, set model.activation: swiglu");
    if (m->moe_shared_gate && m->moe_shared_size == 0)
        return FAIL(STATUS_CONFIG, "model.moe_shared_gate needs a shared expert: model.moe_shared_size");
    return check_groups(m);
}

static status check_unused(const struct model_spec *m)
{
    if (m->moe_experts == 0) return STATUS_OK;
    return FAIL(STATUS_CONFIG,
                "model.moe_experts does nothing where model.layers names no moe, as in gqa/moe");
}

static int widths(struct model_spec *m, struct layer_width out[LAYER_WIDTHS_MAX])
{
    out[0] = (struct layer_width){"moe_size", &m->moe_size};
    out[1] = (struct layer_width){"moe_shared_size", &m->moe_shared_size};
    return 2;
}

static int gemms(const struct model_spec *m, struct layer_gemm *out, int n)
{
    const int64_t d = m->hidden_size;
    n = layer_gemm_add(out, n, d, m->moe_experts);
    const int routed = n;
    n = layer_gemm_add(out, n, d, 2 * m->moe_size);
    n = layer_gemm_add(out, n, m->moe_size, d);
    for (int i = routed; i < n; i++) out[i].copies = (double)m->moe_top_k, out[i].grouped = true;
    if (m->moe_shared_size == 0) return n;
    if (m->moe_shared_gate) n = layer_gemm_add(out, n, d, 1);
    n = layer_gemm_add(out, n, d, 2 * m->moe_shared_size);
    return layer_gemm_add(out, n, m->moe_shared_size, d);
}

static struct ffn_flow flow(const struct model_spec *m)
{
    const double k = (double)m->moe_top_k, d = (double)m->hidden_size, e = (double)m->moe_experts,
                 f = k * (double)m->moe_size + (double)m->moe_shared_size;
    return (struct ffn_flow){3 * f + (k + 1) * d + 2 * e, 5 * f + 2 * (k + 1) * d + 2 * e, 3 * f, false};
}

const struct layer_traits moe_traits = {
    .check = check, .check_unused = check_unused, .widths = widths, .gemms = gemms, .ffn_flow = flow};
