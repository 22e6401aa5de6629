#include "tensor/params.h"
#include "base/int_math.h"
#include <stdio.h>
#include <stdlib.h>

void params_unit(struct params *p)
{
    p->units = realloc(p->units, (size_t)(p->unit_count + 1) * sizeof *p->units);
    MEMORY_CHECK(p->units != NULL, "no memory for %d units", p->unit_count + 1);
    p->units[p->unit_count++] = (struct param_unit){.first = p->count, .last = p->count, .is_local = true};
}

void params_table(struct params *p, int of)
{
    params_unit(p);
    p->units[p->unit_count - 1].block_unit = of;
}

void params_experts(struct params *p, int of)
{
    params_table(p, of);
    p->units[p->unit_count - 1].experts = true;
}

/* FNV-1a. Plans lay out thousands of models, and each row looks for its name among all: numbers are compared before text. */
static uint32_t name_hash(const char *name)
{
    uint32_t h = 2166136261u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 16777619u;
    return h;
}

int params_add(struct params *p, enum role role, float init_value, int64_t out, int64_t in, const char *fmt,
               ...)
{
    CHECK(p->weight == NULL, "parameters are declared before they are laid out");
    if (p->count == p->capacity) {
        p->capacity = p->capacity ? p->capacity * 2 : 64;
        p->rows = realloc(p->rows, (size_t)p->capacity * sizeof *p->rows);
        p->name_hashes = realloc(p->name_hashes, (size_t)p->capacity * sizeof *p->name_hashes);
        MEMORY_CHECK(p->rows != NULL && p->name_hashes != NULL, "no memory for %d parameter rows",
                     p->capacity);
    }
    if (p->unit_count == 0) params_unit(p);
    struct param *r = &p->rows[p->count];
    *r = (struct param){.role = role,
                        .rank = in ? 2 : 1,
                        .shape = {out, in},
                        .global = {out, in},
                        .unit = p->unit_count - 1,
                        .norm = {-1, -1, 0},
                        .fp8 = -1,
                        .init_value = init_value};
    r->count = in ? out * in : out;
    va_list ap;
    va_start(ap, fmt);
    int len = vsnprintf(r->name, sizeof r->name, fmt, ap);
    va_end(ap);
    CHECK(len > 0 && (size_t)len < sizeof r->name, "parameter name of %d characters", len);
    CHECK(params_find(p, r->name) < 0, "parameter %s declared twice", r->name);
    p->name_hashes[p->count] = name_hash(r->name);
    p->units[r->unit].last++;
    if (role != ROLE_BALANCE) p->param_count += r->count;
    return p->count++;
}

void params_split(struct params *p, int row, enum split split, const int64_t *parts, int part_count)
{
    struct param *r = &p->rows[row];
    const int64_t slices = p->tp_size ? p->tp_size : 1;
    CHECK(part_count <= PARAM_PARTS, "%s has %d parts", r->name, part_count);
    r->split = split;
    r->part_count = part_count;
    int64_t rows = 0;
    for (int i = 0; i < part_count; i++) {
        r->parts[i] = parts[i];
        rows += parts[i];
        CHECK(!(split == SPLIT_COLUMN_PARALLEL || (split == SPLIT_FIRST && i == 0)) || parts[i] % slices == 0,
              "%s: %lld rows for %lld ranks", r->name, (long long)parts[i], (long long)slices);
    }
    CHECK(part_count == 0 || (rows > 0 && r->global[0] % rows == 0), "%s: parts of %lld rows", r->name,
          (long long)rows);
    if (!params_sliced(r)) return;
    if (split == SPLIT_FIRST) {
        CHECK(rows == r->global[0], "%s: parts of %lld rows", r->name, (long long)rows);
        r->shape[0] = rows - parts[0] + parts[0] / slices;
        r->count = r->shape[0] * (r->rank > 1 ? r->shape[1] : 1);
        return;
    }
    const int axis = split == SPLIT_ROW_PARALLEL;
    CHECK(axis < r->rank && r->global[axis] % slices == 0, "%s: %lld cannot be dealt to %lld ranks", r->name,
          (long long)r->global[axis], (long long)slices);
    r->shape[axis] = r->global[axis] / slices;
    r->count = r->shape[0] * (r->rank > 1 ? r->shape[1] : 1);
}

void params_shard_experts(struct params *p, int row)
{
    struct param *r = &p->rows[row];
    if (p->expert_ranks <= 1) return;
    CHECK(params_sliced(r) && r->experts % p->expert_ranks == 0, "%s: %lld experts for %d ranks", r->name,
          (long long)r->experts, p->expert_ranks);
    r->experts_sharded = true;
    r->shape[0] /= p->expert_ranks;
    r->count /= p->expert_ranks;
}

