#include "train/state_int.h"
#include "model/master_weights.h"
#include "optim/saved_state.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = 1 << 20 }; /* of a rank's part per message */

void state_list(struct state *s)
{
    const struct params *p = &s->t->decoder.params;
    const bool host = s->t->exec.stream == NULL, state = host || p->host_state,
               master = (host && !params_split_master(p)) || params_host_master(p);
    const struct state_array all[STATE_ARRAYS] = {
        {"master", params_split_master(p) ? p->weight : p->master, master, DTYPE_F32, 1, false},
        {"m", p->m, state, p->moment_dt, 1, false},
        {"v", p->v, state, p->moment_dt, 1, true},
        {"m_scale", p->m_scale, state, DTYPE_F32, PARAM_ALIGN, false},
        {"v_scale", p->v_scale, state, DTYPE_F32, PARAM_ALIGN, true},
    };
    memcpy(s->list, all, sizeof all);
}

size_t state_array_bytes(const struct state *s, const struct state_array *a)
{
    const struct params *p = &s->t->decoder.params;
    const int64_t count = a->second ? p->total_v : a == s->list ? saved_state_masters(p) : p->own;
    return (size_t)(count / a->block) * dtype_bytes(a->dt);
}

size_t state_map_bytes(const struct state *s)
{
    return (size_t)s->t->decoder.token_map.shape[0] * sizeof *s->map;
}

