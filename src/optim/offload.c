#include "optim/offload.h"
#include "base/scope.h"
#include "optim/optim.h"

#include <stdlib.h>

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static void add_array(struct offload *o, void *host, dtype dt, int64_t block)
{
    o->arrays[o->array_count++] =
        (struct offload_array){.host = host, .bytes = dtype_bytes(dt), .block = block};
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
    CHECK(p->total_v == p->own, "rows without second moments in pieces");
    o->room = round_up(p->own / OFFLOAD_PIECES, PARAMS_GRID);
    if (o->room < PARAMS_GRID) o->room = PARAMS_GRID;
    if (o->room > OFFLOAD_PIECE) o->room = OFFLOAD_PIECE;
    /* A counting pass has no arrays: what there will be follows from the types. */
    if (params_host_master(p)) add_array(o, p->master, DTYPE_F32, 1);
    for (int i = 0; i < p->moments; i++) {
        add_array(o, i == 0 ? p->m : p->v, p->moment_dt, 1);
        if (p->moment_dt == DTYPE_U8) add_array(o, i == 0 ? p->m_scale : p->v_scale, DTYPE_F32, PARAM_ALIGN);
    }
    for (int i = 0; i < o->array_count; i++) {
        struct offload_array *array = &o->arrays[i];
        array->slot_bytes = array_bytes(array, o->room);
        array->slots = arena_take(a, OFFLOAD_SLOTS * array->slot_bytes, "pieces on their way");
    }
}

status offload_cut(struct offload *o, const struct params *p, const struct update_chunk *table)
{
    struct offload_piece *piece = NULL;
    if (!o->on) return STATUS_OK;
    free(o->pieces);
    o->piece_count = 0;
    o->pieces = malloc((size_t)(p->chunk_count ? p->chunk_count : 1) * sizeof *o->pieces);
    if (o->pieces == NULL) return FAIL(STATUS_FIT, "no memory for the optimizer's pieces");
    int unit = 0;
    for (int64_t c = 0; c < p->chunk_count; c++) {
        const int64_t begin = table[c].begin, end = begin + table[c].count;
        CHECK(piece == NULL || begin >= piece->end, "chunk %lld begins at %lld, behind one that ends at %lld",
              (long long)c, (long long)begin, (long long)piece->end);
        bool next = piece == NULL || end - piece->begin > o->room;
        while (p->zero && c >= p->units[unit].chunk_first + p->units[unit].chunk_count) unit++, next = true;
        if (next) {
            piece = &o->pieces[o->piece_count++];
            *piece = (struct offload_piece){.chunk = c, .begin = begin, .unit = unit};
        }
        piece->end = end;
        piece->chunk_count++;
    }
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

static char *host_at(const struct offload_array *a, const struct offload_piece *piece)
{
    return a->host + array_bytes(a, piece->begin);
}

static status send_up(struct offload *o, int64_t k)
{
    const struct offload_piece *piece = &o->pieces[k];
    struct stream *up = side(&o->up);
    if (k >= OFFLOAD_SLOTS) TRY(wait_for(up, &o->back[k % OFFLOAD_SLOTS]));
    for (int i = 0; i < o->array_count; i++) {
        const struct offload_array *a = &o->arrays[i];
        TRY(dev_upload(up, slot_at(a, k), host_at(a, piece), array_bytes(a, piece->end - piece->begin)));
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
        TRY(dev_download(down, host_at(a, piece), slot_at(a, k), array_bytes(a, piece->end - piece->begin)));
    }
    return mark(down, &o->back[k % OFFLOAD_SLOTS]);
}

/* Where an array would begin whose piece lies in the slot: chunks count from the beginning of the whole. */
static void *shifted(const struct offload_array *a, const struct offload_piece *piece, int64_t k)
{
    return (void *)((uintptr_t)slot_at(a, k) - array_bytes(a, piece->begin));
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
static status copy_exact(const struct run *r, const struct offload_piece *piece, const float *master)
{
    const struct params *p = r->params;
    for (int i = 0; i < p->count && p->zero == 0; i++) { /* else parallel/zero.h gathers it */
        const struct param *row = &p->rows[i];
        if (!row->exact || row->role == ROLE_BALANCE || !p->units[row->unit].here) continue;
        const int64_t from = row->offset > piece->begin ? row->offset : piece->begin;
        const int64_t to = row->offset + row->count < piece->end ? row->offset + row->count : piece->end;
        if (from >= to) continue;
        TRY(dev_copy(r->stream, p->exact + row->exact_at + from - row->offset, master + from - piece->begin,
                     (size_t)(to - from) * sizeof *master));
    }
    return STATUS_OK;
}

status offload_begin(struct offload *o, const struct run *r)
{
    if (!o->on) return STATUS_OK;
    SCOPE("optim.offload", -1);
    TRY(mark(r->stream, &o->begun));
    TRY(wait_for(side(&o->up), &o->begun));
    for (int64_t k = 0; k < OFFLOAD_SLOTS && k < o->piece_count; k++) TRY(send_up(o, k));
    return STATUS_OK;
}

status offload_update(struct offload *o, const struct run *r, const struct update_args *all)
{
    const struct params *p = r->params;
    for (int64_t k = 0; k < o->piece_count; k++) {
        SCOPE("optim.piece", k);
        const int slot = (int)(k % OFFLOAD_SLOTS);
        const struct update_args a = piece_args(o, p, all, k);
        TRY(wait_for(r->stream, &o->there[slot]));
        TRY(r->ops->update(&a, r->stream));
        if (params_host_master(p))
            TRY(copy_exact(r, &o->pieces[k], (const float *)(const void *)slot_at(&o->arrays[0], k)));
        TRY(mark(r->stream, &o->moved[slot]));
        TRY(send_back(o, k));
        if (k + OFFLOAD_SLOTS < o->piece_count) TRY(send_up(o, k + OFFLOAD_SLOTS));
    }
    /* copies back run in order: the last is the end of all */
    return o->piece_count ? wait_for(r->stream, &o->back[(o->piece_count - 1) % OFFLOAD_SLOTS]) : STATUS_OK;
}

double offload_bytes(const struct offload *o)
{
    double sum = 0;
    for (int64_t k = 0; k < o->piece_count; k++)
        for (int i = 0; i < o->array_count; i++)
            sum += (double)array_bytes(&o->arrays[i], o->pieces[k].end - o->pieces[k].begin);
    return sum;
}