int params_place_of(const struct params *p, int slice, int expert_rank)
{
    return slice + (int)params_tp_size(p) * expert_rank;
}

int params_place(const struct params *p)
{
    return params_place_of(p, p->tp_rank, p->expert_rank);
}

/* Of all parts together. */
static int64_t part_rows(const struct param *row)
{
    int64_t rows = 0;
    for (int i = 0; i < row->part_count; i++) rows += row->parts[i];
    return rows;
}

int params_blocks(const struct params *p, int row, int place, struct param_block blocks[PARAM_PARTS])
{
    const struct param *r = &p->rows[row];
    const int64_t slices = p->tp_size ? p->tp_size : 1, width = r->rank > 1 ? r->global[1] : 1,
                  slice = place % slices, deals = r->experts_sharded ? p->expert_ranks : 1,
                  dealt = r->experts_sharded ? place / slices : 0, /* whose experts, and where they begin */
        begin = dealt * (r->global[0] / deals) * width;
    if (r->split == SPLIT_ROW_PARALLEL) {
        const int64_t columns = r->columns ? r->columns : width, part = columns / slices;
        CHECK(columns % slices == 0 && width % columns == 0, "%s: %lld columns for %lld ranks", r->name,
              (long long)columns, (long long)slices);
        blocks[0] = (struct param_block){.pitch = part,
                                         .global = begin + slice * part,
                                         .stride = columns,
                                         .rows = r->global[0] / deals * (width / columns),
                                         .width = part};
        return 1;
    }
    if (!params_sliced(r)) {
        blocks[0] = (struct param_block){.pitch = r->count, .stride = r->count, .rows = 1, .width = r->count};
        return 1;
    }
    int64_t local = 0, global = 0;
    const int count = r->part_count ? r->part_count : 1;
    const int64_t period = r->part_count ? part_rows(r) : r->global[0];
    for (int i = 0; i < count; i++) {
        const bool shared = r->split == SPLIT_COLUMN_PARALLEL || i == 0;
        const int64_t rows = r->part_count ? r->parts[i] : r->global[0], mine = shared ? rows / slices : rows;
        blocks[i] = (struct param_block){.local = local,
                                         .pitch = r->count / (r->global[0] / deals / period),
                                         .global = begin + (global + (shared ? slice * mine : 0)) * width,
                                         .stride = period * width,
                                         .rows = r->global[0] / deals / period,
                                         .width = mine * width};
        local += mine * width;
        global += rows;
    }
    return count;
}

int64_t params_summed(const struct params *p, int row)
{
    const struct param *r = &p->rows[row];
    if (r->split == SPLIT_PARTIAL_GRAD) return 0;
    return r->split == SPLIT_FIRST ? r->parts[0] / params_tp_size(p) * r->global[1] : r->count;
}

struct param_line params_line(const struct params *p, int row, int place, int64_t at)
{
    struct param_block blocks[PARAM_PARTS];
    const struct param_block *b = blocks + params_blocks(p, row, place, blocks) - 1;
    const int64_t line = at / b->pitch, into = at % b->pitch; /* of all blocks the same */
    while (b->local > into) b--;
    const int64_t skip = into - b->local;
    return (struct param_line){b->global + line * b->stride + skip, b->width - skip};
}

int64_t params_matrix_count(const struct param *row)
{
    return row->part_count ? row->global[0] / part_rows(row) * row->part_count : 1;
}

struct param_matrix params_matrix(const struct param *row, int64_t i)
{
    struct param_matrix m = {.rows = row->global[0], .cols = row->rank > 1 ? row->global[1] : 1};
    if (row->part_count == 0) return m;
    m.begin = i / row->part_count * part_rows(row) * m.cols;
    for (int64_t k = 0; k < i % row->part_count; k++) m.begin += row->parts[k] * m.cols;
    m.rows = row->parts[i % row->part_count];
    return m;
}

static int64_t clamp(int64_t x, int64_t most)
{
    return x < 0 ? 0 : x > most ? most : x;
}

struct param_local_range params_local_range_of(const struct params *p, int row, int shard)
{
    const struct param *r = &p->rows[row];
    const struct param_unit *u = &p->units[r->unit];
    if (!u->is_local) return (struct param_local_range){0};
    struct param_local_range h = {.to = r->count, .at = r->offset, .master = r->offset, .weight = r->offset};
    if (p->zero == 0) return h;
    const int64_t part = u->count / u->shards, begin = shard * part, at = r->offset - u->begin;
    h.from = clamp(begin - at, r->count);
    h.to = clamp(begin + part - at, r->count);
    h.at = u->shard_offset + at + h.from - begin;
    h.weight = p->zero < 3 ? r->offset + h.from : h.at;
    h.master = p->dt == DTYPE_BF16 ? h.at : h.weight;
    return h;
}

