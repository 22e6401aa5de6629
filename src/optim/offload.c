#include "optim/offload.h"
#include "base/int_math.h"
#include "base/scope.h"
#include "optim/muon.h"
#include "optim/optim.h"
#include "optim/rates.h"
#include "parallel/derived.h"

#include <stdlib.h>

static void add_array(struct offload *o, enum offload_what what, void *host, dtype dt, int64_t block)
{
    o->arrays[o->array_count++] =
        (struct offload_array){.what = what, .host = host, .bytes = dtype_bytes(dt), .block = block};
}

/* Bytes of an array for so many elements, which start at a block (a block may be one element). */
static size_t array_bytes(const struct offload_array *a, int64_t elements)
{
    return (size_t)((elements + a->block - 1) / a->block) * a->bytes;
}

void offload_layout(struct offload *o, const struct params *p, struct arena *a)
{
    *o = (struct offload){.on = p->host_state};
    if (!o->on) return;
    o->capacity = int64_round_up(p->own / OFFLOAD_PIECES, PARAMS_CHUNK_ALIGN);
    if (o->capacity < PARAMS_CHUNK_ALIGN) o->capacity = PARAMS_CHUNK_ALIGN;
    if (o->capacity > OFFLOAD_PIECE) o->capacity = OFFLOAD_PIECE;
    /* A counting pass has no arrays yet: the dtypes decide which there will be. */
    if (params_host_master(p)) add_array(o, OFFLOAD_MASTER, p->master, DTYPE_F32, 1);
    for (int i = 0; i < p->moments; i++) {
        const enum offload_what what = i == 0 ? OFFLOAD_FIRST : OFFLOAD_SECOND;
        add_array(o, what, i == 0 ? p->m : p->v, p->moment_dt, 1);
        if (p->moment_dt == DTYPE_U8)
            add_array(o, what, i == 0 ? p->m_scale : p->v_scale, DTYPE_F32, PARAM_ALIGN);
    }
    for (int i = 0; i < o->array_count; i++) {
        struct offload_array *array = &o->arrays[i];
        array->slot_bytes = array_bytes(array, o->capacity);
        array->slots = arena_take(a, OFFLOAD_SLOTS * array->slot_bytes, "offload slots");
    }
}

/* Pieces of matrices' master weights, if those are on the host; `pieces` NULL: only counts. */
static int64_t cut_steps(const struct offload *o, const struct params *p, struct offload_piece *pieces)
{
    int64_t n = 0;
    for (int64_t k = 0; k < p->muon_count && params_host_master(p); k++) {
        const struct muon_span span = muon_span(p, k);
        const int64_t end = span.master + span.count;
        for (int64_t at = span.master; at < end; at += o->capacity, n++)
            if (pieces)
                pieces[n] = (struct offload_piece){
                    .use = OFFLOAD_STEP, .begin = at, .end = end - at < o->capacity ? end : at + o->capacity};
    }
    return n;
}

static enum offload_use use_of(const struct update_chunk *c)
{
    return c->flags & UPDATE_MOMENTUM ? OFFLOAD_MOMENTUM : OFFLOAD_RULE;
}

