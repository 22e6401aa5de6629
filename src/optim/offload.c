#include "optim/offload.h"
#include "base/scope.h"
#include "optim/muon.h"
#include "optim/optim.h"

#include <stdlib.h>

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static void add_array(struct offload *o, enum offload_what what, void *host, dtype dt, int64_t block)
{
    o->arrays[o->array_count++] =
        (struct offload_array){.what = what, .host = host, .bytes = dtype_bytes(dt), .block = block};
}

/* Entries of an array that belong to so many elements; elements begin with a block, or blocks are single elements. */
static size_t array_bytes(const struct offload_array *a, int64_t elements)
{
    return (size_t)((elements + a->block - 1) / a->block) * a->bytes;
}

void offload_lay(struct offload *o, const struct params *p, struct arena *a)
{
    *o = (struct offload){.on = p->host_state};
    if (!o->on) return;
    o->room = round_up(p->own / OFFLOAD_PIECES, PARAMS_GRID);
    if (o->room < PARAMS_GRID) o->room = PARAMS_GRID;
    if (o->room > OFFLOAD_PIECE) o->room = OFFLOAD_PIECE;
    /* A counting pass has no arrays: what there will be follows from the types. */
    if (params_host_master(p)) add_array(o, OFFLOAD_MASTER, p->master, DTYPE_F32, 1);
    for (int i = 0; i < p->moments; i++) {
        const enum offload_what what = i == 0 ? OFFLOAD_FIRST : OFFLOAD_SECOND;
        add_array(o, what, i == 0 ? p->m : p->v, p->moment_dt, 1);
        if (p->moment_dt == DTYPE_U8)
            add_array(o, what, i == 0 ? p->m_scale : p->v_scale, DTYPE_F32, PARAM_ALIGN);
    }
    for (int i = 0; i < o->array_count; i++) {
        struct offload_array *array = &o->arrays[i];
        array->slot_bytes = array_bytes(array, o->room);
        array->slots = arena_take(a, OFFLOAD_SLOTS * array->slot_bytes, "pieces on their way");
    }
}

/* Master weights of matrices, where they are the host's; `pieces` NULL: counted. */
static int64_t cut_steps(const struct offload *o, const struct params *p, struct offload_piece *pieces)
{
    int64_t n = 0;
    for (int64_t k = 0; k < p->ortho_count && params_host_master(p); k++) {
        const struct muon_span span = muon_span(p, k);
        const int64_t end = span.master + span.count;
        for (int64_t at = span.master; at < end; at += o->room, n++)
            if (pieces)
                pieces[n] = (struct offload_piece){
                    .use = OFFLOAD_STEP, .begin = at, .end = end - at < o->room ? end : at + o->room};
    }
    return n;
}

static enum offload_use use_of(const struct update_chunk *c)
{
    return c->flags & UPDATE_MOMENTUM ? OFFLOAD_MOMENTUM : OFFLOAD_RULE;
}

/* Chunks of one use alone, and of RULE with second moments that lie as they do. */
static bool fits(const struct offload_piece *piece, const struct update_chunk *c, int64_t room)
{
    return c->begin + c->count - piece->begin <= room && use_of(c) == piece->use &&
           (piece->use == OFFLOAD_MOMENTUM || c->no_v == piece->no_v);
}
static void cut_chunks(struct offload *o, const struct params *p, const struct update_chunk *table)
{
    struct offload_piece *piece = NULL;
    int unit = 0;
    for (int64_t c = 0; c < p->chunk_count; c++) {
        const int64_t begin = table[c].begin, end = begin + table[c].count;
        CHECK(piece == NULL || begin >= piece->end, "chunk %lld begins at %lld, behind one that ends at %lld",
              (long long)c, (long long)begin, (long long)piece->end);
        bool next = piece == NULL || !fits(piece, &table[c], o->room);
        while (p->zero && c >= p->units[unit].chunk_first + p->units[unit].chunk_count) unit++, next = true;
        if (next) {
            piece = &o->pieces[o->piece_count++];
            *piece = (struct offload_piece){
                .use = use_of(&table[c]), .chunk = c, .begin = begin, .no_v = table[c].no_v, .unit = unit};
        }
        piece->end = end;
        piece->chunk_count++;
    }
}

