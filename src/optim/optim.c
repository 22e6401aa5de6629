#include "optim/optim.h"
#include "base/scope.h"
#include "comm/comm.h"
#include "dev/dev.h"
#include "ops/update_rule.h"
#include "optim/muon.h"
#include "optim/rates.h"
#include "parallel/derived.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* The rule of all parameters but Muon's matrices. */
static enum update_rule rule_of(enum optim kind)
{
    switch (kind) {
    case OPTIM_ADAMW:
    case OPTIM_MUON: break;
    case OPTIM_LION: return UPDATE_LION;
    }
    return UPDATE_ADAMW;
}

int optim_moments(enum optim kind)
{
    return update_needs(rule_of(kind)).second ? 2 : 1;
}

dtype optim_moment_dt(enum optim_state state)
{
    switch (state) {
    case OPTIM_STATE_FP32: break;
    case OPTIM_STATE_BF16: return DTYPE_BF16;
    case OPTIM_STATE_INT8: return DTYPE_U8;
    }
    return DTYPE_F32;
}

static_assert((int)UPDATE_CHUNK >= (int)PARAMS_CHUNK_ALIGN, "pieces end where the grid of their unit does");

/* Whether the update uses stochastic rounding. */
static bool rounds_randomly(const struct params *p)
{
    return p->moment_dt != DTYPE_F32 || p->masterless;
}

/* If a slice has several parts, a chunk ends with its part. So it has one position in the whole row, which stochastic
 * rounding needs, and one rank that owns it. */
static bool is_cut(const struct params *p, const struct param *row)
{
    return p->tp_size > 1 &&
           (row->split == SPLIT_FIRST || (row->split == SPLIT_COLUMN_PARALLEL && rounds_randomly(p)));
}

/* Elements of the chunk that starts at element `at` of a row: up to the next multiple of the unit's alignment. */
static int64_t piece_at(const struct params *p, int index, int64_t at)
{
    const struct param *row = &p->rows[index];
    const struct param_unit *unit = &p->units[row->unit];
    const int64_t into = row->offset + at - unit->begin, most = unit->chunk_align - into % unit->chunk_align;
    int64_t end = row->count;
    if (is_cut(p, row)) end = at + params_line(p, index, params_place(p), at).count;
    return end - at < most ? end - at : most;
}
/* Chunks of elements [from, to) of a row; both are chunk boundaries. */
static int64_t pieces(const struct params *p, int index, int64_t from, int64_t to)
{
    const struct param *row = &p->rows[index];
    if (from == to) return 0;
    const int64_t first = piece_at(p, index, from);
    if (first >= to - from) return 1;
    /* Plans of very large models have too many chunks to count one by one. */
    const int64_t whole = p->units[row->unit].chunk_align;
    if (!is_cut(p, row)) return 1 + (to - from - first + whole - 1) / whole;
    int64_t count = 0;
    for (int64_t at = from; at < to; count++) at += piece_at(p, index, at);
    return count;
}

void optim_layout(struct params *p, struct arena *a)
{
    p->chunk_count = p->balance_count = p->chunks_model = 0;
    for (int i = 0; i < p->count; i++) {
        struct param_unit *unit = &p->units[p->rows[i].unit];
        const struct param_local_range held = params_local_range(p, i);
        if (i == unit->first) unit->chunk_first = p->chunk_count, unit->chunk_place = p->chunks_model;
        if (p->rows[i].role == ROLE_BALANCE) {
            p->balance_count += held.to > held.from;
            continue;
        }
        if (params_sparse(p, p->rows[i].unit)) continue;
        p->chunks_model += pieces(p, i, 0, p->rows[i].count);
        unit->chunk_place += pieces(p, i, 0, held.from);
        p->chunk_count += pieces(p, i, held.from, held.to);
        unit->chunk_count = p->chunk_count - unit->chunk_first;
    }
    p->chunks = arena_take(a, (size_t)p->chunk_count * sizeof *p->chunks, "optimizer's table of chunks");
    p->balance = arena_take(a, (size_t)p->balance_count * sizeof *p->balance, "table of routers");
}

