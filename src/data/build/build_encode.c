/* Encodes records to ids. All functions are pure, except that they write into their group. */
#include "data/build/build_int.h"
#include "data/build/build_val.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static void *room_for(void *array, int64_t *room, int64_t count, size_t size)
{
    if (count <= *room) return array;
    *room = count > 2 * *room ? count : 2 * *room;
    array = realloc(array, (size_t)*room * size);
    MEMORY_CHECK(array, "no memory for %lld elements of %zu bytes", (long long)*room, size);
    return array;
}

static status check_ids(const struct build *b, const int32_t *ids, int64_t count, const char *path)
{
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= b->vocab_size)
            return FAIL(STATUS_DATA, "%s: token id %d, but the vocabulary has %lld ids", path, ids[i],
                        (long long)b->vocab_size);
    return STATUS_OK;
}

/* The targets of a piece: an end-of-text token before it is none, one after it is what the last token is. */
static void add_targets(const struct build *b, struct build_ids *out, const uint8_t *targets, int64_t before,
                        int64_t count)
{
    out->targets = room_for(out->targets, &out->target_room, out->count + before + count + 1, 1);
    uint8_t *to = out->targets + out->count;
    if (before) *to++ = 0;
    memcpy(to, targets, (size_t)count);
    to[count] = b->config->eod == EOD_AFTER && count > 0 && targets[count - 1];
}

/* Adds a piece: text[from, to) of a document, or its ids. Split, `begins` and `whole` are given. */
static status add_piece(struct build_worker *w, struct build_ids *out, const struct reader_document *d,
                        size_t from, size_t to, struct build_piece piece, bool ends)
{
    const struct build *b = w->build;
    const int32_t *ids = d->ids ? d->ids + from : NULL;
    int64_t count = (int64_t)(to - from);
    if (d->text) TRY(encoder_encode(w->encoder, d->text + from, to - from, SPECIALS_AS_TEXT, &ids, &count));
    out->ids = room_for(out->ids, &out->room, out->count + count + 2, sizeof *out->ids);
    out->pieces = room_for(out->pieces, &out->piece_room, out->piece_count + 1, sizeof *out->pieces);
    int32_t *start = out->ids + out->count, *to_ids = start;
    if (piece.begins && b->config->eod == EOD_BEFORE) *to_ids++ = b->eot;
    memcpy(to_ids, ids, (size_t)count * sizeof *ids);
    if (b->chat) add_targets(b, out, d->targets + from, to_ids - start, count);
    to_ids += count;
    if (ends && b->config->eod == EOD_AFTER) *to_ids++ = b->eot;
    piece.tokens = to_ids - start;
    piece.text_bytes = 0;
    if (b->token_bytes)
        for (int64_t i = 0; i < piece.tokens; i++) piece.text_bytes += b->token_bytes[start[i]];
    out->count += piece.tokens;
    out->pieces[out->piece_count++] = piece;
    return STATUS_OK;
}

static const void *contents(const struct reader_document *d, size_t *bytes)
{
    *bytes = d->text ? d->bytes : (size_t)d->id_count * sizeof *d->ids;
    return d->text ? (const void *)d->text : d->ids;
}

static enum corpus_split split_of(const struct build *b, const struct build_slot *slot, int64_t i,
                                  const struct reader_document *d)
{
    const struct build_config *c = b->config;
    bool val = false;
    size_t bytes;
    const void *data = contents(d, &bytes);
    switch (c->val) {
    case BUILD_VAL_NONE: break;
    case BUILD_VAL_HASH: val = build_val_by_hash(data, bytes, c->val_fraction); break;
    case BUILD_VAL_EVERY: val = (slot->record_base + i) % c->val_every == c->val_every - 1; break;
    case BUILD_VAL_TAIL: val = slot->places[i] >= b->tail_at; break;
    }
    return val ? CORPUS_VAL : CORPUS_TRAIN;
}

/* The cut in the last document if the tail begins inside it; else its end. */
static size_t tail_cut(const struct build *b, const struct build_slot *slot, int64_t i,
                       const struct reader_document *d)
{
    bool last = slot->last && i == slot->batch.count - 1;
    if (b->config->val != BUILD_VAL_TAIL || !last || slot->batch.format != READER_PLAIN || !d->text ||
        slot->places[i] >= b->tail_at)
        return d->bytes;
    int64_t from = b->tail_at - slot->places[i];
    if (from >= (int64_t)d->bytes) return d->bytes;
    const char *lf = memchr(d->text + from, '\n', d->bytes - (size_t)from);
    return lf ? (size_t)(lf - d->text) + 1 : d->bytes;
}

/* The first piece of a document, and its sketch. */
static struct build_piece first_piece(struct build_worker *w, struct build_ids *out,
                                      const struct build_slot *slot, int64_t i,
                                      const struct reader_document *d)
{
    const struct build *b = w->build;
    size_t bytes;
    const void *data = contents(d, &bytes);
    struct build_piece piece = {.begins = true, .whole = true, .bytes = (int64_t)bytes};
    piece.split = split_of(b, slot, i, d);
    piece.record = slot->record_base + i;
    if (b->dedup) piece.hash = dedup_hash(data, bytes);
    if (!w->sketcher) return piece;
    out->sketches = room_for(out->sketches, &out->sketch_room, out->sketch_count + DEDUP_PERMUTATIONS,
                             sizeof *out->sketches);
    dedup_sketch(w->sketcher, d->text ? d->text : "", d->text ? d->bytes : 0,
                 out->sketches + out->sketch_count);
    out->sketch_count += DEDUP_PERMUTATIONS;
    return piece;
}