status offload_cut(struct offload *o, const struct params *p, const struct update_chunk *table)
{
    if (!o->on) return STATUS_OK;
    const int64_t steps = cut_steps(o, p, NULL);
    free(o->pieces);
    o->piece_count = 0;
    o->pieces = malloc((size_t)(p->chunk_count + steps + 1) * sizeof *o->pieces);
    if (o->pieces == NULL) return FAIL(STATUS_FIT, "no memory for the optimizer's pieces");
    cut_chunks(o, p, table);
    o->step_first = o->piece_count;
    o->piece_count += cut_steps(o, p, o->pieces + o->step_first);
    return STATUS_OK;
}

static status open_streams(struct offload *o, const struct dev *d)
{
    TRY(dev_stream_open(d, &o->up));
    TRY(dev_stream_open(d, &o->down));
    TRY(dev_fence_open(d, &o->begun));
    for (int i = 0; i < OFFLOAD_SLOTS; i++) {
        TRY(dev_fence_open(d, &o->there[i]));
        TRY(dev_fence_open(d, &o->moved[i]));
        TRY(dev_fence_open(d, &o->back[i]));
    }
    return STATUS_OK;
}

status offload_open(struct offload *o, struct stream *s)
{
    return o->on && s ? open_streams(o, s->dev) : STATUS_OK;
}

void offload_close(struct offload *o)
{
    const struct dev *d = o->up.dev;
    for (int i = 0; i < OFFLOAD_SLOTS && d; i++) {
        dev_event_close(d, &o->there[i]);
        dev_event_close(d, &o->moved[i]);
        dev_event_close(d, &o->back[i]);
    }
    if (d) dev_event_close(d, &o->begun);
    dev_stream_close(&o->up);
    dev_stream_close(&o->down);
    free(o->pieces);
    *o = (struct offload){0};
}

/* ---- the walk. On the host all streams are NULL, and everything has happened when its call returns. */

static struct stream *side(struct stream *s)
{
    return s->queue ? s : NULL;
}

static status mark(struct stream *s, struct event *e)
{
    return s ? dev_event_record(s, e) : STATUS_OK;
}

static status wait_for(struct stream *s, struct event *e)
{
    return s ? dev_stream_wait(s, e) : STATUS_OK;
}

static char *slot_at(const struct offload_array *a, int64_t k)
{
    return a->slots + (size_t)(k % OFFLOAD_SLOTS) * a->slot_bytes;
}

static bool travels(const struct offload_array *a, const struct offload_piece *piece)
{
    return piece->use == OFFLOAD_RULE ||
           a->what == (piece->use == OFFLOAD_STEP ? OFFLOAD_MASTER : OFFLOAD_FIRST);
}

/* From an array's beginning to a piece's. */
static size_t place_in(const struct offload_array *a, const struct offload_piece *piece)
{
    return array_bytes(a, piece->begin - (a->what == OFFLOAD_SECOND ? piece->no_v : 0));
}

static status send_up(struct offload *o, int64_t k)
{
    const struct offload_piece *piece = &o->pieces[k];
    struct stream *up = side(&o->up);
    if (k >= OFFLOAD_SLOTS) TRY(wait_for(up, &o->back[k % OFFLOAD_SLOTS]));
    for (int i = 0; i < o->array_count; i++) {
        const struct offload_array *a = &o->arrays[i];
        if (!travels(a, piece)) continue;
        TRY(dev_upload(up, slot_at(a, k), a->host + place_in(a, piece),
                       array_bytes(a, piece->end - piece->begin)));
    }
    return mark(up, &o->there[k % OFFLOAD_SLOTS]);
}

static status send_back(struct offload *o, int64_t k)
{
    const struct offload_piece *piece = &o->pieces[k];
    struct stream *down = side(&o->down);
    TRY(wait_for(down, &o->moved[k % OFFLOAD_SLOTS]));
    for (int i = 0; i < o->array_count; i++) {
        const struct offload_array *a = &o->arrays[i];
        if (!travels(a, piece)) continue;
        TRY(dev_download(down, a->host + place_in(a, piece), slot_at(a, k),
                         array_bytes(a, piece->end - piece->begin)));
    }
    return mark(down, &o->back[k % OFFLOAD_SLOTS]);
}

/* Where an array would begin whose piece lies in the slot: chunks count from the beginning of the whole. */
static void *shifted(const struct offload_array *a, const struct offload_piece *piece, int64_t k)
{
    return (void *)((uintptr_t)slot_at(a, k) - place_in(a, piece));
}

