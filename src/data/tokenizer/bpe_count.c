/* Counting in parallel. The documents are divided into segments of about a megabyte at positions that do
 * not change the pieces (pretokenizer_cut); one large file therefore keeps all threads busy too. Each
 * thread counts into its own tables, PARTS of them by the top bits of the hash; then one thread adds up
 * part p of all threads. Sums of integers do not depend on the order. */
#include "data/tokenizer/bpe_count.h"
#include "base/parallel.h"
#include "data/text/array.h"
#define XXH_INLINE_ALL
#include <assert.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { SEGMENT_BYTES = 1 << 20, PARTS = 64, BATCH = 256 };

struct segment { /* normalized by count_segment; then in `own` */
    const char *data;
    size_t bytes;
    int64_t doc;
    struct pretokenizer_room own;
};

struct table {
    struct bpe_piece *slots; /* count 0: empty */
    size_t slot_count, used;
};

static struct bpe_piece *find(const struct table *t, uint64_t hash, const char *data, size_t bytes)
{
    size_t mask = t->slot_count - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
        struct bpe_piece *p = &t->slots[i];
        if (p->count == 0) return p;
        if (p->hash == hash && p->bytes == bytes && memcmp(p->data, data, bytes) == 0) return p;
    }
}

static status table_add(struct table *t, const struct bpe_piece *piece)
{
    if (2 * (t->used + 1) > t->slot_count) {
        struct table bigger = {.slot_count = t->slot_count != 0 ? 2 * t->slot_count : 256, .used = t->used};
        TRY(array_new(&bigger.slots, bigger.slot_count, sizeof *bigger.slots));
        for (size_t i = 0; i < t->slot_count; i++)
            if (t->slots[i].count != 0)
                *find(&bigger, t->slots[i].hash, t->slots[i].data, t->slots[i].bytes) = t->slots[i];
        free(t->slots);
        *t = bigger;
    }
    struct bpe_piece *p = find(t, piece->hash, piece->data, piece->bytes);
    if (p->count == 0) {
        *p = *piece;
        t->used++;
    } else {
        p->count += piece->count;
    }
    return STATUS_OK;
}

static status count_piece(struct table *parts, const char *data, size_t bytes)
{
    while (bytes > 1) {
        size_t n = bytes;
        if (n > BPE_PIECE_MAX)
            for (n = BPE_PIECE_MAX; ((uint8_t)data[n] & 0xc0) == 0x80;) n--;
        struct bpe_piece piece = {
            .data = data, .bytes = (uint32_t)n, .hash = XXH3_64bits(data, n), .count = 1};
        if (n > 1) TRY(table_add(&parts[piece.hash >> 58], &piece));
        data += n;
        bytes -= n;
    }
    return STATUS_OK;
}
static_assert(PARTS == 1 << (64 - 58), "the part is the top bits of the hash");

static status count_segment(struct table *parts, const struct pretokenizer *pre, struct segment *s)
{
    size_t ends[BATCH], at = 0;
    TRY(pretokenizer_normalize(pre, s->data, s->bytes, &s->own, &s->data, &s->bytes));
    struct pretokenizer_cursor c = pretokenizer_begin(s->data, s->bytes);
    for (int n; (n = pretokenizer_scan(pre, &c, ends, BATCH)) > 0;)
        for (int i = 0; i < n; at = ends[i++]) TRY(count_piece(parts, s->data + at, ends[i] - at));
    return STATUS_OK;
}

static status cut_segments(const struct pretokenizer *pre, const struct text *docs, int64_t count,
                           struct segment **out, size_t *out_count)
{
    size_t cap = 0, used = 0;
    for (int64_t d = 0; d < count; d++) {
        const char *data = docs[d].data;
        for (size_t left = docs[d].bytes; left != 0;) {
            size_t n = left > SEGMENT_BYTES ? pretokenizer_cut(pre, data, left, SEGMENT_BYTES) : left;
            TRY(array_grow(out, &cap, used + 1, sizeof **out));
            (*out)[used++] = (struct segment){.data = data, .bytes = n, .doc = d};
            data += n;
            left -= n;
        }
    }
    *out_count = used;
    return STATUS_OK;
}