/* A piece has chunks of one use; of RULE, with one offset of second moments. */
static bool fits(const struct offload_piece *piece, const struct update_chunk *c, int64_t capacity)
{
    return c->begin + c->count - piece->begin <= capacity && use_of(c) == piece->use &&
           (piece->use == OFFLOAD_MOMENTUM || c->v_offset == piece->v_offset);
}
static void cut_chunks(struct offload *o, const struct params *p, const struct update_chunk *table)
{
    struct offload_piece *piece = NULL;
    int unit = 0;
    for (int64_t c = 0; c < p->chunk_count; c++) {
        const int64_t begin = table[c].begin, end = begin + table[c].count;
        CHECK(piece == NULL || begin >= piece->end, "chunk %lld begins at %lld, behind one that ends at %lld",
              (long long)c, (long long)begin, (long long)piece->end);
        bool next = piece == NULL || !fits(piece, &table[c], o->capacity);
        while (p->zero && c >= p->units[unit].chunk_first + p->units[unit].chunk_count) unit++, next = true;
        if (next) {
            piece = &o->pieces[o->piece_count++];
            *piece = (struct offload_piece){.use = use_of(&table[c]),
                                            .chunk = c,
                                            .begin = begin,
                                            .v_offset = table[c].v_offset,
                                            .unit = unit};
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
    if (o->pieces == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the optimizer's pieces");
    cut_chunks(o, p, table);
    o->step_first = o->piece_count;
    o->piece_count += cut_steps(o, p, o->pieces + o->step_first);
    return STATUS_OK;
}

static status open_streams(struct offload *o, const struct dev *d)
{
    TRY(dev_stream_open(d, &o->up));
    TRY(dev_stream_open(d, &o->down));
    TRY(dev_fence_open(d, &o->step_begun));
    for (int i = 0; i < OFFLOAD_SLOTS; i++) {
        TRY(dev_fence_open(d, &o->uploaded[i]));
        TRY(dev_fence_open(d, &o->updated[i]));
        TRY(dev_fence_open(d, &o->downloaded[i]));
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
        dev_event_close(d, &o->uploaded[i]);
        dev_event_close(d, &o->updated[i]);
        dev_event_close(d, &o->downloaded[i]);
    }
    if (d) dev_event_close(d, &o->step_begun);
    dev_stream_close(&o->up);
    dev_stream_close(&o->down);
    free(o->pieces);
    *o = (struct offload){0};
}

/* ---- copies and updates. On the host all streams are NULL, and every call has finished when it returns. */

static struct stream *side(struct stream *s)
{
    return s->queue ? s : NULL;
}

static status record(struct stream *s, struct event *e)
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

static bool is_copied(const struct offload_array *a, const struct offload_piece *piece)
{
    return piece->use == OFFLOAD_RULE ||
           a->what == (piece->use == OFFLOAD_STEP ? OFFLOAD_MASTER : OFFLOAD_FIRST);
}

/* Byte offset of a piece in an array. */
static size_t offset_in(const struct offload_array *a, const struct offload_piece *piece)
{
    return array_bytes(a, piece->begin - (a->what == OFFLOAD_SECOND ? piece->v_offset : 0));
}

static status upload_piece(struct offload *o, int64_t k)
{
    const struct offload_piece *piece = &o->pieces[k];
    struct stream *up = side(&o->up);
    if (k >= OFFLOAD_SLOTS) TRY(wait_for(up, &o->downloaded[k % OFFLOAD_SLOTS]));
    for (int i = 0; i < o->array_count; i++) {
        const struct offload_array *a = &o->arrays[i];
        if (!is_copied(a, piece)) continue;
        TRY(dev_upload(up, slot_at(a, k), a->host + offset_in(a, piece),
                       array_bytes(a, piece->end - piece->begin)));
    }
    return record(up, &o->uploaded[k % OFFLOAD_SLOTS]);
}

static status download_piece(struct offload *o, int64_t k)
{
    const struct offload_piece *piece = &o->pieces[k];
    struct stream *down = side(&o->down);
    TRY(wait_for(down, &o->updated[k % OFFLOAD_SLOTS]));
    for (int i = 0; i < o->array_count; i++) {
        const struct offload_array *a = &o->arrays[i];
        if (!is_copied(a, piece)) continue;
        TRY(dev_download(down, a->host + offset_in(a, piece), slot_at(a, k),
                         array_bytes(a, piece->end - piece->begin)));
    }
    return record(down, &o->downloaded[k % OFFLOAD_SLOTS]);
}

/* The base address that makes chunk offsets, which count from the start of the array, point into the slot. */
static void *shifted(const struct offload_array *a, const struct offload_piece *piece, int64_t k)
{
    return (void *)((uintptr_t)slot_at(a, k) - offset_in(a, piece));
}

static struct update_args piece_args(const struct offload *o, const struct params *p,
                                     const struct update_args *all, int64_t k)
{
    const struct offload_piece *piece = &o->pieces[k];
    struct update_args a = *all;
    a.phase = UPDATE_APPLY;
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

/* Makes derived copies of the piece that is on the GPU. */
static status refresh_derived(const struct exec *r, const struct offload_piece *piece, const float *master)
{
    return derived_refresh(&(struct derived_refresh){.event = DERIVED_PIECE,
                                                     .params = r->params,
                                                     .ops = r->ops,
                                                     .stream = r->stream,
                                                     .values = master,
                                                     .begin = piece->begin,
                                                     .end = piece->end});
}

status offload_prefetch(struct offload *o, const struct exec *r)
{
    if (!o->on) return STATUS_OK;
    SCOPE("optim.offload", -1);
    TRY(record(r->stream, &o->step_begun));
    TRY(wait_for(side(&o->up), &o->step_begun));
    o->step = o->step_first;
    for (int64_t k = 0; k < OFFLOAD_SLOTS && k < o->piece_count; k++) TRY(upload_piece(o, k));
    return STATUS_OK;
}

/* After the update of piece k is queued: queues its copy back and the upload of the next piece into its slot. Copies back
 * run in order, so the last one ends the step. */
static status return_piece(struct offload *o, const struct exec *r, int64_t k)
{
    TRY(record(r->stream, &o->updated[k % OFFLOAD_SLOTS]));
    TRY(download_piece(o, k));
    if (k + OFFLOAD_SLOTS < o->piece_count) TRY(upload_piece(o, k + OFFLOAD_SLOTS));
    return k + 1 == o->piece_count ? wait_for(r->stream, &o->downloaded[k % OFFLOAD_SLOTS]) : STATUS_OK;
}

status offload_update(struct offload *o, const struct exec *r, const struct update_args *all)
{
    const struct params *p = r->params;
    for (int64_t k = 0; k < o->step_first; k++) {
        SCOPE("optim.piece", k);
        const struct offload_piece *piece = &o->pieces[k];
        const struct update_args a = piece_args(o, p, all, k);
        TRY(wait_for(r->stream, &o->uploaded[k % OFFLOAD_SLOTS]));
        TRY(rates_update(r, &a));
        if (params_host_master(p) && piece->use == OFFLOAD_RULE)
            TRY(refresh_derived(r, piece, (const float *)(const void *)slot_at(&o->arrays[0], k)));
        TRY(return_piece(o, r, k));
    }
    return STATUS_OK;
}

status offload_acquire(struct offload *o, const struct exec *r, float **master, int64_t *count)
{
    CHECK(o->step < o->piece_count, "more steps of matrices than pieces");
    const struct offload_piece *piece = &o->pieces[o->step];
    CHECK(*master == (float *)r->params->master + piece->begin && *count >= piece->end - piece->begin,
          "piece %lld holds other weights", (long long)o->step);
    *master = (float *)(void *)slot_at(&o->arrays[0], o->step);
    *count = piece->end - piece->begin;
    return wait_for(r->stream, &o->uploaded[o->step % OFFLOAD_SLOTS]);
}

status offload_release(struct offload *o, const struct exec *r)
{
    return return_piece(o, r, o->step++);
}

double offload_bytes(const struct offload *o)
{
    double sum = 0;
    for (int64_t k = 0; k < o->piece_count; k++)
        for (int i = 0; i < o->array_count; i++)
            if (is_copied(&o->arrays[i], &o->pieces[k]))
                sum += (double)array_bytes(&o->arrays[i], o->pieces[k].end - o->pieces[k].begin);
    return sum;
}
