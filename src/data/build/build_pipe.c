/* Threads and the ring of slots between them. The reader fills slots at `head`, the encoders take the
 * groups of the slots in between, the writer empties slots at `tail`. One lock guards the counters; the
 * counters determine which thread owns a slot or a group.
 *
 * One encoder splits a long document into parts. All encoders then take these parts before any other work,
 * because the writer waits for them. At most PARTS_AHEAD parts are encoded ahead of the writer. */
#include "data/build/build_int.h"

#include "base/parallel.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS_AHEAD = 16 }; /* and two per thread */

/* --- the reader ----------------------------------------------------------------------------------------- */

static void *grown(void *array, size_t room, size_t size)
{
    array = realloc(array, room * size);
    MEMORY_CHECK(array, "no memory for %zu elements of %zu bytes", room, size);
    return array;
}

/* Copies a batch to the slot, since the reader reuses its memory. */
static void copy_batch(struct build_slot *s, const struct reader_batch *batch)
{
    s->batch = *batch;
    if (batch->bytes >= BORROW_BYTES) return;
    if (batch->bytes > s->data_room) s->data = grown(s->data, s->data_room = batch->bytes, 1);
    if (batch->bytes > 0) memcpy(s->data, batch->data, batch->bytes);
    if (batch->count > s->record_room)
        s->records = grown(s->records, (size_t)(s->record_room = batch->count), sizeof *s->records);
    memcpy(s->records, batch->records, (size_t)batch->count * sizeof *s->records);
    s->batch.data = s->data;
    s->batch.records = s->records;
    int32_t faults = 0;
    for (int64_t i = 0; i < batch->count; i++)
        if (batch->records[i].fault > faults) faults = batch->records[i].fault;
    s->faults = faults ? grown(s->faults, (size_t)faults, sizeof *s->faults) : s->faults;
    for (; s->fault_count < faults; s->fault_count++) {
        s->faults[s->fault_count] = strdup(batch->faults[s->fault_count]);
        MEMORY_CHECK(s->faults[s->fault_count], "no memory for a message");
    }
    s->batch.faults = s->faults;
}

static void make_groups(struct build_slot *s)
{
    const struct reader_batch *batch = &s->batch;
    s->group_count = 0;
    for (int64_t i = 0; i < batch->count; s->group_count++) {
        if (s->group_count == s->group_room) {
            int64_t before = s->group_room;
            s->group_room = before ? 2 * before : 64;
            s->groups = grown(s->groups, (size_t)s->group_room, sizeof *s->groups);
            memset(s->groups + before, 0, (size_t)(s->group_room - before) * sizeof *s->groups);
        }
        struct build_group *g = &s->groups[s->group_count];
        g->begin = i;
        g->is_long = batch->records[i].bytes >= LONG_BYTES;
        g->out.count = g->out.piece_count = g->out.sketch_count = g->skipped = g->empty = 0;
        g->done = false;
        g->st = STATUS_OK;
        size_t bytes = 0;
        while (i < batch->count && bytes < GROUP_BYTES &&
               (i == g->begin || batch->records[i].bytes < LONG_BYTES))
            bytes += batch->records[i++].bytes + 1;
        g->end = i;
    }
}

static status fill_places(const struct build *b, struct build_slot *s, const struct build_source *source,
                          int64_t bytes_before)
{
    if (b->config->val != BUILD_VAL_TAIL) return STATUS_OK;
    if (s->batch.count > s->place_room)
        s->places = grown(s->places, (size_t)(s->place_room = s->batch.count), sizeof *s->places);
    for (int64_t i = 0; i < s->batch.count; i++) {
        int64_t at = build_source_place(source, &s->batch, i);
        if (at < 0)
            return FAIL(
                STATUS_CONFIG,
                "%s: it cannot be told where in this file a document begins; use --val-fraction in place "
                "of --val-tail",
                s->batch.path);
        s->places[i] = bytes_before + at;
    }
    return STATUS_OK;
}

/* Returns the slot at head when it is free; NULL: the build ends. */
static struct build_slot *free_slot(struct build_pipe *p)
{
    pthread_mutex_lock(&p->lock);
    while (!p->quit && p->head - p->tail == p->slot_count) pthread_cond_wait(&p->room, &p->lock);
    struct build_slot *s = p->quit ? NULL : &p->slots[p->head % p->slot_count];
    pthread_mutex_unlock(&p->lock);
    if (!s) return NULL;
    while (s->fault_count > 0) free(s->faults[--s->fault_count]);
    s->st = STATUS_OK;
    s->group_count = 0;
    return s;
}