/* Sets the position of a chunk of a slice in the whole row. */
static void place_piece(const struct params *p, int index, int64_t at, struct update_chunk *c)
{
    struct param_block blocks[PARAM_PARTS];
    c->first = params_line(p, index, params_place(p), at).global;
    if (p->tp_size <= 1 || p->rows[index].split != SPLIT_ROW_PARALLEL) return;
    params_blocks(p, index, params_place(p), blocks);
    c->col_offset = (int32_t)(at % blocks[0].width);
    c->first -= c->col_offset;
    c->stride = blocks[0].stride;
    c->width = (int32_t)blocks[0].width;
}

/* Key of its random bits. */
static uint64_t row_key(const struct param *row)
{
    return XXH64(row->name, strlen(row->name), 0);
}

static struct update_chunk *row_pieces(const struct params *p, int index, uint32_t flags,
                                       struct update_chunk *c)
{
    const struct param *row = &p->rows[index];
    const uint64_t key = row_key(row);
    const struct param_local_range held = params_local_range(p, index);
    for (int64_t at = held.from, count; at < held.to; at += count) {
        count = piece_at(p, index, at);
        *c = (struct update_chunk){.begin = held.at + at - held.from,
                                   .count = (int32_t)count,
                                   .flags = flags,
                                   .v_offset = row->v_offset,
                                   .key = key};
        CHECK(p->moment_dt != DTYPE_U8 || c->begin % PARAM_ALIGN == 0, "%s: a piece begins within a block",
              row->name);
        if (p->tp_rank > 0 && at >= params_summed(p, index)) c->flags |= UPDATE_COPY;
        place_piece(p, index, at, c++);
    }
    return c;
}

/* An update processes sixteen elements at once, and draws random bits for four. */
static status check_pieces(const struct params *p, const struct update_chunk *c, const struct param *row)
{
    if (c->begin % 16 == 0 &&
        (!rounds_randomly(p) || (c->first | c->stride | c->width | c->col_offset) % 4 == 0))
        return STATUS_OK;
    return FAIL(STATUS_CONFIG, "parallel.tensor %d cuts %s between elements that move together; use %s",
                p->tp_size, row->name,
                row->split == SPLIT_FIRST ? "another number of ranks"
                                          : "optim.state: fp32 and optim.master: fp32");
}

/* Whether routers' biases are updated in the fp32 copy that blocks read, on the device, instead of the master weights. */
static bool biases_apart(const struct params *p)
{
    return params_split_master(p) || (params_host_master(p) && p->zero == 0);
}

/* Offset of its loads in the gradients; v_offset: distance from there to its biases. */
static struct update_chunk router_of(const struct params *p, const struct param *row,
                                     const struct param_local_range *held)
{
    const int64_t load = p->zero == 1 ? row->offset + held->from : held->at;
    const int64_t copy = row->derived_at[DERIVED_F32] / (int64_t)sizeof(float);
    return (struct update_chunk){.begin = load,
                                 .count = (int32_t)row->count,
                                 .v_offset = load - (biases_apart(p) ? copy + held->from : held->master)};
}