status state_open_map(struct state *s, enum state_use use)
{
    const void *from = s->t->decoder.token_map.data;
    if (from == NULL) return STATUS_OK;
    s->map = malloc(state_map_bytes(s));
    if (s->map == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no host memory for the map of tokens");
    return use == STATE_SAVE ? dev_download(s->t->exec.stream, s->map, from, state_map_bytes(s)) : STATUS_OK;
}

/* ---- FP8: the history on the device is [2][count][FP8_HISTORY], in a checkpoint [2][FP8_HISTORY] per linear */

enum fp8_way { FP8_FROM_DEVICE, FP8_TO_DEVICE };
static status copy_fp8(const struct state *s, enum fp8_way way)
{
    struct stream *stream = s->t->exec.stream;
    const struct fp8_linears *f = &s->t->decoder.params.fp8;
    const size_t bytes = 2 * (size_t)f->count * FP8_HISTORY * sizeof(float);
    float *device = s->t->fp8.history; /* a buffer for it */
    if (way == FP8_FROM_DEVICE) {
        TRY(dev_download(stream, device, f->history, bytes));
        if (stream) TRY(dev_sync(stream));
    }
    for (int i = 0; i < f->count; i++)
        for (enum fp8_tensor t = FP8_X; t <= FP8_DY; t++) {
            float *there = device + fp8_at(f, t, i) * FP8_HISTORY,
                  *here = s->fp8 + (2 * i + (int)t) * FP8_HISTORY;
            const bool out = way == FP8_TO_DEVICE;
            memcpy(out ? there : here, out ? here : there, FP8_HISTORY * sizeof *here);
        }
    return way == FP8_TO_DEVICE ? dev_upload(stream, f->history, device, bytes) : STATUS_OK;
}

status state_open_fp8(struct state *s, enum state_use use)
{
    if (s->t->fp8.linears == NULL) return STATUS_OK;
    s->fp8 = calloc((size_t)s->t->decoder.params.fp8.count, 2 * FP8_HISTORY * sizeof *s->fp8);
    if (s->fp8 == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the history of FP8 tensors");
    return use == STATE_SAVE ? copy_fp8(s, FP8_FROM_DEVICE) : STATUS_OK;
}

static void list_fp8(struct state *s)
{
    const struct params *p = &s->t->decoder.params;
    for (int i = 0; s->fp8 && i < p->fp8.count; i++) {
        const char *name = p->rows[p->fp8.row[i]].name;
        struct ckpt_item history = {.dt = DTYPE_F32,
                                    .rank = 2,
                                    .shape = {2, FP8_HISTORY},
                                    .data = s->fp8 + 2 * i * FP8_HISTORY,
                                    .tag = STATE_FP8},
                         state = {.dt = DTYPE_I64,
                                  .rank = 1,
                                  .shape = {2},
                                  .data = s->linears ? &s->linears[i] : &s->t->fp8.linears[i],
                                  .tag = STATE_FP8};
        snprintf(history.name, sizeof history.name, "fp8/history/%s", name);
        snprintf(state.name, sizeof state.name, "fp8/state/%s", name);
        s->items[s->count++] = history;
        s->items[s->count++] = state;
    }
}

/* ---- arrays */

/* Allocates memory for copies of what the next optimizer step changes, and copies the little that forward and backward
 * change. */
static status open_copies(struct state *s, struct arena *memory)
{
    struct stream *stream = s->t->exec.stream;
    for (int i = 0; i < STATE_ARRAYS && saved_state_mine(&s->t->mesh); i++)
        if (s->list[i].device)
            s->arrays[i] = arena_take(memory, state_array_bytes(s, &s->list[i]), s->list[i].prefix);
    TRY(state_open_map(s, STATE_SAVE));
    TRY(state_open_fp8(s, STATE_SAVE));
    if (s->fp8) {
        const size_t bytes = (size_t)s->t->decoder.params.fp8.count * sizeof *s->linears;
        s->linears = malloc(bytes);
        if (s->linears == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the state of FP8 linears");
        memcpy(s->linears, s->t->fp8.linears, bytes);
    }
    return stream ? dev_sync(stream) : STATUS_OK;
}

status state_queue(const struct state *s, struct stream *side)
{
    for (int i = 0; i < STATE_ARRAYS; i++) {
        if (s->arrays[i] == NULL || s->list[i].host) continue;
        TRY(i == 0 ? master_weights_queue(&s->t->exec, side, s->arrays[i])
                   : dev_download(side, s->arrays[i], s->list[i].device, state_array_bytes(s, &s->list[i])));
    }
    for (int i = 0; i < STATE_ARRAYS; i++)
        if (s->arrays[i] && s->list[i].host)
            memcpy(s->arrays[i], s->list[i].device, state_array_bytes(s, &s->list[i]));
    return STATUS_OK;
}

status state_join(const struct state *s)
{
    return s->arrays[0] && !s->list[0].host ? master_weights_join(&s->t->exec, s->arrays[0]) : STATUS_OK;
}

status state_capture(const struct state *s)
{
    CHECK(s->t->exec.stream == NULL, "a GPU's state is copied by state_queue");
    for (int i = 0; i < STATE_ARRAYS; i++) {
        if (s->arrays[i] == NULL) continue;
        if (s->list[i].host)
            memcpy(s->arrays[i], s->list[i].device, state_array_bytes(s, &s->list[i]));
        else
            TRY(i == 0
                    ? master_weights_get(&s->t->exec, s->arrays[i])
                    : dev_download(NULL, s->arrays[i], s->list[i].device, state_array_bytes(s, &s->list[i])));
    }
    return STATUS_OK;
}

size_t state_bytes(struct trainer *t)
{
    return saved_state_bytes(&t->decoder.params, &t->mesh);
}

static status open_arrays(struct state *s, enum state_use use)
{
    struct stream *stream = s->t->exec.stream;
    for (int i = 0; i < STATE_ARRAYS; i++) {
        const size_t bytes = state_array_bytes(s, &s->list[i]);
        if (s->list[i].host) s->arrays[i] = s->list[i].device;
        if (s->list[i].host || s->list[i].device == NULL) continue;
        s->arrays[i] = calloc(1, bytes); /* padding between rows is zero, on a GPU after a resume, too */
        if (s->arrays[i] == NULL)
            return FAIL(STATUS_OUT_OF_MEMORY, "no host memory for %zu bytes of the GPU's state", bytes);
        if (use == STATE_SAVE && i == 0) TRY(master_weights_get(&s->t->exec, s->arrays[i]));
        if (use == STATE_SAVE && i > 0) TRY(dev_download(stream, s->arrays[i], s->list[i].device, bytes));
    }
    TRY(state_open_map(s, use));
    TRY(state_open_fp8(s, use));
    return stream ? dev_sync(stream) : STATUS_OK;
}

status state_upload(const struct state *s)
{
    struct trainer *t = s->t;
    TRY(master_weights_put(&t->exec, s->arrays[0]));
    for (int i = 1; i < STATE_ARRAYS; i++)
        if (s->arrays[i] && !s->list[i].host)
            TRY(dev_upload(t->exec.stream, s->list[i].device, s->arrays[i],
                           state_array_bytes(s, &s->list[i])));
    if (s->map) TRY(dev_upload(t->exec.stream, t->decoder.token_map.data, s->map, state_map_bytes(s)));
    if (s->fp8) TRY(copy_fp8(s, FP8_TO_DEVICE));
    TRY(zero_all_gather_weights(&t->rank.zero));
    return dev_sync(t->exec.stream);
}

/* ---- rows: which parts are where */

int64_t state_blocks(const struct state_array *a, int64_t elements)
{
    return (elements + a->block - 1) / a->block;
}

bool state_has_row(const struct state *s, int k, int row)
{
    return s->arrays[k] && !(s->list[k].second && s->t->decoder.params.rows[row].muon);
}

char *state_part(const struct state *s, int k, int row, const struct param_local_range *held)
{
    const struct state_array *a = &s->list[k];
    const int64_t at = held->at - (a->second ? s->t->decoder.params.rows[row].v_offset : 0);
    return (char *)s->arrays[k] + (size_t)(k == 0 ? held->master : at / a->block) * dtype_bytes(a->dt);
}

/* The elements of a row that this rank saves. If several ranks hold them, the first of these saves them. */
static struct state_local_range answer_of(const struct state *s, int row)
{
    const struct trainer *t = s->t;
    const struct params *p = &t->decoder.params;
    const struct param_local_range held = params_local_range(p, row);
    const struct param_unit *unit = &p->units[p->rows[row].unit];
    const bool other = unit->is_replica || (p->tp_rank > 0 && !params_sliced(&p->rows[row])) ||
                       mesh_data_of(&t->mesh, unit->experts).replica > 0;
    struct state_local_range a = {.from = held.from, .count = other ? 0 : held.to - held.from};
    for (int k = 0; s->copies && k < STATE_ARRAYS; k++)
        if (state_has_row(s, k, row))
            a.at[k] = state_part(s, k, row, &held) - s->copies[comm_rank(t->mesh.world)];
    return a;
}

static status agree_answers(struct state *s)
{
    const struct trainer *t = s->t;
    const int ranks = comm_ranks(t->mesh.world), rows = t->decoder.params.count;
    struct state_local_range *mine = malloc((size_t)rows * sizeof *mine);
    s->local_ranges = malloc((size_t)ranks * (size_t)rows * sizeof *s->local_ranges);
    const bool sends = s->copies == NULL && !s->in_parts;
    if (sends) {
        s->sent = malloc(PIECE_BYTES);
        s->received = malloc((size_t)ranks * PIECE_BYTES);
    }
    status st = mine && s->local_ranges && (!sends || (s->sent && s->received))
                    ? STATUS_OK
                    : FAIL(STATUS_OUT_OF_MEMORY, "no memory for the parts of a checkpoint");
    for (int i = 0; i < rows && st == STATUS_OK; i++) mine[i] = answer_of(s, i);
    if (st == STATUS_OK)
        st = comm_all_gather(t->mesh.world, "parts of rows", mine, s->local_ranges,
                             (size_t)rows * sizeof *mine, NULL);
    free(mine);
    return st;
}

/* Copies elements [from, from + count) of a rank's part of a row to their positions in the full tensor. A
 * row with scales is never cut in the middle of a block: its lines begin with blocks. */
struct piece {
    int row, place; /* params_place of the rank */
    int64_t from, count;
};
static void store_piece(const struct state *s, int k, const struct piece *m, const char *part, char *whole)
{
    const struct state_array *a = &s->list[k];
    const size_t element = dtype_bytes(a->dt);
    for (int64_t at = 0, n; at < m->count; at += n) {
        const struct param_line line = params_line(&s->t->decoder.params, m->row, m->place, m->from + at);
        n = line.count < m->count - at ? line.count : m->count - at;
        memcpy(whole + (size_t)(line.global / a->block) * element, part + (size_t)(at / a->block) * element,
               (size_t)state_blocks(a, n) * element);
    }
}

/* ---- saving while training goes on: rank 0 reads the copies of all ranks */

/* ckpt_item.fill on rank 0. */
static status collect(void *ctx, const struct ckpt_item *item, void *whole)
{
    const struct state *s = ctx;
    const struct trainer *t = s->t;
    const int rows = t->decoder.params.count, k = item->tag / rows, row = item->tag % rows;
    for (int r = 0; r < comm_ranks(t->mesh.world); r++) {
        const struct state_local_range *from = &s->local_ranges[r * rows + row];
        const struct mesh it = mesh_place(&t->mesh.shape, r);
        const struct piece m = {.row = row,
                                .place = params_place_of(&t->decoder.params, it.tp_rank, it.ep_rank),
                                .from = from->from,
                                .count = from->count};
        if (m.count > 0) store_piece(s, k, &m, s->copies[r] + from->at[k], whole);
    }
    return STATUS_OK;
}

/* ---- saving: tensors are sent to rank 0 */

/* Elements of a part per message. */
static int64_t piece_elements(const struct state_array *a)
{
    return (int64_t)(PIECE_BYTES / dtype_bytes(a->dt)) * a->block;
}

/* ckpt_item.fill on every rank that saves; `whole` on rank 0 only. */
static status gather(void *ctx, const struct ckpt_item *item, void *whole)
{
    struct state *s = ctx;
    const struct trainer *t = s->t;
    const int ranks = comm_ranks(t->mesh.world), me = comm_rank(t->mesh.world),
              rows = t->decoder.params.count;
    const int k = item->tag / rows, row = item->tag % rows;
    const struct state_array *a = &s->list[k];
    const size_t element = dtype_bytes(a->dt);
    const struct state_local_range *answer = s->local_ranges + row, *mine = answer + (ptrdiff_t)me * rows;
    const struct param_local_range held = params_local_range(&t->decoder.params, row);
    int64_t longest = 0;
    for (int r = 0; r < ranks; r++)
        if (answer[r * rows].count > longest) longest = answer[r * rows].count;
    for (int64_t at = 0; at < longest; at += piece_elements(a)) {
        const int64_t n = longest - at < piece_elements(a) ? longest - at : piece_elements(a);
        const int64_t left = mine->count - at < n ? mine->count - at : n;
        if (left > 0)
            memcpy(s->sent, state_part(s, k, row, &held) + (size_t)(at / a->block) * element,
                   (size_t)state_blocks(a, left) * element);
        TRY(comm_gather(t->mesh.world, "checkpoint", s->sent, s->received,
                        (size_t)state_blocks(a, n) * element));
        for (int r = 0; r < ranks && me == 0; r++) {
            const struct state_local_range *from = &answer[r * rows];
            const int64_t count = from->count - at < n ? from->count - at : n;
            const struct mesh it = mesh_place(&t->mesh.shape, r);
            const struct piece m = {.row = row,
                                    .place = params_place_of(&t->decoder.params, it.tp_rank, it.ep_rank),
                                    .from = from->from + at,
                                    .count = count};
            if (count > 0)
                store_piece(s, k, &m, s->received + (size_t)r * (size_t)state_blocks(a, n) * element, whole);
        }
    }
    return STATUS_OK;
}

status state_send_parts(struct state *s)
{
    checkpoint_order(s->items, s->count);
    for (int i = 0; i < s->count; i++)
        if (s->items[i].fill) TRY(gather(s, &s->items[i], NULL));
    return STATUS_OK;
}

/* ---- loading: this rank's part of a tensor */

/* The first element of this rank's part of a row that is at `place` of the whole tensor or after it. Both have one
 * order. */
static int64_t held_from(const struct params *p, int row, const struct param_local_range *held, int64_t place)
{
    int64_t low = held->from, high = held->to;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (params_line(p, row, params_place(p), middle).global < place)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ckpt_item.take */
static bool take(void *ctx, const struct ckpt_item *item, const void *data, int64_t begin, int64_t end)
{
    const struct state *s = ctx;
    const struct params *p = &s->t->decoder.params;
    const int k = item->tag / p->count, row = item->tag % p->count;
    const struct state_array *a = &s->list[k];
    const int64_t element = (int64_t)dtype_bytes(a->dt), first = begin / element * a->block,
                  last = end / element * a->block;
    const struct param_local_range held = params_local_range(p, row);
    char *part = state_part(s, k, row, &held);
    int64_t from = held_from(p, row, &held, first), n;
    const bool any = from < held.to && params_line(p, row, params_place(p), from).global < last;
    for (int64_t at = from; data && at < held.to; at += n) {
        const struct param_line line = params_line(p, row, params_place(p), at);
        if (line.global >= last) break;
        n = line.count < held.to - at ? line.count : held.to - at;
        if (n > last - line.global) n = last - line.global;
        memcpy(part + (at - held.from) / a->block * element,
               (const char *)data + (line.global - first) / a->block * element,
               (size_t)(state_blocks(a, n) * element));
    }
    return any;
}

/* ---- the list of tensors */

/* The whole tensor is in this rank's memory and, when saving, no other rank saves it. */
static bool all_here(const struct state *s, int row, enum state_use use)
{
    const struct trainer *t = s->t;
    const struct params *p = &t->decoder.params;
    const int ranks = comm_ranks(t->mesh.world);
    const struct param_local_range held = params_local_range(p, row);
    const bool sliced = (p->tp_size > 1 && params_sliced(&p->rows[row])) || p->rows[row].experts_sharded;
    if (use == STATE_LOAD || ranks == 1) return !sliced && held.to - held.from == p->rows[row].count;
    for (int r = 1; r < ranks; r++)
        if (s->local_ranges[r * p->count + row].count > 0) return false;
    return true;
}

/* Scales are a vector: blocks do not end with the rows of a matrix. */
struct ckpt_item state_item(const struct state *s, int k, int row)
{
    const struct state_array *a = &s->list[k];
    const struct params *p = &s->t->decoder.params;
    const struct param *r = &p->rows[row];
    struct ckpt_item item = {
        .dt = a->dt, .rank = r->rank, .shape = {r->global[0], r->global[1]}, .tag = k * p->count + row};
    if (a->block > 1) {
        item.rank = 1;
        item.shape[0] = state_blocks(a, r->rank > 1 ? r->global[0] * r->global[1] : r->global[0]);
        item.shape[1] = 0;
    }
    snprintf(item.name, sizeof item.name, "%s/%s", a->prefix, r->name);
    return item;
}

/* With where it comes from, or goes to. */
static struct ckpt_item item_of(struct state *s, int k, int row, enum state_use use)
{
    const struct param_local_range held = params_local_range(&s->t->decoder.params, row);
    struct ckpt_item item = state_item(s, k, row);
    if (all_here(s, row, use))
        item.data = state_part(s, k, row, &held);
    else
        item.fill = s->copies ? collect : gather, item.take = take, item.ctx = s,
        item.again = s->copies != NULL;
    return item;
}

void state_list_rest(struct state *s)
{
    if (s->map) /* the same on all ranks */
        s->items[s->count++] = (struct ckpt_item){.name = "map/tokens",
                                                  .dt = DTYPE_I32,
                                                  .rank = 1,
                                                  .shape = {s->t->spec.model.vocab_size},
                                                  .data = s->map};
    list_fp8(s);
}

static status list_items(struct state *s, enum state_use use)
{
    const struct params *p = &s->t->decoder.params;
    s->items = calloc((size_t)p->count * (STATE_ARRAYS + 2) + 1, sizeof *s->items);
    if (s->items == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the checkpoint's description");
    for (int k = 0; k < STATE_ARRAYS; k++)
        for (int i = 0; i < p->count; i++) {
            const struct param_local_range held = params_local_range(p, i);
            if (!state_has_row(s, k, i)) continue;
            if (use == STATE_SAVE || held.to > held.from) s->items[s->count++] = item_of(s, k, i, use);
        }
    state_list_rest(s);
    return STATUS_OK;
}

/* Whether ranks save without memory that they share. */
static bool saves_in_parts(const struct trainer *t)
{
    return t->mesh.world && !comm_job(t->mesh.world).shares_memory;
}

status state_open(struct state *s, struct trainer *t, enum state_use use)
{
    *s = (struct state){.t = t, .in_parts = use == STATE_SAVE && saves_in_parts(t)};
    state_list(s);
    status st = open_arrays(s, use);
    if (st == STATUS_OK && use == STATE_SAVE && t->mesh.world) st = agree_answers(s);
    if (st == STATUS_OK && !s->in_parts) st = list_items(s, use);
    if (st != STATUS_OK) state_close(s);
    return st;
}

status state_snapshot(struct state *s, struct trainer *t, struct arena *memory, char *const *copies)
{
    const bool in_parts = saves_in_parts(t);
    CHECK((t->mesh.world == NULL || in_parts) == (copies == NULL),
          "copies of the ranks of a host are shared");
    *s = (struct state){.t = t, .snapshot = true, .in_parts = in_parts, .copies = copies};
    state_list(s);
    arena_release(memory, 0);
    status st = open_copies(s, memory);
    if (st == STATUS_OK && t->mesh.world) st = agree_answers(s);
    if (st == STATUS_OK && !in_parts) st = list_items(s, STATE_SAVE);
    if (st != STATUS_OK) state_close(s);
    return st;
}

void state_close(struct state *s)
{
    for (int i = 0; i < STATE_ARRAYS; i++)
        if (!s->list[i].host && !s->snapshot) free(s->arrays[i]);
    free(s->linears);
    free(s->map);
    free(s->fp8);
    free(s->local_ranges);
    free(s->sent);
    free(s->received);
    for (int i = 0; i < s->count; i++) free((void *)(uintptr_t)s->items[i].piece);
    free(s->items);
    *s = (struct state){0};
}
