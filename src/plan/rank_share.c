#include "plan/rank_share.h"
#include "model/mtp.h"
#include "model/stage.h"
#include "ops/precision.h"
#include "parallel/fp8.h"
#include "parallel/tp_grad.h"
#include "plan/assume.h"
#include "plan/grad_overlay.h"
#include "spec/layer_traits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool rank_share_is(const struct rank_share *s, const struct mesh_variant *v)
{
    return s->tp == v->mesh.tp && s->cp == mesh_cp(&v->mesh) && s->ep == mesh_ep(&v->mesh) &&
           s->context_kind == v->mesh.context_kind && s->recompute == v->recompute &&
           s->micro_batch == v->micro_batch && s->staged == (s->fp8 && v->mesh.pp > 1);
}

void rank_share_close(struct rank_share *s)
{
    if (s == NULL) return;
    rank_share_close(s->full);
    free(s->layer);
    free(s);
}

/* gqa and swa have the same widths: each is divided once. */
static int once(int64_t **list, int count, int64_t *value)
{
    for (int i = 0; i < count; i++)
        if (list[i] == value) return count;
    list[count] = value;
    return count + 1;
}

/* The model of one tp rank, for the times of its GEMMs: its heads, widths and vocabulary rows. mesh_check has
 * accepted it. */