status optim_chunks(struct params *p, const struct run_spec *spec, struct offload *o, dev_stream s)
{
    CHECK(p->chunks != NULL, "no place for the optimizer's table");
    TRY(rates_set(p, spec));
    const int64_t count = p->chunk_count + p->balance_count;
    struct update_chunk *table = malloc((size_t)count * sizeof *table), *c = table;
    int64_t *made = calloc((size_t)p->count, sizeof *made); /* chunks of each row */
    status st = table && made ? STATUS_OK : FAIL(STATUS_OUT_OF_MEMORY, "no memory for the optimizer's table");
    struct update_chunk *b = table + p->chunk_count; /* routers follow the chunks */
    for (int i = 0; i < p->count && st == STATUS_OK; i++) {
        const struct param *row = &p->rows[i];
        if (!p->units[row->unit].is_local || params_sparse(p, row->unit)) continue;
        const struct update_chunk *first = c;
        uint32_t flags = (row->decay > 0 ? UPDATE_DECAY : 0) |
                         (row->gemm_overwrites_grad || p->overlaid ? 0 : UPDATE_ZERO);
        if (row->muon) flags = UPDATE_MOMENTUM;
        if (p->units[row->unit].is_replica || (p->tp_rank > 0 && !params_sliced(row))) flags |= UPDATE_COPY;
        if (row->role == ROLE_TABLE) flags |= UPDATE_ROWS | (uint32_t)row->shape[1] * UPDATE_WIDTH;
        const struct param_local_range held = params_local_range(p, i);
        if (row->role == ROLE_BALANCE && held.to > held.from) *b++ = router_of(p, row, &held);
        if (row->role != ROLE_BALANCE) c = row_pieces(p, i, flags, c);
        made[i] = c - first;
        for (; first < c && st == STATUS_OK; first++) st = check_pieces(p, first, row);
    }
    CHECK(st != STATUS_OK || (c - table == p->chunk_count && b - table == count),
          "%lld pieces for a table of %lld", (long long)(b - table), (long long)count);
    if (st == STATUS_OK && (spec->optim_lr_scale[0] || spec->optim_decay_scale[0])) st = rates_runs(p, made);
    if (st == STATUS_OK && o) st = offload_cut(o, p, table);
    if (st == STATUS_OK) st = dev_upload(s, p->chunks, table, (size_t)p->chunk_count * sizeof *table);
    if (st == STATUS_OK && p->balance_count > 0)
        st = dev_upload(s, p->balance, table + p->chunk_count, (size_t)p->balance_count * sizeof *table);
    free(table);
    free(made);
    return st;
}

void optim_scalars(const struct run_spec *spec, int64_t step, struct step_scalars *s)
{
    s->correction1 = 1 - pow(spec->optim_beta1, (double)(step + 1));
    s->correction2 = 1 - pow(spec->optim_beta2, (double)(step + 1));
    s->step = (uint64_t)step;
}

static bool has_tables(const struct params *p)
{
    for (int i = 0; i < p->count; i++)
        if (p->rows[i].role == ROLE_TABLE) return true;
    return false;
}

static struct update_args update_args_of(const struct exec *r, const struct run_spec *spec,
                                         enum update_phase half, double *squares)
{
    const struct params *p = r->params;
    return (struct update_args){.rule = rule_of((enum optim)spec->optim_name),
                                .phase = half,
                                .p = p->master,
                                .g = p->grad,
                                .m = p->m,
                                .v = p->v,
                                .m_scale = p->m_scale,
                                .v_scale = p->v_scale,
                                .w = p->dt == DTYPE_BF16 ? p->weight : NULL,
                                .master_residual = p->master_residual,
                                .chunks = p->chunks,
                                .chunk_count = p->chunk_count,
                                .squares = squares,
                                .beta1 = spec->optim_beta1,
                                .beta2 = spec->optim_beta2,
                                .eps = spec->optim_eps,
                                .weight_decay = spec->optim_weight_decay,
                                .clip = spec->train_clip,
                                .row_rate = has_tables(p) ? spec->optim_table_rate : 0,
                                .rate = spec->optim_name == OPTIM_MUON ? spec->optim_adam_rate : 1,
                                .momentum = spec->optim_momentum,
                                .scalars = r->scalars,
                                .seed = (uint64_t)spec->run_seed,
                                .moment_dt = p->moment_dt};
}

/* Distance from an offset in sharded arrays to the same element in whole arrays. */
static int64_t shift_of(const struct param_unit *u)
{
    return u->begin + u->count / u->shards * u->shard - u->shard_offset;
}

void optim_shift(const struct params *p, struct update_args *a, int unit)
{
    const int64_t shift = shift_of(&p->units[unit]);
    if (p->zero == 1) a->g += shift;
    if (p->zero < 3 && a->w) a->w += shift;
    if (p->zero < 3 && !a->w) a->p += shift;
}

/* The arguments of a unit of which this rank holds a shard. */
static struct update_args update_args_unit(const struct params *p, struct update_args a, int unit)
{
    const struct param_unit *u = &p->units[unit];
    a.chunks += u->chunk_first;
    a.chunk_count = u->chunk_count;
    if (a.squares) a.squares += u->chunk_first;
    optim_shift(p, &a, unit);
    return a;
}