static status check_documents(const struct text *docs, int64_t count)
{
    int64_t bad = INT64_MAX;
#pragma omp parallel for schedule(dynamic, 16) reduction(min : bad)
    for (int64_t d = 0; d < count; d++)
        if (d < bad && utf8_valid(docs[d].data, docs[d].bytes) != docs[d].bytes) bad = d;
    if (bad == INT64_MAX) return STATUS_OK;
    return FAIL(STATUS_DATA, "document %lld: invalid UTF-8 at byte offset %zu", (long long)bad,
                utf8_valid(docs[bad].data, docs[bad].bytes));
}

/* Adds part `part` of all threads to that of thread 0. */
static status gather_part(struct table *tables, int threads, int part)
{
    struct table *sum = &tables[part];
    for (int thread = 1; thread < threads; thread++) {
        struct table *t = &tables[thread * PARTS + part];
        for (size_t i = 0; i < t->slot_count; i++)
            if (t->slots[i].count != 0) TRY(table_add(sum, &t->slots[i]));
        free(t->slots);
        *t = (struct table){0};
    }
    return STATUS_OK;
}

static status gather(struct bpe_pieces *out, struct table *tables, int threads)
{
    status st = STATUS_OK;
    PARALLEL_CHUNKS(part, PARTS)
    {
        status mine = gather_part(tables, threads, (int)part);
        if (mine != STATUS_OK) {
#pragma omp atomic write
            st = mine;
        }
    }
    if (st != STATUS_OK) return FAIL(st, "no memory for the table of pieces");
    for (int part = 0; part < PARTS; part++) out->count += tables[part].used;
    TRY(array_new(&out->items, out->count, sizeof *out->items));
    struct bpe_piece *to = out->items;
    for (int part = 0; part < PARTS; part++)
        for (size_t i = 0; i < tables[part].slot_count; i++)
            if (tables[part].slots[i].count != 0) *to++ = tables[part].slots[i];
    CHECK(to == out->items + out->count, "%zu pieces", out->count);
    return STATUS_OK;
}

/* Pieces may point into normalized copies of segments, so `out` takes ownership of these. */
static status keep_normalized(struct bpe_pieces *out, struct segment *segments, size_t count)
{
    size_t cap = 0;
    for (size_t i = 0; i < count; i++) {
        if (segments[i].own.data == NULL) continue;
        TRY(array_grow(&out->normalized, &cap, out->normalized_count + 1, sizeof *out->normalized));
        out->normalized[out->normalized_count++] = segments[i].own.data;
        segments[i].own.data = NULL;
    }
    return STATUS_OK;
}

status bpe_count(struct bpe_pieces *out, const struct pretokenizer *pre, const struct text *docs,
                 int64_t count)
{
    *out = (struct bpe_pieces){0};
    TRY(check_documents(docs, count));
    int threads = parallel_threads();
    struct segment *segments = NULL;
    struct table *tables = NULL;
    size_t segment_count = 0;
    status st, part_st = STATUS_OK;
    TRY_OUT(cut_segments(pre, docs, count, &segments, &segment_count));
    TRY_OUT(array_new(&tables, (size_t)threads * PARTS, sizeof *tables));
    PARALLEL_CHUNKS(i, (int64_t)segment_count)
    {
        status mine = count_segment(tables + omp_get_thread_num() * PARTS, pre, &segments[i]);
        if (mine != STATUS_OK) {
#pragma omp atomic write
            part_st = mine;
        }
    }
    st = part_st != STATUS_OK ? FAIL(part_st, "no memory for the table of pieces")
                              : gather(out, tables, threads);
out:
    for (int i = 0; tables != NULL && i < threads * PARTS; i++) free(tables[i].slots);
    free(tables);
    if (st == STATUS_OK) st = keep_normalized(out, segments, segment_count);
    for (size_t i = 0; i < segment_count; i++) free(segments[i].own.data);
    free(segments);
    if (st != STATUS_OK) bpe_count_free(out);
    return st;
}

void bpe_count_free(struct bpe_pieces *p)
{
    for (size_t i = 0; i < p->normalized_count; i++) free(p->normalized[i]);
    free(p->normalized);
    free(p->items);
    *p = (struct bpe_pieces){0};
}