/* Hands the slot at head over. A borrowed batch belongs to the reader, so this waits until it is done. */
static void publish(struct build_pipe *p, enum build_owner owner)
{
    pthread_mutex_lock(&p->lock);
    p->head++;
    pthread_cond_broadcast(&p->work);
    pthread_cond_signal(&p->done);
    while (owner == BUILD_BORROWED && !p->quit && p->tail < p->head) pthread_cond_wait(&p->room, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

/* Keeps a source open while records of it are in use: error messages name its file. */
static void retain(struct build_pipe *p, struct build_slot *s, struct build_source *source)
{
    pthread_mutex_lock(&p->lock);
    s->source = source;
    source->users++;
    pthread_mutex_unlock(&p->lock);
}

static void drop(struct build_pipe *p, struct build_source *source)
{
    pthread_mutex_lock(&p->lock);
    bool last = source && --source->users == 0;
    pthread_mutex_unlock(&p->lock);
    if (last) build_source_close(source);
}

/* Reads one input; *quit: the build ends. */
static status read_input(struct build *b, struct build_source *source, struct build_mark *mark,
                         int64_t bytes_before, bool *quit)
{
    struct build_pipe *p = &b->pipe;
    for (;;) {
        struct build_slot *s = free_slot(p);
        *quit = s == NULL;
        if (*quit) return STATUS_OK;
        struct reader_batch batch;
        bool more;
        TRY(build_source_next(source, &batch, &more));
        if (!more) return STATUS_OK;
        copy_batch(s, &batch);
        TRY(fill_places(b, s, source, bytes_before));
        make_groups(s);
        s->record_base = mark->records;
        mark->records += batch.count;
        mark->at = build_source_mark(source);
        s->after = *mark;
        s->bytes_done = bytes_before + build_source_done(source);
        s->last = batch.last && bytes_before + build_source_bytes(source) == b->inputs.bytes;
        build_inputs_follow(&b->inputs, s->bytes_done);
        retain(p, s, source);
        publish(p, s->batch.data == batch.data ? BUILD_BORROWED : BUILD_COPIED);
    }
}

static status read_inputs(struct build *b)
{
    struct build_mark mark = b->pipe.from;
    int64_t bytes_before = 0;
    int file = 0;
    bool quit = false;
    for (int i = mark.input; i < b->config->input_count && !quit; i++) {
        struct build_source *source;
        for (; file < b->inputs.count && b->inputs.files[file].input < i; file++)
            bytes_before += b->inputs.files[file].bytes;
        if (i > mark.input) mark = (struct build_mark){.input = i, .records = mark.records};
        TRY(build_source_open(&source, b->config, i, mark.at));
        status st = read_input(b, source, &mark, bytes_before, &quit);
        drop(&b->pipe, source);
        TRY(st);
    }
    return STATUS_OK;
}

static void *reader_main(void *arg)
{
    struct build *b = arg;
    struct build_pipe *p = &b->pipe;
    status st = read_inputs(b);
    struct build_slot *s = st == STATUS_OK ? NULL : free_slot(p);
    if (s) {
        s->st = st;
        s->batch = (struct reader_batch){0};
        s->group_count = 0;
        snprintf(s->message, sizeof s->message, "%s", status_message());
        publish(p, BUILD_COPIED);
    }
    pthread_mutex_lock(&p->lock);
    p->ended = true;
    pthread_cond_signal(&p->done);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* --- the encoders --------------------------------------------------------------------------------------- */

/* The next part that is ready to be encoded. */
static struct build_part *take_part(struct build_pipe *p, struct build_group **of)
{
    for (struct build_group *g = p->longs; g; g = g->next_long) {
        if (g->part_next == g->part_count) continue;
        if (g->part_next >= g->part_written + PARTS_AHEAD + 2 * p->worker_count) return NULL;
        *of = g;
        return &g->parts[g->part_next++];
    }
    return NULL;
}

static struct build_group *take_group(struct build_pipe *p, struct build_slot **of)
{
    while (p->next_slot < p->head) {
        struct build_slot *s = &p->slots[p->next_slot % p->slot_count];
        if (p->next_group < s->group_count) {
            struct build_group *g = &s->groups[p->next_group++];
            g->first = s->record_base + g->begin;
            *of = s;
            return g;
        }
        p->next_slot++;
        p->next_group = 0;
    }
    return NULL;
}

/* Parts are encoded in document order, even if a later document was cut first. */
static void add_long(struct build_pipe *p, struct build_group *g)
{
    struct build_group **at = &p->longs;
    while (*at && (*at)->first < g->first) at = &(*at)->next_long;
    g->next_long = *at;
    *at = g;
    pthread_cond_broadcast(&p->work);
}

static void *encoder_main(void *arg)
{
    struct build_worker *w = arg;
    struct build_pipe *p = &w->build->pipe;
    struct build_group *g;
    struct build_slot *s = NULL;
    pthread_mutex_lock(&p->lock);
    while (!p->quit) {
        struct build_part *part = take_part(p, &g);
        if (!part) g = take_group(p, &s);
        if (!g) {
            pthread_cond_wait(&p->work, &p->lock);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        if (part)
            build_encode_part(w, g, part);
        else
            build_encode_group(w, s, g);
        pthread_mutex_lock(&p->lock);
        if (part)
            part->done = true;
        else
            g->done = true;
        if (!part && g->part_count > 0) add_long(p, g);
        pthread_cond_signal(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* --- the writer ----------------------------------------------------------------------------------------- */

struct build_slot *build_pipe_next(struct build_pipe *p)
{
    pthread_mutex_lock(&p->lock);
    while (p->head == p->tail && !p->ended) pthread_cond_wait(&p->done, &p->lock);
    struct build_slot *s = p->head > p->tail ? &p->slots[p->tail % p->slot_count] : NULL;
    pthread_mutex_unlock(&p->lock);
    return s;
}

void build_pipe_wait(struct build_pipe *p, const struct build_group *g)
{
    pthread_mutex_lock(&p->lock);
    while (!g->done) pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

struct build_part *build_pipe_part(struct build_pipe *p, struct build_group *g)
{
    struct build_part *part = g->part_written < g->part_count ? &g->parts[g->part_written] : NULL;
    pthread_mutex_lock(&p->lock);
    while (part && !part->done) pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return part;
}

void build_pipe_part_written(struct build_pipe *p, struct build_group *g)
{
    struct build_part *part = &g->parts[g->part_written];
    free(part->out.ids);
    free(part->out.targets);
    free(part->out.pieces);
    part->out = (struct build_ids){0};
    pthread_mutex_lock(&p->lock);
    if (++g->part_written == g->part_count) { /* the first failure: everything before it is written */
        CHECK(p->longs == g, "a long document is written out of order");
        p->longs = g->next_long;
    }
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    if (g->part_written == g->part_count) build_encode_release(g);
}

void build_pipe_release(struct build_pipe *p)
{
    struct build_slot *s = &p->slots[p->tail % p->slot_count];
    struct build_source *source = s->source;
    s->source = NULL;
    pthread_mutex_lock(&p->lock);
    p->tail++;
    pthread_cond_signal(&p->room);
    pthread_mutex_unlock(&p->lock);
    drop(p, source);
}

/* --- start and end -------------------------------------------------------------------------------------- */

static status start_worker(struct build *b, struct build_worker *w)
{
    w->build = b;
    if (b->tokenizer) TRY(encoder_open(&w->encoder, b->tokenizer));
    if (b->near) TRY(dedup_sketcher_open(&w->sketcher));
    int err = pthread_create(&w->thread, NULL, encoder_main, w);
    if (err != 0) return FAIL(STATUS_OUT_OF_MEMORY, "cannot start a thread: %s", strerror(err));
    w->runs = true;
    return STATUS_OK;
}

status build_pipe_start(struct build *b)
{
    struct build_pipe *p = &b->pipe;
    p->worker_count = parallel_threads();
    p->slot_count = 3 + p->worker_count / 8;
    p->slots = calloc((size_t)p->slot_count, sizeof *p->slots);
    p->workers = calloc((size_t)p->worker_count, sizeof *p->workers);
    MEMORY_CHECK(p->slots && p->workers, "no memory for %d slots", p->slot_count);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->room, NULL);
    pthread_cond_init(&p->done, NULL);
    for (int i = 0; i < p->worker_count; i++) TRY(start_worker(b, &p->workers[i]));
    int err = pthread_create(&p->reader, NULL, reader_main, b);
    if (err != 0) return FAIL(STATUS_OUT_OF_MEMORY, "cannot start a thread: %s", strerror(err));
    p->reader_runs = true;
    return STATUS_OK;
}

static void free_slot_memory(struct build_slot *s)
{
    for (int64_t i = 0; i < s->group_room; i++) {
        struct build_group *g = &s->groups[i];
        free(g->out.ids);
        free(g->out.targets);
        free(g->out.pieces);
        free(g->out.sketches);
        build_encode_release(g);
    }
    while (s->fault_count > 0) free(s->faults[--s->fault_count]);
    free(s->faults);
    free(s->groups);
    free(s->places);
    free(s->records);
    free(s->data);
}

void build_pipe_stop(struct build_pipe *p)
{
    if (!p->slots) return;
    pthread_mutex_lock(&p->lock);
    p->quit = true;
    pthread_cond_broadcast(&p->work);
    pthread_cond_broadcast(&p->room);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->worker_count; i++) {
        if (p->workers[i].runs) pthread_join(p->workers[i].thread, NULL);
        encoder_close(p->workers[i].encoder);
        dedup_sketcher_close(p->workers[i].sketcher);
    }
    if (p->reader_runs) pthread_join(p->reader, NULL);
    for (int i = 0; i < p->slot_count; i++) {
        drop(p, p->slots[i].source);
        free_slot_memory(&p->slots[i]);
    }
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->room);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    free(p->slots);
    free(p->workers);
    *p = (struct build_pipe){0};
}
