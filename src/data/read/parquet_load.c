/* Bytes of the chunk are read into `raw`. Those of the set's pages stay until the next set; the rest is
 * moved to the front. Headers are read in order, because each gives the position of the next. The bodies
 * are then decompressed in parallel, each into its own part of `data`. */
#include "data/read/parquet_int.h"

#include "base/parallel.h"
#include "data/text/array.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum {
    PARALLEL_BYTES = 128 << 10 /* of compressed pages: less is not worth a thread */,
    READ_BYTES = 512 << 10,
    HEADER_BYTES = 64,
    HEADER_BYTES_MAX = 16 << 20,
    PAGE_COST = 64,
    PAD_BYTES = 64
};

static const struct parquet_chunk *chunk_of(const struct parquet_pages *p)
{
    return &p->meta->chunks[p->group];
}

/* Reads at least `bytes` behind raw_next, or up to the end of the chunk. */
static status raw_need(struct parquet_pages *p, size_t bytes)
{
    const struct parquet_chunk *c = chunk_of(p);
    size_t have = p->raw_used - p->raw_next;
    int64_t left = c->at + c->bytes - p->raw_end;
    if (have >= bytes || left == 0) return STATUS_OK;
    size_t want = bytes - have > READ_BYTES ? bytes - have : READ_BYTES;
    if ((int64_t)want > left) want = (size_t)left;
    TRY(array_grow(&p->raw, &p->raw_room, p->raw_used + want, 1));
    TRY(source_read(p->source, p->raw + p->raw_used, want, p->raw_end));
    p->raw_used += want;
    p->raw_end += (int64_t)want;
    return STATUS_OK;
}

/* Skips bytes of the chunk, read or not. */
static void raw_pass(struct parquet_pages *p, size_t bytes)
{
    size_t have = p->raw_used - p->raw_next, here = bytes < have ? bytes : have;
    p->raw_next += here;
    p->raw_end += (int64_t)(bytes - here);
    p->at += (int64_t)bytes;
}

static status page_add(struct parquet_pages *p, struct parquet_page page)
{
    TRY(array_grow(&p->list, &p->room, p->count + 1, sizeof *p->list));
    p->list[p->count++] = page;
    return STATUS_OK;
}

/* Reads the header at raw_next; headers with statistics can be long. */
static status header_read(struct parquet_pages *p, struct parquet_header *h, enum parquet_parse *parse)
{
    for (size_t need = HEADER_BYTES;; need *= 8) {
        TRY(raw_need(p, need));
        size_t have = p->raw_used - p->raw_next;
        *parse =
            parquet_header_read(h, p->raw + p->raw_next, have < HEADER_BYTES_MAX ? have : HEADER_BYTES_MAX);
        if (*parse != PARQUET_CUT || have < need || need > HEADER_BYTES_MAX) return STATUS_OK;
    }
}

static void group_begin(struct parquet_pages *p)
{
    p->raw_used = p->raw_next;
    p->raw_end = chunk_of(p)->at;
}

/* What follows cannot be located: ends the chunk here. */
static status page_lost(struct parquet_pages *p, int64_t file_at, const char *wrong)
{
    p->at = chunk_of(p)->bytes;
    p->raw_used = p->raw_next;
    p->raw_end = chunk_of(p)->at + p->at;
    return page_add(
        p, (struct parquet_page){.kind = PARQUET_PAGE, .file_at = file_at, .rows = -1, .wrong = wrong});
}

/* After a header: adds the page to the set, or skips it. */
static status page_take(struct parquet_pages *p, const struct parquet_header *h, int64_t file_at)
{
    const struct parquet_chunk *c = chunk_of(p);
    bool data = h->type == PARQUET_DATA || h->type == PARQUET_DATA_V2;
    struct parquet_page page = {.kind = PARQUET_PAGE, .header = *h, .file_at = file_at, .rows = -1};
    if (data && p->meta->rep_max == 0) page.rows = h->values;
    if (data && h->type == PARQUET_DATA_V2) page.rows = h->rows;
    if (data && (p->values += h->values) > c->values)
        return page_lost(p, file_at, "its row group has fewer values than it says");
    raw_pass(p, h->bytes);
    if (!data && h->type != PARQUET_DICTIONARY) { /* an index */
        raw_pass(p, h->packed);
        return STATUS_OK;
    }
    if (data) {
        bool passed = p->row >= 0 && page.rows >= 0 && p->row + page.rows <= p->row_wanted;
        p->row = p->row >= 0 && page.rows >= 0 ? p->row + page.rows : -1;
        if (passed) {
            raw_pass(p, h->packed);
            page.kind = PARQUET_PASSED;
            return page_add(p, page);
        }
    } else {
        page.kind = PARQUET_ENTRIES;
    }
    TRY(raw_need(p, h->packed));
    page.raw_at = p->raw_next;
    page.wrong = parquet_sizes_wrong(h, c->codec, p->raw + p->raw_next);
    if (!page.wrong) {
        page.at = p->data_used;
        p->data_used += h->unpacked;
    }
    raw_pass(p, h->packed);
    return page_add(p, page);
}