/* Updates the rows of a table that the step has read. `of`: the arguments of the table's unit. */
static status update_table(const struct exec *r, const struct update_args *of, const struct table *t)
{
    const struct params *p = r->params;
    const struct param *row = &p->rows[t->row];
    const struct param_local_range held = params_local_range(p, t->row);
    struct update_chunk place;
    struct update_args args = *of;
    args.row_rate *= row->lr_scale;
    CHECK(held.from % t->width == 0 && held.to % t->width == 0, "%s: a part of a row", row->name);
    place_piece(p, t->row, 0, &place);
    return r->ops->rows_update(&(struct rows_update_args){.of = args,
                                                          .rows = t->rows,
                                                          .sums = t->sums,
                                                          .slots = t->slots,
                                                          .width = t->width,
                                                          .from = held.from / t->width,
                                                          .to = held.to / t->width,
                                                          .begin = held.at,
                                                          .v_offset = row->v_offset,
                                                          .key = row_key(row),
                                                          .first = place.first,
                                                          .stride = row->rank > 1 ? row->global[1] : 1},
                               r->stream);
}

/* The tables of one unit; -1: all. */
static status update_tables(const struct exec *r, const struct update_args *of, int unit)
{
    for (int i = 0; r->params->sparse && i < r->sparse_grad->count; i++) {
        const struct table *t = &r->sparse_grad->list[i];
        if (unit < 0 || r->params->rows[t->row].unit == unit) TRY(update_table(r, of, t));
    }
    return STATUS_OK;
}

/* Calls the hook `after_update` after each unit, so its all-gather overlaps the rest; not under Muon, whose updates follow. */
static status update(const struct exec *r, const struct run_spec *spec, enum update_phase half,
                     double *squares)
{
    const struct params *p = r->params;
    const struct update_args all = update_args_of(r, spec, half, squares);
    const bool rule = half == UPDATE_APPLY, notify = p->hooks && rule && spec->optim_name != OPTIM_MUON;
    if (p->zero == 0) {
        TRY(rates_update(r, &all));
        return rule ? update_tables(r, &all, -1) : STATUS_OK;
    }
    for (int u = 0; u < p->unit_count; u++) {
        const struct update_args part = update_args_unit(p, all, u);
        if (p->units[u].is_local && !params_sparse(p, u)) TRY(rates_update(r, &part));
        if (p->units[u].is_local && rule) TRY(update_tables(r, &part, u));
        if (notify) TRY(p->hooks->after_update(p->hooks->ctx, u));
    }
    return STATUS_OK;
}

/* Sums of squares of this rank's chunks. */
static status update_squares(const struct exec *r, const struct run_spec *spec, const struct grad_norm *norm)
{
    const struct sparse_grad *t = r->sparse_grad;
    TRY(update(r, spec, UPDATE_CHUNK_NORMS, norm->own));
    if (!r->params->sparse) return STATUS_OK;
    struct update_args rows = update_args_of(r, spec, UPDATE_CHUNK_NORMS, norm->own + r->params->chunk_count);
    rows.g = t->sums, rows.chunks = t->chunks, rows.chunk_count = t->chunk_count;
    return r->ops->update(&rows, r->stream);
}

/* The update: in place on the device, or piece by piece through offload. */
static status move_weights(const struct exec *r, const struct run_spec *spec, struct offload *o,
                           bool has_norm)
{
    const bool away = o != NULL && o->on;
    if (!has_norm && !away && r->params->run_count == 0) return update(r, spec, UPDATE_FUSED, NULL);
    if (!has_norm) TRY(update(r, spec, UPDATE_GLOBAL_NORM, NULL));
    if (!away) return update(r, spec, UPDATE_APPLY, NULL);
    const struct update_args all = update_args_of(r, spec, UPDATE_APPLY, NULL);
    return offload_update(o, r, &all);
}

status optim_zero_grad(const struct exec *r)
{
    const struct params *p = r->params;
    return dev_zero(r->stream, p->grad, (size_t)params_grads(p) * sizeof(float));
}