struct param_local_range params_local_range(const struct params *p, int row)
{
    return params_local_range_of(p, row, p->units[p->rows[row].unit].shard);
}

int params_find(const struct params *p, const char *name)
{
    const uint32_t hash = name_hash(name);
    for (int i = 0; i < p->count; i++)
        if (p->name_hashes[i] == hash && strcmp(p->rows[i].name, name) == 0) return i;
    return -1;
}

void params_free(struct params *p)
{
    free(p->rows);
    free(p->name_hashes);
    free(p->units);
    free(p->muon_matrices);
    free(p->runs);
    free(p->fp8.use);
    free(p->fp8.row);
    *p = (struct params){0};
}

static int64_t common_multiple(int64_t a, int64_t b)
{
    int64_t x = a, y = b;
    while (y > 0) {
        const int64_t rest = x % y;
        x = y, y = rest;
    }
    return a / x * b;
}

/* What a table begins on and a line of its unit's grid is made of: whole blocks and whole rows. */
static int64_t table_step(const struct param *r)
{
    const int64_t step = common_multiple(PARAM_ALIGN, r->shape[1]);
    CHECK(step <= PARAMS_CHUNK_ALIGN, "%s: no line of the grid is whole rows of %lld", r->name,
          (long long)r->shape[1]);
    return step;
}

static int64_t grid_of(const struct params *p, const struct param_unit *u)
{
    int64_t step = PARAM_ALIGN;
    for (int i = u->first; i < u->last; i++)
        if (p->rows[i].role == ROLE_TABLE) step = common_multiple(step, table_step(&p->rows[i]));
    CHECK(step <= PARAMS_CHUNK_ALIGN, "tables of a unit have no common grid");
    return PARAMS_CHUNK_ALIGN / step * step;
}

/* Of a row's copy, with all that belongs to it. */
static int64_t derived_bytes(const struct params *p, enum derived d, const struct param *row)
{
    int64_t bytes = 0;
    switch (d) {
    case DERIVED_F32: bytes = row->count * (int64_t)sizeof(float); break;
    case DERIVED_WHOLE: bytes = p->zero == 3 ? params_room(row) * (int64_t)dtype_bytes(p->dt) : 0; break;
    case DERIVED_F8:
    case DERIVED_F8_T: bytes = row->count; break;
    case DERIVED_COUNT: break;
    }
    return bytes;
}

static void place_derived(struct params *p, struct param *row, const struct param_unit *unit)
{
    for (enum derived d = 0; d < DERIVED_COUNT; d++) {
        row->derived_at[d] = p->derived[d].bytes;
        if (row->derived[d] && unit->is_local && params_copies(p))
            p->derived[d].bytes += derived_bytes(p, d, row);
    }
}

/* ZeRO 3: the codes of this rank's shard, a byte for each element of it. */
static void place_codes(struct params *p, struct param_unit *unit)
{
    if (p->zero < 3 || !unit->moves_codes || !unit->is_local) return;
    unit->codes_at = p->derived[DERIVED_F8].bytes;
    p->derived[DERIVED_F8].bytes += unit->count / unit->shards;
}

/* Offsets: those of a unit that is elsewhere count from its beginning, too, but take no place. */
static void place_rows(struct params *p)
{
    p->total = p->grad_count = p->grad_count_own = p->own = 0;
    for (int d = 0; d < DERIVED_COUNT; d++) p->derived[d].bytes = 0;
    for (int u = 0; u < p->unit_count; u++) {
        struct param_unit *unit = &p->units[u];
        CHECK(unit->block_unit || p->grad_count == p->total, "a unit behind tables");
        int64_t at = unit->begin = p->total;
        unit->shard_offset = p->own;
        unit->shards = unit->experts ? p->expert_shards : p->shards;
        unit->shard = unit->experts ? p->expert_shard : p->shard;
        unit->weight = unit->grad = NULL;
        unit->chunk_align = grid_of(p, unit);
        for (int i = unit->first; i < unit->last; i++) {
            const int64_t room = params_room(&p->rows[i]), into = at - unit->begin;
            /* A router's biases move by the loads of all its experts: no line of the grid cuts them. */
            if (p->rows[i].role == ROLE_BALANCE && into % unit->chunk_align + room > unit->chunk_align)
                at = unit->begin + int64_round_up(into, unit->chunk_align);
            if (p->rows[i].role == ROLE_TABLE)
                at = unit->begin + int64_round_up(into, table_step(&p->rows[i]));
            p->rows[i].offset = at;
            at += room;
            place_derived(p, &p->rows[i], unit);
        }
        unit->count = int64_round_up(at - unit->begin, p->zero ? unit->shards * unit->chunk_align : 1);
        if (unit->is_local)
            p->total += unit->count, p->own += p->zero ? unit->count / unit->shards : unit->count;
        place_codes(p, unit);
        if (!params_sparse(p, u)) p->grad_count = p->total, p->grad_count_own = p->own;
    }
}