static struct update_args piece_args(const struct offload *o, const struct params *p,
                                     const struct update_args *all, int64_t k)
{
    const struct offload_piece *piece = &o->pieces[k];
    struct update_args a = *all;
    a.half = UPDATE_RULE;
    a.chunks += piece->chunk;
    a.chunk_count = piece->chunk_count;
    if (p->zero) optim_shift(p, &a, piece->unit);
    for (int i = 0; i < o->array_count; i++) {
        const struct offload_array *array = &o->arrays[i];
        void *at = shifted(array, piece, k);
        if (array->host == (char *)p->master) a.p = at;
        if (array->host == (char *)p->m) a.m = at;
        if (array->host == (char *)p->v) a.v = at;
        if (array->host == (char *)p->m_scale) a.m_scale = at;
        if (array->host == (char *)p->v_scale) a.v_scale = at;
    }
    return a;
}

/* What blocks read in fp32, out of the piece that passes. */
static status copy_exact(const struct exec *r, const struct offload_piece *piece, const float *master)
{
    const struct params *p = r->params;
    for (int i = 0; i < p->count && p->zero == 0; i++) { /* else parallel/zero.h gathers it */
        const struct param *row = &p->rows[i];
        if (!row->derived[DERIVED_F32] || row->role == ROLE_BALANCE || !p->units[row->unit].here) continue;
        const int64_t from = row->offset > piece->begin ? row->offset : piece->begin;
        const int64_t to = row->offset + row->count < piece->end ? row->offset + row->count : piece->end;
        if (from >= to) continue;
        TRY(dev_copy(r->stream, params_f32(p, i) + from - row->offset, master + from - piece->begin,
                     (size_t)(to - from) * sizeof *master));
    }
    return STATUS_OK;
}

status offload_begin(struct offload *o, const struct exec *r)
{
    if (!o->on) return STATUS_OK;
    SCOPE("optim.offload", -1);
    TRY(mark(r->stream, &o->begun));
    TRY(wait_for(side(&o->up), &o->begun));
    o->step = o->step_first;
    for (int64_t k = 0; k < OFFLOAD_SLOTS && k < o->piece_count; k++) TRY(send_up(o, k));
    return STATUS_OK;
}

/* What is queued moves piece k: it goes back, and its place is another one's. Copies back run in order: the last is the end of all. */
static status pass_on(struct offload *o, const struct exec *r, int64_t k)
{
    TRY(mark(r->stream, &o->moved[k % OFFLOAD_SLOTS]));
    TRY(send_back(o, k));
    if (k + OFFLOAD_SLOTS < o->piece_count) TRY(send_up(o, k + OFFLOAD_SLOTS));
    return k + 1 == o->piece_count ? wait_for(r->stream, &o->back[k % OFFLOAD_SLOTS]) : STATUS_OK;
}

status offload_update(struct offload *o, const struct exec *r, const struct update_args *all)
{
    const struct params *p = r->params;
    for (int64_t k = 0; k < o->step_first; k++) {
        SCOPE("optim.piece", k);
        const struct offload_piece *piece = &o->pieces[k];
        const struct update_args a = piece_args(o, p, all, k);
        TRY(wait_for(r->stream, &o->there[k % OFFLOAD_SLOTS]));
        TRY(r->ops->update(&a, r->stream));
        if (params_host_master(p) && piece->use == OFFLOAD_RULE)
            TRY(copy_exact(r, piece, (const float *)(const void *)slot_at(&o->arrays[0], k)));
        TRY(pass_on(o, r, k));
    }
    return STATUS_OK;
}

status offload_take(struct offload *o, const struct exec *r, float **master, int64_t *count)
{
    CHECK(o->step < o->piece_count, "more steps of matrices than pieces");
    const struct offload_piece *piece = &o->pieces[o->step];
    CHECK(*master == (float *)r->params->master + piece->begin && *count >= piece->end - piece->begin,
          "piece %lld holds other weights", (long long)o->step);
    *master = (float *)(void *)slot_at(&o->arrays[0], o->step);
    *count = piece->end - piece->begin;
    return wait_for(r->stream, &o->there[o->step % OFFLOAD_SLOTS]);
}

status offload_give(struct offload *o, const struct exec *r)
{
    return pass_on(o, r, o->step++);
}

double offload_bytes(const struct offload *o)
{
    double sum = 0;
    for (int64_t k = 0; k < o->piece_count; k++)
        for (int i = 0; i < o->array_count; i++)
            if (travels(&o->arrays[i], &o->pieces[k]))
                sum += (double)array_bytes(&o->arrays[i], o->pieces[k].end - o->pieces[k].begin);
    return sum;
}