status optim_norm(const struct exec *r, const struct run_spec *spec, const struct grad_norm *norm)
{
    SCOPE("optim.norm", -1);
    if (norm->own == NULL) return update(r, spec, UPDATE_GLOBAL_NORM, NULL);
    TRY(update_squares(r, spec, norm));
    return grad_norm_sum(norm, r->params, r->ops, &r->scalars->grad_squares, r->stream);
}

status optim_step(const struct exec *r, const struct run_spec *spec, const struct grad_norm *norm,
                  struct offload *o, double balance_rate)
{
    if (norm->own) TRY(optim_norm(r, spec, norm));
    return optim_update(r, spec, norm, o, &(struct optim_rest){balance_rate, norm->own != NULL});
}

status optim_update(const struct exec *r, const struct run_spec *spec, const struct grad_norm *norm,
                    struct offload *o, const struct optim_rest *rest)
{
    SCOPE("optim.step", -1);
    const struct params *p = r->params;
    const bool apart = biases_apart(p);
    TRY(move_weights(r, spec, o, rest->has_norm));
    if (spec->optim_name == OPTIM_MUON) TRY(muon_step(r, spec, norm->mesh, o));
    if (p->balance_count > 0)
        TRY(r->ops->balance(&(struct balance_args){.bias = apart ? p->derived[DERIVED_F32].data : p->master,
                                                   .load = p->grad,
                                                   .rows = p->balance,
                                                   .row_count = p->balance_count,
                                                   .rate = rest->balance_rate,
                                                   .scalars = r->scalars},
                            r->stream));
    return derived_refresh(
        &(struct derived_refresh){.event = DERIVED_STEP, .params = p, .ops = r->ops, .stream = r->stream});
}

/* The reduced gradient of this rank's part of a row. */
struct summed {
    const float *grad;
    int64_t count;
};
static struct summed summed(const struct exec *r, int row)
{
    const struct params *p = r->params;
    const struct param_local_range held = params_local_range(p, row);
    for (int i = 0; p->sparse && i < r->sparse_grad->count; i++) {
        const struct table *t = &r->sparse_grad->list[i];
        if (t->row == row) return (struct summed){t->sums, t->slots * t->width};
    }
    if (held.to == held.from) return (struct summed){0};
    if (p->zero < 2)
        return (struct summed){(const float *)params_grad(p, row) + held.from, held.to - held.from};
    return (struct summed){(const float *)p->grad + held.at, held.to - held.from};
}

/* Downloaded in pieces: memory may be short, and only a failed run comes here. */
static status row_is_finite(const struct exec *r, int row, bool *finite)
{
    enum { PIECE = 4096 };
    float piece[PIECE];
    const struct summed s = summed(r, row);
    *finite = true;
    for (int64_t at = 0; at < s.count && *finite; at += PIECE) {
        const int64_t n = s.count - at < PIECE ? s.count - at : PIECE;
        TRY(dev_download(r->stream, piece, s.grad + at, (size_t)n * sizeof *piece));
        TRY(dev_sync(r->stream));
        for (int64_t i = 0; i < n; i++) *finite &= isfinite(piece[i]) != 0;
    }
    return STATUS_OK;
}

/* The first row of this rank with a gradient that is not finite, or the number of rows. */
static status first_bad_row(const struct exec *r, int32_t *row)
{
    bool finite = true;
    for (*row = 0; *row < r->params->count; ++*row) {
        TRY(row_is_finite(r, *row, &finite));
        if (!finite) return STATUS_OK;
    }
    return STATUS_OK;
}

status optim_find_nonfinite_grad(const struct exec *r, struct comm *world)
{
    int32_t mine, all[COMM_RANKS_MAX];
    TRY(first_bad_row(r, &mine));
    TRY(comm_all_gather(world, "gradients that are not finite", &mine, all, sizeof mine, NULL));
    for (int k = 0; k < comm_ranks(world); k++)
        if (all[k] < mine) mine = all[k];
    if (mine == r->params->count)
        return FAIL(STATUS_NUMERIC, "the gradient norm is not finite, though every gradient is");
    return FAIL(
        STATUS_NUMERIC,
        "the gradient of %s is not finite (a short run with train.precision=fp32 shows whether precision is "
        "the cause)",
        r->params->rows[mine].name);
}