/* The next page of the group, or its end. *full: the page would exceed `budget` and is left for the next set. */
static status page_next(struct parquet_pages *p, size_t budget, size_t *cost, bool *full)
{
    const struct parquet_chunk *c = chunk_of(p);
    struct parquet_header h;
    enum parquet_parse parse;
    int64_t file_at = c->at + p->at;
    *cost += PAGE_COST;
    if (p->at == 0) group_begin(p);
    if (p->at == c->bytes) {
        p->group++;
        p->at = p->values = p->row = p->row_wanted = 0;
        return page_add(p, (struct parquet_page){.kind = PARQUET_GROUP_END, .file_at = file_at});
    }
    TRY(header_read(p, &h, &parse));
    if (parse != PARQUET_GOOD) return page_lost(p, file_at, "its header is damaged");
    if ((int64_t)h.packed > c->bytes - p->at - (int64_t)h.bytes)
        return page_lost(p, file_at, "it is longer than its row group");
    size_t bytes = h.unpacked > h.packed ? h.unpacked : h.packed;
    *full = p->count > 0 && *cost + bytes > budget;
    if (*full) return STATUS_OK;
    *cost += bytes;
    return page_take(p, &h, file_at);
}

static void unpack(struct parquet_pages *p, struct parquet_page *page, int codec, int thread)
{
    if (page->wrong || (page->kind != PARQUET_PAGE && page->kind != PARQUET_ENTRIES)) return;
    if (!p->unpackers[thread]) p->unpackers[thread] = parquet_unpacker_new();
    page->wrong =
        parquet_unpack(p->unpackers[thread], &page->header, codec, p->raw + page->raw_at, p->data + page->at);
}

static status unpack_all(struct parquet_pages *p, int64_t group)
{
    if (!p->unpackers) {
        p->unpacker_count = parallel_threads();
        TRY(array_new(&p->unpackers, (size_t)p->unpacker_count, sizeof *p->unpackers));
    }
    /* Codecs may differ between groups. Pages are in order, so each run of one group is decompressed at once. */
    for (size_t begin = 0, end; begin < p->count; begin = end + 1, group++) {
        for (end = begin; end < p->count && p->list[end].kind != PARQUET_GROUP_END;) end++;
        if (begin == end) continue;
        int codec = p->meta->chunks[group].codec;
        struct parquet_page *run = p->list + begin;
        if (end - begin == 1 || run[end - begin - 1].raw_at < PARALLEL_BYTES) {
            for (size_t i = 0; i < end - begin; i++) unpack(p, &run[i], codec, 0);
            continue;
        }
        int threads = p->unpacker_count; /* logged here: a worker may be reading */
        PARALLEL_PRAGMA(omp parallel for schedule(dynamic, 1) num_threads(threads))
        for (int64_t i = 0; i < (int64_t)(end - begin); i++) unpack(p, &run[i], codec, omp_get_thread_num());
    }
    return STATUS_OK;
}

status parquet_pages_load(struct parquet_pages *p, size_t bytes, size_t keep, size_t kept)
{
    int64_t group = p->group;
    if (kept > 0) memmove(p->data, p->data + keep, kept);
    if (p->raw_used > p->raw_next) memmove(p->raw, p->raw + p->raw_next, p->raw_used - p->raw_next);
    p->raw_used -= p->raw_next;
    p->raw_next = 0;
    p->data_used = kept;
    p->count = 0;
    size_t cost = 0, budget = bytes > kept ? bytes : kept;
    /* Other kinds of pages leave no entry in the set: only the end of the last group is the end. */
    for (bool full = false; p->group < p->meta->count && !full && (p->count == 0 || cost < budget);)
        TRY(page_next(p, budget, &cost, &full));
    TRY(array_grow(&p->data, &p->data_room, p->data_used + PAD_BYTES, 1));
    return unpack_all(p, group);
}

void parquet_pages_seek(struct parquet_pages *p, int64_t group, int64_t row)
{
    p->group = group;
    p->at = p->values = p->row = 0;
    p->row_wanted = row;
    p->raw_next = p->raw_used = 0;
    p->count = 0;
}

void parquet_pages_free(struct parquet_pages *p)
{
    for (int i = 0; p->unpackers && i < p->unpacker_count; i++) parquet_unpacker_free(p->unpackers[i]);
    free(p->unpackers);
    free(p->raw);
    free(p->data);
    free(p->list);
}