/* v is without what is here of `muon` rows, padding included. */
static void place_v(struct params *p)
{
    int64_t v_offset = 0;
    for (int i = 0; i < p->count; i++) {
        struct param *r = &p->rows[i];
        const struct param_unit *u = &p->units[r->unit];
        const int64_t part = p->zero ? u->count / u->shards : u->count,
                      at = r->offset - u->begin - (p->zero ? u->shard * part : 0);
        r->v_offset = v_offset;
        if (r->muon && u->is_local) v_offset += clamp(at + params_room(r), part) - clamp(at, part);
    }
    p->total_v = p->own - v_offset;
}

/* NULL where a unit's array is not whole. */
static void *unit_at(void *array, const struct param_unit *u, dtype dt)
{
    return array && u->is_local ? (char *)array + (size_t)u->begin * dtype_bytes(dt) : NULL;
}

void params_layout_grad(struct params *p, void *grad)
{
    p->grad = grad;
    for (int u = 0; u < p->unit_count; u++)
        if (p->zero < 2 && !params_sparse(p, u))
            p->units[u].grad = unit_at(grad, &p->units[u], dtype_acc(p->dt));
}

void params_layout(struct params *p, const struct params_layout_args *a)
{
    CHECK(a->dt == DTYPE_F64 || a->dt == DTYPE_F32 || a->dt == DTYPE_BF16, "weights of %s",
          dtype_name(a->dt));
    CHECK(a->moments == 0 || a->moment_dt == DTYPE_F32 || a->moment_dt == DTYPE_BF16 ||
              a->moment_dt == DTYPE_U8,
          "moments of %s", dtype_name(a->moment_dt));
    const struct params_arenas *to = &a->arenas;
    struct arena *state = to->host ? to->host : to->optim;
    p->dt = a->dt;
    p->moment_dt = a->moment_dt;
    p->moments = a->moments;
    p->host_state = to->host != NULL;
    place_rows(p);
    place_v(p);
    const size_t total = (size_t)p->total, n = (size_t)p->own, n_v = (size_t)p->total_v,
                 acc = dtype_bytes(dtype_acc(a->dt)), moment = dtype_bytes(a->moment_dt);
    const size_t weights = p->zero < 3 ? total : n;
    const bool half = a->dt == DTYPE_BF16;
    p->weight = arena_take(to->param, weights * dtype_bytes(a->dt), half ? "bf16 weights" : "master weights");
    p->master = half ? NULL : p->weight;
    if (params_host_master(p)) p->master = arena_take(to->host, n * acc, "master weights");
    if (params_split_master(p) && a->moments > 0 && !p->masterless)
        p->master_residual =
            arena_take(to->param, n * sizeof *p->master_residual, "lower halves of master weights");
#define X(name, text)                                                                                        \
    p->derived[DERIVED_##name].data = arena_take(to->param, (size_t)p->derived[DERIVED_##name].bytes, text);
    DERIVED_LIST(X)
#undef X
    if (a->with_grad && !p->overlaid)
        p->grad = arena_take(to->grad, (size_t)params_grads(p) * acc, "gradients");
    if (a->moments >= 1) p->m = arena_take(state, n * moment, "first moment");
    if (a->moments >= 2) p->v = arena_take(state, n_v * moment, "second moment");
    const size_t per_scale = PARAM_ALIGN / sizeof(float);
    const bool scales = a->moment_dt == DTYPE_U8;
    if (a->moments >= 1 && scales)
        p->m_scale = arena_take(state, n / per_scale, "scales of the first moment");
    if (a->moments >= 2 && scales)
        p->v_scale = arena_take(state, n_v / per_scale, "scales of the second moment");
    for (int u = 0; u < p->unit_count; u++)
        p->units[u].weight = p->zero < 3 ? unit_at(p->weight, &p->units[u], a->dt) : NULL;
    params_layout_grad(p, p->grad);
}