/* A document of the batch; empty ones have neither text nor ids. */
static status open_document(const struct build_worker *w, const struct build_slot *slot, int64_t i,
                            struct reader_document *d, size_t *units)
{
    const struct build *b = w->build;
    TRY(b->chat ? chat_read(b->chat, w->encoder, &slot->batch, i, d)
                : build_source_document(slot->source, &slot->batch, i, d));
    *units = d->ids ? (size_t)d->id_count : d->bytes;
    status st = STATUS_OK;
    if (*units > 0 && d->text && !b->tokenizer)
        st = FAIL(STATUS_CONFIG, "%s: text, and there is no tokenizer: --tokenizer DIR names one",
                  slot->batch.path);
    if (d->ids) st = check_ids(b, d->ids, d->id_count, slot->batch.path);
    if (st != STATUS_OK) reader_document_free(d);
    return st;
}

static status encode_record(struct build_worker *w, const struct build_slot *slot, struct build_group *g,
                            int64_t i)
{
    struct reader_document d;
    size_t units;
    TRY(open_document(w, slot, i, &d, &units));
    const struct build_ids before = g->out;
    status st = STATUS_OK;
    if (units > 0) {
        size_t cut = d.text ? tail_cut(w->build, slot, i, &d) : units;
        struct build_piece piece = first_piece(w, &g->out, slot, i, &d);
        st = add_piece(w, &g->out, &d, 0, cut, piece, true);
        piece.whole = false;
        piece.split = CORPUS_VAL;
        if (st == STATUS_OK && cut < units) st = add_piece(w, &g->out, &d, cut, units, piece, true);
    } else {
        g->empty++;
    }
    if (st != STATUS_OK) { /* a skipped document leaves nothing */
        g->out.count = before.count;
        g->out.piece_count = before.piece_count;
        g->out.sketch_count = before.sketch_count;
    }
    reader_document_free(&d);
    return st;
}

/* --- long documents ------------------------------------------------------------------------------------- */

static struct build_part *add_part(struct build_group *g, int64_t *room, size_t from, size_t to)
{
    g->parts = room_for(g->parts, room, g->part_count + 1, sizeof *g->parts);
    struct build_part *part = &g->parts[g->part_count++];
    *part = (struct build_part){.from = from, .to = to};
    return part;
}

/* Adds the parts of [from, to), which is one document of the corpus. */
static void cut_document(struct build_worker *w, struct build_group *g, int64_t *room, size_t from, size_t to,
                         struct build_piece piece)
{
    const struct reader_document *d = &g->document;
    while (from < to) {
        size_t left = to - from, end = left;
        if (!d->text && left > PART_BYTES / sizeof *d->ids) end = PART_BYTES / sizeof *d->ids;
        for (size_t want = PART_BYTES; d->text && end == left && want < left; want *= 2)
            end = encoder_cut(w->encoder, d->text + from, left, want);
        struct build_part *part = add_part(g, room, from, from + end);
        part->piece = piece;
        part->ends = end == left;
        piece.begins = piece.whole = false;
        from += end;
    }
}

static status open_parts(struct build_worker *w, struct build_slot *slot, struct build_group *g)
{
    size_t units;
    int64_t room = 0;
    TRY(open_document(w, slot, g->begin, &g->document, &units));
    if (units == 0) {
        g->empty++;
        return STATUS_OK;
    }
    size_t cut = g->document.text ? tail_cut(w->build, slot, g->begin, &g->document) : units;
    struct build_piece piece = first_piece(w, &g->out, slot, g->begin, &g->document);
    cut_document(w, g, &room, 0, cut, piece);
    piece.whole = false;
    piece.split = CORPUS_VAL;
    cut_document(w, g, &room, cut, units, piece);
    return STATUS_OK;
}

void build_encode_part(struct build_worker *w, struct build_group *g, struct build_part *part)
{
    part->st = add_piece(w, &part->out, &g->document, part->from, part->to, part->piece, part->ends);
    if (part->st != STATUS_OK) snprintf(part->message, sizeof part->message, "%s", status_message());
}

void build_encode_release(struct build_group *g)
{
    for (int64_t i = 0; i < g->part_count; i++) {
        free(g->parts[i].out.ids);
        free(g->parts[i].out.targets);
        free(g->parts[i].out.pieces);
    }
    free(g->parts);
    g->parts = NULL;
    g->part_count = g->part_next = g->part_written = 0;
    reader_document_free(&g->document);
}

void build_encode_group(struct build_worker *w, struct build_slot *slot, struct build_group *g)
{
    bool skips = w->build->config->skip_errors;
    for (int64_t i = g->begin; i < g->end; i++) {
        status st = g->is_long ? open_parts(w, slot, g) : encode_record(w, slot, g, i);
        if (st == STATUS_OK) continue;
        bool skip = st == STATUS_DATA && skips;
        if (!skip || g->skipped == 0) snprintf(g->message, sizeof g->message, "%s", status_message());
        g->skipped += skip;
        if (skip) continue;
        g->st = st; /* with its message: the error record belongs to this thread */
        return;
    }
}