static void divide(struct model_spec *m, int tp)
{
    if (m->head_dim == 0) m->head_dim = m->hidden_size / m->head_count;
    struct layer_width widths[LAYER_WIDTHS_MAX];
    int64_t *divided[LAYER_PARTS_MAX * LAYER_WIDTHS_MAX];
    int count = 0;
#define WORD(prefix, name, word)                                                                             \
    for (int i = 0, n = mixer_traits(prefix##_##name)->widths(m, widths); i < n; i++)                        \
        count = once(divided, count, widths[i].value);
    MIXER_WORDS(WORD)
#undef WORD
#define WORD(prefix, name, word)                                                                             \
    for (int i = 0, n = ffn_traits(prefix##_##name)->widths(m, widths); i < n; i++)                          \
        count = once(divided, count, widths[i].value);
    FFN_WORDS(WORD)
#undef WORD
    for (int i = 0; i < count; i++) *divided[i] /= tp;
    m->engram_dim /= tp, m->vocab_size /= tp;
}

/* A row of a unit of experts, of a block or of an MTP module. */
static void count_experts(struct rank_share *s, const struct param *r, int block)
{
    const double count = (double)params_room(r);
    if (block > s->layers) {
        if (block == s->layers + 2) s->experts_module += count;
        return;
    }
    s->layer[block - 1].experts += count;
    if (r->muon) s->layer[block - 1].expert_matrices += (double)r->count;
}

static void count_rows(struct rank_share *s, const struct decoder *d)
{
    for (int i = 0; i < d->params.count; i++) {
        const struct param *r = &d->params.rows[i];
        const double count = (double)params_room(r),
                     summed = (double)(r->count - params_summed(&d->params, i));
        if (d->params.units[r->unit].experts) {
            count_experts(s, r, params_block(&d->params, r->unit));
            continue;
        }
        if (r->unit == 0) s->count_first += count;
        if (r->unit > 0 && r->unit <= s->layers)
            s->layer[r->unit - 1].count += count, s->layer[r->unit - 1].partial_grads += summed;
        if (r->unit > 0 && r->unit <= s->layers && i < d->blocks[r->unit - 1].norm2.w)
            s->layer[r->unit - 1].count_mixer += count;
        if (r->role == ROLE_TABLE) {
            s->layer[params_block(&d->params, r->unit) - 1].table = count;
            continue;
        }
        if (r->unit == s->layers + 1) s->count_last += count, s->partial_grads_last += summed;
        if (r->unit == s->layers + 2) s->count_module += count, s->partial_grads_module += summed;
        if (r->unit > 0 && r->unit <= s->layers && !r->linear) s->layer[r->unit - 1].kept += (double)r->count;
        if (r->unit > 0 && r->unit <= s->layers && r->muon)
            s->layer[r->unit - 1].matrices += (double)r->count;
        if (r->role == ROLE_EMBED && stage_shares_table(&d->spec)) s->count_tied = count;
    }
}

static bool is_row(const struct linear *m, int row)
{
    return m && m->w == row;
}

/* A matrix of experts that reads codes. */
static void add_experts(struct layer_fp8 *all, const struct params *p, int row, const struct moe *m)
{
    if (p->rows[row].fp8 < 0) return;
    CHECK(all->count < LAYER_LINEARS_MAX, "a layer of more than %d linears in FP8", LAYER_LINEARS_MAX);
    const bool up = row == m->up;
    all->linears[all->count++] = (struct layer_linear){
        .in = up ? m->d : m->f, .out = up ? 2 * m->f : m->d, .copies = (double)m->rule.top_k, .by_token = up};
}

/* The linears of a block's mixer and feed-forward part that read codes. (An n-gram memory in front of them is not
 * timed.) `stream`: norms write the codes of the stream's gradient. */
static struct layer_fp8 fp8_of(const struct decoder *d, const struct block *b, bool stream)
{
    const struct params *p = &d->params;
    const struct mlp *mlp = b->ffn.kind == FFN_MLP ? &b->ffn.mlp : &b->ffn.moe.shared;
    const bool norms = d->norm.kind == NORM_RMSNORM && params_tp_size(p) == 1,
               swiglu = d->spec.activation == ACT_SWIGLU && mlp->f > 0 && p->rows[mlp->up.w].fp8 >= 0 &&
                        p->rows[mlp->down.w].fp8 >= 0;
    struct layer_fp8 all = {
        .current = p->recipe == RECIPE_CURRENT, .x = p->current.x, .w = p->current.w, .dy = p->current.dy};
    for (int i = b->norm1.w, end = p->units[p->rows[i].unit].last; i < end; i++) {
        const struct param *row = &p->rows[i];
        if ((row->fp8 < 0 && !row->current) || row->experts > 0) continue;
        struct layer_linear l = {.in = row->shape[1], .out = row->shape[0]};
        if (norms && row->norm.w >= 0) l.x = CODES_BY_NORM;
        if (stream && (is_row(mixer_out(&b->mixer), i) || is_row(ffn_out(&b->ffn), i))) l.dy = CODES_BY_NORM;
        if (swiglu && i == mlp->up.w) l.dy = CODES_BY_SWIGLU;
        if (swiglu && i == mlp->down.w) l.x = CODES_BY_SWIGLU;
        CHECK(all.count < LAYER_LINEARS_MAX, "a layer of more than %d linears in FP8", LAYER_LINEARS_MAX);
        all.linears[all.count++] = l;
        if (mlp->f > 0 && i == mlp->up.w) all.up = true;
        if (mlp->f > 0 && i == mlp->down.w) all.down = true;
        if (!is_row(ffn_out(&b->ffn), i) && !is_row(mixer_out(&b->mixer), i) && i < b->norm2.w)
            all.qkv = true;
    }
    if (b->ffn.kind == FFN_MOE) {
        add_experts(&all, p, b->ffn.moe.up, &b->ffn.moe);
        add_experts(&all, p, b->ffn.moe.down, &b->ffn.moe);
    }
    return all;
}

/* Of a block's weights. Its experts may be in a unit of their own. */
static struct rank_share_codes codes_of(const struct params *p, int unit, const struct machine *m)
{
    struct rank_share_codes c = {.moves = p->units[unit].moves_codes};
    for (int i = 0; i < p->count; i++) {
        const struct param *row = &p->rows[i];
        const struct param_unit *of = &p->units[row->unit];
        if ((of->experts ? of->block_unit : row->unit) != unit) continue;
        if (row->derived[DERIVED_WHOLE]) c.beside += (double)params_room(row) * (double)dtype_bytes(p->dt);
        if (row->fp8 < 0) continue;
        c.experts_move |= of->experts && of->moves_codes;
        c.bytes += 2 * (double)row->count;
        c.largest = fmax(c.largest, 2 * (double)params_room(row));
        c.seconds += layer_times_codes(m, (double)row->count);
    }
    return c;
}

static void count_codes(struct rank_share *s, const struct decoder *d, const struct machine *m)
{
    const struct params *p = &d->params;
    for (int64_t i = 0; i < s->layers; i++) {
        struct rank_share_layer *l = &s->layer[i];
        l->fp8 = fp8_of(d, &d->blocks[i], s->stream_codes > 0 && !s->staged);
        l->codes = codes_of(p, (int)i + 1, m);
    }
    if (d->spec.mtp_depth == 0) return;
    s->fp8_module = fp8_of(d, &d->mtp[0].block, false);
    s->codes_module = codes_of(p, d->mtp[0].unit, m);
}

static void count_reads(struct rank_share *s, const struct decoder *d, const struct sparse_grad *t)
{
    for (int i = 0; i < t->count; i++) {
        const struct table *one = &t->list[i];
        struct rank_share_layer *l = &s->layer[params_block(&d->params, d->params.rows[one->row].unit) - 1];
        l->rows = (double)(one->slots * one->width);
        l->row_bytes = (double)((t->micros * t->reads + one->slots) * (one->width + 1) * 4);
    }
}

static struct layout layout_of(const struct rank_share *s, const struct decoder *d,
                               const struct plan_layout_args *a, struct arena *act, struct arena *scratch)
{
    struct layout l = {.n = a->tokens,
                       .docs_max = a->docs_max ? a->docs_max : a->tokens,
                       .len_max = a->len_max ? a->len_max : a->tokens,
                       .ops = a->ops,
                       .dt = a->dt,
                       .recipe = a->recipe,
                       .mode = LAYOUT_TRAIN,
                       .recompute = a->recompute,
                       .sparse = a->sparse,
                       .z_loss = a->z_loss,
                       .tp_size = a->mesh->shape.tp,
                       .cp_size = mesh_cp(&a->mesh->shape),
                       .context_kind = a->mesh->shape.context_kind,
                       .params = &d->params,
                       .act = act,
                       .scratch = scratch};
    l.codes_dout = !s->staged && activations_stream_codes(d, &l);
    return l;
}

/* Codes of the stream's gradient, as activations_layout takes them. */
static double stream_codes(const struct rank_share *s, const struct decoder *d,
                           const struct plan_layout_args *a)
{
    struct arena act = {.name = "act"}, scratch = {.name = "scratch"};
    const struct layout l = layout_of(s, d, a, &act, &scratch);
    if (!activations_stream_codes(d, &l)) return 0;
    tensor_take(&act, "codes", DTYPE_U8, 2, l.n, d->spec.hidden_size);
    tensor_take(&act, "transposed codes", DTYPE_U8, 2, d->spec.hidden_size, quantized_ld(l.n));
    return (double)act.used;
}

/* Bytes that a block keeps with a policy, or its feed-forward part alone. */
static double kept_bytes(const struct rank_share *s, const struct decoder *d,
                         const struct plan_layout_args *a, int64_t i, enum recompute policy, bool ffn)
{
    struct arena act = {.name = "act"}, scratch = {.name = "scratch"};
    struct layout l = layout_of(s, d, a, &act, &scratch);
    struct block_saved saved;
    struct ffn_saved part;
    l.recompute = policy;
    if (ffn)
        ffn_layout(&d->blocks[i].ffn, &part, &l);
    else
        block_layout(&d->blocks[i], &saved, &l);
    return (double)act.used;
}

static double shared_bytes(const struct rank_share *s, const struct decoder *d,
                           const struct plan_layout_args *a, int64_t i)
{
    struct arena act = {.name = "act"}, scratch = {.name = "scratch"};
    const struct layout l = layout_of(s, d, a, &act, &scratch);
    struct mlp_saved saved;
    if (d->blocks[i].ffn.kind != FFN_MOE || d->blocks[i].ffn.moe.shared.f == 0) return 0;
    mlp_layout(&d->blocks[i].ffn.moe.shared, &saved, &l);
    return (double)act.used;
}

/* What a layer need not keep if it computes again what is assumed (plan/assume.def). */
static double dropped_bytes(const struct rank_share *s, const struct decoder *d,
                            const struct plan_layout_args *a, int64_t i, const struct assume *assume)
{
    const struct block *b = &d->blocks[i];
    const double e = (double)dtype_bytes(a->dt), n = (double)a->tokens, width = (double)b->norm1.d;
    const struct mixer_flow flow = mixer_traits(model_layer(&d->spec, i).mixer)->mixer_flow(&d->spec);
    const double norms = 2 * n / s->tp * width * e,
                 cheap = kept_bytes(s, d, a, i, RECOMPUTE_NONE, false) -
                         kept_bytes(s, d, a, i, RECOMPUTE_SELECTIVE, false);
    const bool none = s->recompute == RECOMPUTE_NONE, moe = b->ffn.kind == FFN_MOE;
    double sum = 0;
    if (s->recompute == RECOMPUTE_FULL) return 0;
    if (assume->recompute_layernorm > 0 && none) sum += norms;
    if (assume->recompute_mla_up_proj > 0 && none && b->mixer.kind == MIXER_MLA) sum += cheap - norms;
    if (assume->recompute_core_attn > 0 && !flow.linear && mixer_out(&b->mixer))
        sum += n * (double)mixer_out(&b->mixer)->in *
               (e + 4.0 / (double)flow.head_dim); /* with its log-sum-exp */
    if (moe ? assume->recompute_moe > 0 : assume->recompute_mlp > 0)
        sum += kept_bytes(s, d, a, i, RECOMPUTE_NONE, true) - kept_bytes(s, d, a, i, RECOMPUTE_FULL, true);
    else if (moe && assume->recompute_shared_experts > 0)
        sum += shared_bytes(s, d, a, i);
    return sum;
}

/* Once the whole layout is known: what is computed again has one place for all layers. */
static void drop(struct rank_share *s)
{
    for (int64_t i = 0; i < s->layers; i++) {
        s->layer[i].act -= s->layer[i].dropped;
        s->layer[i].scratch += s->layer[i].dropped;
    }
}

static void lay_layers(struct rank_share *s, const struct decoder *d, const struct plan_layout_args *a,
                       const struct assume *assume)
{
    for (int64_t i = 0; i < s->layers; i++) {
        struct arena act = {.name = "act"}, scratch = {.name = "scratch"};
        const struct layout l = layout_of(s, d, a, &act, &scratch);
        struct block_saved saved;
        block_layout(&d->blocks[i], &saved, &l);
        s->layer[i].act = (double)act.used;
        s->layer[i].act_mixer = (double)saved.act_mixer;
        s->layer[i].scratch = (double)scratch.peak;
        if (assume_memory(assume)) s->layer[i].dropped = dropped_bytes(s, d, a, i, assume);
        s->layer[i].overlap = ffn_how(&d->blocks[i].ffn) == SP_OVERLAP ? 1 : 0.5; /* of two branches */
    }
    struct arena sum = {.name = "act"}, scratch = {.name = "scratch"};
    const struct layout l = layout_of(s, d, a, &sum, &scratch);
    struct layout final = sp_local_layout(&l);
    struct head_saved head;
    struct norm_saved norm;
    struct sp ends;
    const int64_t rows = final.n;
    final.recompute = RECOMPUTE_NONE;
    norm_layout(&d->norm, &norm, &final);
    head_layout(&d->head, &head, &l);
    sp_layout(&ends, d->spec.hidden_size, &l);
    s->scratch_head = (double)scratch.peak;
    sum.used = 0;
    tensor_take(&sum, "final sum", l.dt, 2, rows, d->spec.hidden_size);
    s->sum_bytes = (double)sum.used;
}

/* Rows of x and dy of a layer's GEMMs, for schedules that defer weight gradients. */
static status layout_stores(struct rank_share *s, const struct decoder *d, const struct plan_layout_args *a)
{
    for (int64_t i = 0; i < s->layers; i++) {
        struct arena act = {.name = "act"};
        struct deferred q;
        const struct param_unit *unit = &d->params.units[i + 1];
        TRY(deferred_layout(&q, &(struct deferred_layout){.params = &d->params,
                                                          .first = unit->first,
                                                          .last = unit->last,
                                                          .context = mesh_cp(&a->mesh->shape),
                                                          .n = a->tokens,
                                                          .dt = a->dt,
                                                          .a = &act}));
        deferred_fini(&q);
        s->layer[i].store = (double)act.used;
    }
    return STATUS_OK;
}

/* Bytes of the operands of RECIPE_CURRENT, below all other scratch. */
static double operand_bytes(struct decoder *d, const struct plan_layout_args *a)
{
    struct arena scratch = {.name = "scratch"};
    if (a->recipe == RECIPE_CURRENT) current_layout(&d->params, a->tokens, &scratch);
    return (double)scratch.used;
}

/* Bytes of plan_layout for this rank's part of the model without a pipeline, by arena. */
static status layout_whole(struct memory *m, const struct model_spec *spec, const struct plan_layout_args *a,
                           const struct cluster *c, struct rank_share *s)
{
    struct decoder d;
    struct activations act = {0};
    struct rank_state rank;
    TRY(decoder_init(&d, spec, a->mesh));
    *m = (struct memory){0};
    status st = plan_layout(m, &d, &rank, &act, a);
    if (st == STATUS_OK && s) {
        count_rows(s, &d);
        count_reads(s, &d, &rank.sparse_grad);
        s->stream_codes = stream_codes(s, &d, a);
        count_codes(s, &d, c->machine);
        lay_layers(s, &d, a, c->assume);
        s->muon = muon_most(&d.params);
        s->operands = operand_bytes(&d, a);
        s->pieces = (double)(d.params.chunks_model + rank.sparse_grad.chunks_model);
        s->sparse = a->sparse;
        s->act_front = (double)act.act_front;
        st = layout_stores(s, &d, a);
    }
    activations_fini(&act);
    decoder_fini(&d);
    return st;
}

/* As few data-parallel ranks as have all experts together with the context ranks. */
static int ranks_of_experts(const struct mesh_shape *m)
{
    int dp = 1;
    while (dp * mesh_cp(m) % mesh_ep(m) != 0) dp++;
    return dp;
}

/* Scratch of the all-reduce of the largest unit over the ranks of the layout (parallel/grad_reduce.h). */
static double sum_scratch(const struct rank_share *s, const struct mesh_shape *m, bool sparse)
{
    const int ranks = mesh_dp_cp(m);
    double experts = s->experts_module;
    for (int64_t i = 0; i < s->layers; i++) experts = fmax(experts, s->layer[i].experts);
    double most = fmax(s->count_first, fmax(s->count_last, s->count_module));
    for (int64_t i = 0; i < s->layers; i++)
        most = fmax(most, fmax(s->layer[i].count, sparse ? 0 : s->layer[i].table));
    return fmax((double)comm_all_reduce_scratch(ranks, (int64_t)most, DTYPE_F32),
                (double)comm_all_reduce_scratch(ranks / s->ep, (int64_t)experts, DTYPE_F32));
}

double rank_share_norm(const struct rank_share *s, const struct mesh_shape *m, double part)
{
    if (m->tp == 1 && m->pp == 1 && m->zero == 0 && mesh_ep(m) == 1 && !s->sparse) return 0;
    const double all = m->tp * mesh_ep(m) * s->pieces;
    return sizeof(double) * (part * s->pieces + all) +
           (double)comm_all_reduce_scratch(mesh_ranks(m), (int64_t)all, DTYPE_F64);
}

static status layout_bytes(struct rank_share *s, const struct spec *spec, const struct plan_layout_args *a,
                           const struct cluster *c)
{
    struct memory m, without;
    TRY(layout_whole(&m, &spec->model, a, c, s));
    without = m;
    if (spec->model.mtp_depth > 0) {
        struct model_spec plain = spec->model;
        plain.mtp_depth = 0;
        TRY(layout_whole(&without, &plain, a, c, NULL));
    }
    const struct mesh_state state = mesh_state_of(&spec->run, &(struct mesh_moments){0}, 0, 1);
    s->modules = spec->model.mtp_depth;
    s->embedding_resident = s->count_tied > 0 || s->modules > 0 || spec->model.hrm_cycles > 0;
    double count =
               s->count_first + s->count_last + (double)s->modules * (s->count_module + s->experts_module),
           layers = 0, tables = 0, row_bytes = 0, matrices = 0,
           codes = (double)s->modules * s->codes_module.bytes,
           summed = s->partial_grads_last + (double)s->modules * s->partial_grads_module;
    for (int64_t i = 0; i < s->layers; i++) {
        count += s->layer[i].count + s->layer[i].table + s->layer[i].experts;
        layers += s->layer[i].act, summed += s->layer[i].partial_grads;
        row_bytes += s->layer[i].row_bytes;
        matrices += s->layer[i].matrices + s->layer[i].expert_matrices;
        codes += s->layer[i].codes.bytes;
        if (a->sparse) tables += s->layer[i].table;
    }
    s->moments.second = 1 - matrices / count;
    s->param_other = (double)m.param.peak - count * (state.weight + state.master) - codes;
    s->grad_other = (double)m.grad.peak - (count - tables) * state.grad - row_bytes;
    s->grad_other -= sum_scratch(s, &a->mesh->shape, a->sparse); /* fill_stage counts it for all ranks */
    if (s->tp > 1) s->grad_other -= (double)tp_grad_bytes(s->tp, (int64_t)summed);
    /* With its tables, and with slots of offloaded state. */
    s->moments.bytes = ((double)m.optim.peak - rank_share_norm(s, &a->mesh->shape, 1)) / count;
    s->count = count;
    s->act_fixed = (double)without.act.peak - layers - (s->staged ? s->stream_codes : 0);
    s->act_last = (double)(m.act.peak - without.act.peak);
    if (spec->model.hrm_cycles == 0) s->once = 3 * s->sum_bytes; /* x, y and grad; branch and dy */
    if (s->modules > 0) s->act_fixed += s->once, s->act_last -= s->once, s->once = 0;
    s->scratch_last = s->modules > 0 ? (double)m.scratch.peak - s->operands : s->scratch_head;
    s->feed = plan_feed(a);
    s->kind = a->kind;
    s->weight_bytes = state.weight;
    return STATUS_OK;
}

/* What a layer computes in FP8 after the warm-up. GEMMs read codes of a multiple of 16 rows. */
static struct layer_fp8 fp8_now(const struct layer_fp8 *layer, const struct spec *spec, int64_t tokens)
{
    struct layer_fp8 now = *layer;
    now.wgrad = spec->run.fp8_wgrad == FP8_WGRAD_FP8;
    if (tokens % 16 != 0) now.count = 0;
    return now;
}

static void time_layers(struct rank_share *s, const struct spec *spec, const struct cluster *c,
                        const struct mesh_shape *mesh)
{
    const int64_t tokens = s->micro_batch * spec->run.train_sequence_length / s->cp;
    const int modules = (int)spec->model.mtp_depth, segments = (int)model_segments(&spec->model);
    struct layer_shape shape = {
        .model = &spec->model,
        .machine = c->machine,
        .precision = (enum precision)spec->run.train_precision,
        .recompute = s->recompute,
        .imbalance = c->assume->imbalance,
        .gemms = c->assume->gemms,
        .extra_recompute = {.core_attn = c->assume->recompute_core_attn > 0,
                            .layernorm = c->assume->recompute_layernorm > 0,
                            .mla_up_proj = c->assume->recompute_mla_up_proj > 0,
                            .mlp = c->assume->recompute_mlp > 0,
                            .moe = c->assume->recompute_moe > 0,
                            .shared_experts = c->assume->recompute_shared_experts > 0},
        .tokens = tokens,
        .sequence = spec->run.train_sequence_length,
        .stream = tokens / s->tp,
        .context = s->cp,
        .experts = (int)spec->model.moe_experts / s->ep};
    const struct exchange_args exchange = {.cluster = c,
                                           .model = &spec->model,
                                           .mesh = mesh,
                                           .recompute = s->recompute,
                                           .tokens = (double)tokens,
                                           .element = s->weight_bytes, /* of activations' type */
                                           .sequence = spec->run.train_sequence_length};
    struct exchange_args experts_again = exchange;
    experts_again.recompute = RECOMPUTE_FULL;
    for (int64_t i = 0; i < s->layers; i++) {
        s->layer[i].context = exchange_context(&exchange, i);
        s->layer[i].dispatch = exchange_experts(c->assume->recompute_moe > 0 ? &experts_again : &exchange, i);
        shape.fp8 = fp8_now(&s->layer[i].fp8, spec, tokens);
        const struct layer_times t = layer_times_of(&shape, i);
        struct layer_times *sum = &s->layer[i].times;
        layer_time_add(&sum->forward, &t.forward, (double)model_visits(&spec->model, i));
        layer_time_add(&sum->backward, &t.backward, segments);
        layer_time_add(&sum->recompute, &t.recompute, segments);
        sum->wgrad = segments * t.wgrad;
        sum->enter = t.enter, sum->leave = t.leave;
    }
    shape.fp8 = fp8_now(&s->fp8_module, spec, tokens);
    s->embed = layer_times_embed(&shape);
    s->head = layer_times_head(&shape, segments * (1 + modules));
    for (int i = 0; i < modules; i++) {
        const struct layer_times t = layer_times_of(&shape, s->layers + i);
        layer_time_add(&s->head.forward, &t.forward, 1);
        layer_time_add(&s->head.backward, &t.backward, 1);
        layer_time_add(&s->head.backward, &t.recompute, 1);
        s->head.wgrad += t.wgrad;
        const struct exchange x = exchange_experts(&exchange, s->layers + i);
        s->dispatch_modules.forward_bytes += x.forward_bytes, s->dispatch_modules.forward += x.forward;
        s->dispatch_modules.backward_bytes += x.backward_bytes, s->dispatch_modules.backward += x.backward;
        s->dispatch_modules.exposed = x.exposed;
    }
    const struct axis tp = traffic_axis(c, s->tp, 1);
    s->gather_s = traffic_all_gather_s(&tp, s->stream_bytes);
}

/* The layers that are assumed to recompute all. */
static status open_full(struct rank_share *s, const struct mesh_variant *v, const struct rank_share_args *a)
{
    struct assume assume = *a->cluster->assume;
    struct cluster c = *a->cluster;
    struct mesh_variant full = *v;
    struct rank_share_args args = *a;
    if (assume.recompute_layers <= 0 || v->recompute == RECOMPUTE_FULL) return STATUS_OK;
    s->full_layers = (int64_t)assume.recompute_layers;
    assume.recompute_layers = 0;
    c.assume = &assume, args.cluster = &c, full.recompute = RECOMPUTE_FULL;
    return rank_share_open(&s->full, &full, &args);
}

status rank_share_open(struct rank_share **out, const struct mesh_variant *v, const struct rank_share_args *a)
{
    struct spec spec = *a->spec, local;
    const int ep = mesh_ep(&v->mesh), dp = ranks_of_experts(&v->mesh);
    const struct mesh_shape shape = {.pp = 1,
                                     .dp = dp,
                                     .cp = v->mesh.cp,
                                     .context_kind = v->mesh.context_kind,
                                     .ep = v->mesh.ep,
                                     .tp = v->mesh.tp,
                                     .chunks = 1,
                                     .shard = dp * mesh_cp(&v->mesh)};
    const struct mesh mesh = mesh_place(&shape, 0);
    spec.run.train_micro_batch = v->micro_batch;
    spec.run.train_recompute = (int)v->recompute;
    spec.run.train_gradient_groups = 0; /* partial sums depend on dp: fill_stage */
    struct plan_layout_args args = plan_args(&spec, &mesh);
    args.ops = a->ops, args.kind = a->cluster->machine->kind, args.micro_count = 1;
    args.overlay = false; /* depends on the mesh: fill_stage */
    if (args.tokens % v->mesh.tp != 0 || args.tokens >= INT32_MAX)
        return FAIL(STATUS_CONFIG, "a micro-batch of %lld tokens cannot be divided among %d ranks",
                    (long long)args.tokens, v->mesh.tp);
    struct rank_share *s = calloc(1, sizeof *s);
    MEMORY_CHECK(s != NULL, "no memory to plan with");
    const bool fp8 = precision_recipe(&spec.run) == RECIPE_FP8;
    *s = (struct rank_share){.tp = v->mesh.tp,
                             .cp = mesh_cp(&v->mesh),
                             .ep = ep,
                             .context_kind = v->mesh.context_kind,
                             .fp8 = fp8,
                             .staged = fp8 && v->mesh.pp > 1,
                             .recompute = v->recompute,
                             .micro_batch = v->micro_batch,
                             .overlap = a->cluster->machine->overlap,
                             .overlap_tp = a->cluster->machine->overlap ? a->cluster->assume->overlap_tp : 0,
                             .overlap_dp = a->cluster->machine->overlap ? a->cluster->assume->overlap_dp : 0,
                             .layers = spec.model.layer_count,
                             .layer = calloc((size_t)spec.model.layer_count, sizeof *s->layer),
                             .stream_bytes = (double)args.tokens * (double)spec.model.hidden_size *
                                             (double)dtype_bytes(args.dt)};
    /* Muon needs whole matrices, also of sharded rows. */
    const struct layer_shape whole = {.model = &spec.model,
                                      .machine = a->cluster->machine,
                                      .precision = (enum precision)spec.run.train_precision};
    for (int64_t i = 0; s->layer && i < s->layers && spec.run.optim_name == OPTIM_MUON; i++)
        s->layer[i].muon = layer_times_muon(&whole, i) / s->tp;
    MEMORY_CHECK(s->layer != NULL, "no memory to plan with");
    status st = layout_bytes(s, &spec, &args, a->cluster);
    if (st == STATUS_OK) drop(s);
    if (st == STATUS_OK) st = open_full(s, v, a);
    local = spec;
    divide(&local.model, v->mesh.tp);
    if (st == STATUS_OK) time_layers(s, &local, a->cluster, &shape);
    if (st == STATUS_OK)
        *out = s;
    else
        rank_share_close(s);
    return st;
}
