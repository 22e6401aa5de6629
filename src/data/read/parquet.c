/* Extracts rows from pages. Texts are not copied: a row points into its page, or into the dictionary page,
 * which are in the set's data. Lists are collected in `ids`, because a row may continue in the next page
 * (v1); so are texts that share prefixes with the previous one.
 *
 * Each page is decoded in blocks of levels, and decoding can stop between two rows, because a few bytes of
 * a page can represent 2^31 of them. Damage makes rows unreadable but keeps their number: the rows of a
 * page if it contains the number, else all remaining rows of its group. */
#include "data/read/parquet.h"

#include "data/text/array.h"
#include "data/read/parquet_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 1024, ROWS_MAX = 1 << 18, TAIL_BYTES = 8, LIST_IDS_MAX = 1 << 28, TEXT_BYTES_MAX = INT32_MAX };
#define FOOTER_BYTES_MAX ((int64_t)256 << 20)

struct faults { /* of the rows of a call */
    char **texts;
    size_t count, room;
    const char *what; /* of the last one, for reuse */
    int64_t file_at;
};
struct row { /* a list being collected */
    bool open, null;
    size_t at;
    const char *wrong;
    int64_t wrong_id;
};
struct block { /* decoded levels and values of a page, not consumed yet */
    int at, count, id_at;
    uint32_t reps[BLOCK], defs[BLOCK];
    int64_t ids[BLOCK];
};
struct parquet {
    const struct source *source;
    struct parquet_meta meta;
    struct parquet_pages pages;
    size_t page;        /* index in the set of the current or next page */
    int64_t group, row; /* next to be read */
    int64_t skip;       /* rows to drop before that */
    /* the page */
    bool inside;
    struct parquet_rle reps, defs;
    struct parquet_values values;
    int64_t values_left, rows_left, faults_left;
    struct block block;
    const char *lost; /* the rest of the group cannot be read: reason, and offset where it starts */
    int64_t lost_at;
    struct parquet_dictionary dictionary;
    const char *dictionary_wrong; /* NULL: the dictionary is valid */
    /* rows of the current call */
    struct reader_record *rows;
    size_t row_count, row_room;
    int64_t first, nulls;
    size_t limit; /* bytes of ids or texts that end a call */
    struct row list;
    bool joined;  /* texts in `ids`, rebuilt from shared prefixes */
    uint8_t *ids; /* lists, or rebuilt texts */
    size_t ids_used, ids_room, text_at, text_bytes;
    struct faults faults;
};

static bool is_text(const struct parquet *p)
{
    return p->meta.type == PARQUET_BYTE_ARRAY;
}

static const struct parquet_chunk *chunk_of(const struct parquet *p)
{
    return &p->meta.chunks[p->group];
}

static status read_footer(struct parquet *p, const char *column)
{
    const struct source *s = p->source;
    uint8_t tail[TAIL_BYTES], *footer = NULL;
    uint32_t bytes;
    if (s->bytes < 4 + TAIL_BYTES)
        return FAIL(STATUS_DATA, "%s: %lld bytes are no Parquet file", s->path, (long long)s->bytes);
    TRY(source_read(s, tail, sizeof tail, s->bytes - TAIL_BYTES));
    memcpy(&bytes, tail, 4);
    if (memcmp(tail + 4, "PARE", 4) == 0)
        return FAIL(STATUS_DATA, "%s: an encrypted Parquet file; decrypt it first", s->path);
    if (memcmp(tail + 4, "PAR1", 4) != 0)
        return FAIL(STATUS_DATA,
                    "%s: no Parquet footer at its end; is the file cut off? (byte %lld of the file)", s->path,
                    (long long)s->bytes - 4);
    int64_t at = s->bytes - TAIL_BYTES - (int64_t)bytes;
    if (at < 4)
        return FAIL(STATUS_DATA, "%s: its Parquet footer of %u bytes is longer than the file", s->path,
                    bytes);
    if (bytes > FOOTER_BYTES_MAX)
        return FAIL(STATUS_DATA, "%s: a Parquet footer of %u bytes; up to 256 MiB are read", s->path, bytes);
    TRY(array_new(&footer, bytes, 1));
    status st = source_read(s, footer, bytes, at);
    if (st == STATUS_OK) st = parquet_meta_read(&p->meta, s->path, footer, bytes, at, column);
    free(footer);
    return st;
}

status parquet_open(struct parquet **out, const struct source *source, const char *column)
{
    struct parquet *p = NULL;
    *out = NULL;
    TRY(array_new(&p, 1, sizeof *p));
    p->source = source;
    status st = read_footer(p, column);
    if (st == STATUS_OK) {
        p->pages.source = source;
        p->pages.meta = &p->meta;
        st = parquet_seek(p, 0, 0);
    }
    if (st == STATUS_OK)
        *out = p;
    else
        parquet_close(p);
    return st;
}

static void faults_clear(struct faults *f)
{
    for (size_t i = 0; i < f->count; i++) free(f->texts[i]);
    f->count = 0;
    f->what = NULL;
}

void parquet_close(struct parquet *p)
{
    if (!p) return;
    faults_clear(&p->faults);
    free(p->faults.texts);
    free(p->rows);
    free(p->ids);
    free(p->dictionary.entries);
    parquet_pages_free(&p->pages);
    parquet_meta_free(&p->meta);
    free(p);
}

static void dictionary_drop(struct parquet *p)
{
    p->dictionary.bytes = 0;
    p->dictionary.count = 0;
    p->dictionary_wrong = "it needs a dictionary, and there is none";
}

status parquet_seek(struct parquet *p, int64_t group, int64_t row)
{
    const struct parquet_meta *m = &p->meta;
    bool inside = group >= 0 && row >= 0 &&
                  (group < m->count ? row <= m->chunks[group].rows : group == m->count && row == 0);
    if (!inside)
        return FAIL(STATUS_DATA, "%s: it has no row %lld in row group %lld to go on at", p->source->path,
                    (long long)row, (long long)group);
    parquet_pages_seek(&p->pages, group, row);
    p->page = 0;
    p->group = group;
    p->row = 0;
    p->skip = row;
    p->inside = p->list.open = false;
    p->lost = NULL;
    p->faults_left = 0;
    dictionary_drop(p);
    return STATUS_OK;
}

/* The number of a fault's text: "what" alone, or with the offset of its page. */
static status fault_add(struct parquet *p, const char *what, int64_t file_at, int32_t *number)
{
    struct faults *f = &p->faults;
    char text[256];
    if (f->count == 0 || f->what != what || f->file_at != file_at) {
        TRY(array_grow(&f->texts, &f->room, f->count + 1, sizeof *f->texts));
        if (file_at >= 0)
            snprintf(text, sizeof text, "a damaged page at byte %lld of the file: %s", (long long)file_at,
                     what);
        else
            snprintf(text, sizeof text, "%s", what);
        f->texts[f->count] = strdup(text);
        MEMORY_CHECK(f->texts[f->count], "no memory for a message");
        f->count++;
        f->what = what;
        f->file_at = file_at;
    }
    *number = (int32_t)f->count;
    return STATUS_OK;
}

/* Adds the next row of the file; drops it if it is before a seek target. */
static status row_add(struct parquet *p, struct reader_record row)
{
    if (p->row >= chunk_of(p)->rows)
        return FAIL(STATUS_DATA, "%s: row group %lld has more rows than the %lld it says", p->source->path,
                    (long long)p->group, (long long)chunk_of(p)->rows);
    p->row++;
    if (p->skip > 0) {
        p->skip--;
        return STATUS_OK;
    }
    if (p->row_count == 0) p->first = chunk_of(p)->row + p->row - 1;
    TRY(array_grow(&p->rows, &p->row_room, p->row_count + 1, sizeof *p->rows));
    p->rows[p->row_count++] = row;
    return STATUS_OK;
}

static status row_fault(struct parquet *p, const char *what, int64_t file_at)
{
    struct reader_record row = {0};
    if (p->skip == 0) TRY(fault_add(p, what, file_at, &row.fault));
    return row_add(p, row);
}

static bool is_full(const struct parquet *p)
{
    return p->row_count >= ROWS_MAX || (p->row_count > 0 && p->ids_used >= p->limit);
}

static status row_close(struct parquet *p)
{
    struct row *list = &p->list;
    if (!list->open) return STATUS_OK;
    list->open = false;
    if (list->wrong) {
        char text[128];
        bool id = list->wrong_id != 0;
        snprintf(text, sizeof text, "token id %lld is not in 0 to 2147483647", (long long)list->wrong_id);
        p->ids_used = list->at;
        p->faults.what = NULL; /* `text` is on the stack: the next fault must not be compared with it */
        status st = row_fault(p, id ? text : list->wrong, -1);
        p->faults.what = NULL;
        return st;
    }
    p->nulls += list->null && p->skip == 0;
    if (p->skip > 0) {
        p->ids_used = list->at;
        return row_add(p, (struct reader_record){0});
    }
    return row_add(p, (struct reader_record){list->at, p->ids_used - list->at, 0});
}

/* The rows in the rest of the group cannot be found. */
static void lose_group(struct parquet *p, const char *what, int64_t file_at)
{
    p->lost = what;
    p->lost_at = file_at;
    if (p->list.open) p->ids_used = p->list.at;
    p->list.open = false;
}

/* The page, or the rest of it, is damaged: page_decode turns its rows into faults. */
static void lose_page(struct parquet *p, const struct parquet_page *page, const char *what, int64_t rows_left)
{
    p->inside = false;
    if (rows_left < 0) {
        lose_group(p, what, page->file_at);
        return;
    }
    if (p->list.open) { /* began in this page: is one of its rows */
        p->list.open = false;
        p->ids_used = p->list.at;
    }
    int64_t left = chunk_of(p)->rows - p->row;
    p->faults_left = rows_left < left ? rows_left : left;
    p->pages.list[p->page].wrong = what;
}

static int level_width(int max)
{
    int width = 0;
    while (max >> width) width++;
    return width;
}

/* Levels in format v1 are preceded by their length. */
static bool take_levels(struct parquet_rle *r, const uint8_t **at, const uint8_t *end, int max)
{
    uint32_t bytes;
    if (max == 0) return true;
    if (end - *at < 4) return false;
    memcpy(&bytes, *at, 4);
    *at += 4;
    if (bytes > (size_t)(end - *at)) return false;
    parquet_rle_init(r, *at, bytes, level_width(max));
    *at += bytes;
    return true;
}

static const char *page_levels(struct parquet *p, const struct parquet_page *page, const uint8_t **at,
                               const uint8_t *end)
{
    const struct parquet_header *h = &page->header;
    const struct parquet_meta *m = &p->meta;
    if (h->type == PARQUET_DATA_V2) {
        parquet_rle_init(&p->reps, *at, h->rep_bytes, level_width(m->rep_max));
        *at += h->rep_bytes;
        parquet_rle_init(&p->defs, *at, h->def_bytes, level_width(m->def_max));
        *at += h->def_bytes;
        return NULL;
    }
    if ((m->rep_max > 0 && h->rep_encoding != PARQUET_RLE) ||
        (m->def_max > 0 && h->def_encoding != PARQUET_RLE))
        return "levels in another encoding than RLE are not supported";
    return take_levels(&p->reps, at, end, m->rep_max) && take_levels(&p->defs, at, end, m->def_max)
               ? NULL
               : "its levels are longer than the page";
}

static status page_begin(struct parquet *p, const struct parquet_page *page)
{
    const struct parquet_header *h = &page->header;
    const char *wrong = page->wrong;
    if (!wrong && !parquet_values_known(h->encoding, p->meta.type))
        return FAIL(STATUS_DATA, "%s: encoding %s is not supported (row group %lld, page at byte %lld)",
                    p->source->path, parquet_encoding_name(h->encoding), (long long)p->group,
                    (long long)page->file_at);
    if (!wrong) {
        const uint8_t *at = p->pages.data + page->at, *end = at + h->unpacked;
        bool indexed = h->encoding == PARQUET_RLE_DICTIONARY || h->encoding == PARQUET_PLAIN_DICTIONARY;
        wrong = page_levels(p, page, &at, end);
        if (!wrong && indexed) wrong = p->dictionary_wrong;
        if (!wrong)
            wrong = parquet_values_init(&p->values, h->encoding, p->meta.type, at, (size_t)(end - at),
                                        h->values, &p->dictionary);
    }
    p->inside = true;
    p->values_left = h->values;
    p->rows_left = page->rows;
    p->block.at = p->block.count = p->block.id_at = 0;
    p->text_at = p->text_bytes = 0;
    if (wrong) lose_page(p, page, wrong, page->rows);
    return STATUS_OK;
}

/* Decodes the next block of levels; of lists also the values. */
static const char *block_fill(struct parquet *p)
{
    struct block *b = &p->block;
    const struct parquet_meta *m = &p->meta;
    int n = p->values_left < BLOCK ? (int)p->values_left : BLOCK, present = 0;
    if (m->rep_max > 0 && !parquet_rle_read(&p->reps, b->reps, n)) return "it has fewer levels than it says";
    if (m->def_max > 0 && !parquet_rle_read(&p->defs, b->defs, n)) return "it has fewer levels than it says";
    if (m->def_max == 0) memset(b->defs, 0, sizeof b->defs);
    for (int i = 0; i < n; i++) {
        if (b->defs[i] > (uint32_t)m->def_max) return "a level is higher than the schema's";
        present += b->defs[i] == (uint32_t)m->def_max;
    }
    b->at = b->id_at = 0;
    b->count = n;
    if (is_text(p) || parquet_values_ids(&p->values, &p->dictionary, p->pages.data, b->ids, present))
        return NULL;
    return "it has fewer values than it says, or an index beyond the dictionary";
}

/* A text that shares a prefix with the last one is rebuilt after the others of this call. */
static status text_join(struct parquet *p, const struct parquet_text *t, struct reader_record *row,
                        const char **wrong)
{
    size_t bytes = (size_t)t->prefix + t->bytes;
    if (t->prefix > p->text_bytes || bytes > TEXT_BYTES_MAX) {
        *wrong = "a text shares more with the one before than that has";
        return STATUS_OK;
    }
    if (p->row_count == 0 && p->ids_used > p->limit) { /* rows are skipped: only the last text is needed */
        memmove(p->ids, p->ids + p->text_at, p->text_bytes);
        p->text_at = 0;
        p->ids_used = p->text_bytes;
    }
    TRY(array_grow(&p->ids, &p->ids_room, p->ids_used + bytes + 1, 1));
    memmove(p->ids + p->ids_used, p->ids + p->text_at, t->prefix);
    memcpy(p->ids + p->ids_used + t->prefix, t->text, t->bytes);
    p->text_at = p->ids_used;
    p->text_bytes = bytes;
    *row = (struct reader_record){p->ids_used, bytes, 0};
    p->ids_used += bytes;
    return STATUS_OK;
}

/* Texts up to the end of the page, or until the call is full. */
static status texts_decode(struct parquet *p, const struct parquet_page *page)
{
    bool joined = page->header.encoding == PARQUET_DELTA_BYTE_ARRAY;
    struct block *b = &p->block;
    const char *wrong = NULL;
    while (p->values_left > 0 && !is_full(p)) {
        if (b->at == b->count && (wrong = block_fill(p)) != NULL) break;
        struct reader_record row = {0};
        struct parquet_text text;
        if (b->defs[b->at] == (uint32_t)p->meta.def_max) {
            if (!parquet_values_text(&p->values, &p->dictionary, p->pages.data, &text)) {
                wrong = "it has fewer values than it says, or an index beyond the dictionary";
                break;
            }
            row = (struct reader_record){(size_t)(text.text - p->pages.data), text.bytes, 0};
            if (joined) TRY(text_join(p, &text, &row, &wrong));
            if (wrong) break;
        } else {
            p->nulls += p->skip == 0;
        }
        TRY(row_add(p, row));
        b->at++;
        p->values_left--;
    }
    if (wrong) lose_page(p, page, wrong, p->values_left);
    return STATUS_OK;
}

static void id_add(struct parquet *p, int64_t id)
{
    struct row *list = &p->list;
    int32_t small = (int32_t)id;
    if (list->wrong) return;
    if (id < 0 || id > INT32_MAX) {
        list->wrong = "";
        list->wrong_id = id;
    } else if (p->ids_used - list->at >= (size_t)LIST_IDS_MAX * sizeof small) {
        list->wrong = "a list of more than 2^28 token ids";
    } else {
        memcpy(p->ids + p->ids_used, &small, sizeof small);
        p->ids_used += sizeof small;
    }
}

/* Lists up to the end of the page, or until the call is full. */
static status lists_decode(struct parquet *p, const struct parquet_page *page)
{
    const struct parquet_meta *m = &p->meta;
    struct block *b = &p->block;
    const char *wrong = NULL;
    while (p->values_left > 0 && !wrong) {
        if (b->at == b->count && (wrong = block_fill(p)) != NULL) break;
        TRY(array_grow(&p->ids, &p->ids_room, p->ids_used + sizeof(int32_t) * BLOCK, 1));
        for (; b->at < b->count; b->at++, p->values_left--) {
            uint32_t def = b->defs[b->at];
            if (b->reps[b->at] == 0) {
                TRY(row_close(p));
                if (is_full(p)) return STATUS_OK;
                p->list =
                    (struct row){.open = true, .null = def + 1 < (uint32_t)m->def_list, .at = p->ids_used};
                p->rows_left--;
            } else if (!p->list.open) {
                wrong = "it goes on with a row that never began";
                break;
            }
            if (def == (uint32_t)m->def_max)
                id_add(p, b->ids[b->id_at++]);
            else if (def >= (uint32_t)m->def_list && !p->list.wrong)
                p->list.wrong = "a null inside the list";
        }
    }
    if (wrong) lose_page(p, page, wrong, page->rows < 0 ? -1 : p->rows_left + p->list.open);
    return STATUS_OK;
}

/* Adds lost rows one by one, until the call is full. */
static status faults_decode(struct parquet *p, const char *what, int64_t file_at, int64_t *left)
{
    for (; *left > 0 && !is_full(p); --*left) TRY(row_fault(p, what, file_at));
    return STATUS_OK;
}

static status group_end(struct parquet *p, bool *done)
{
    static const char ended[] = "the row group ends before its last row";
    const struct parquet_chunk *c = chunk_of(p);
    TRY(row_close(p));
    int64_t left = c->rows - p->row;
    TRY(faults_decode(p, p->lost ? p->lost : ended, p->lost ? p->lost_at : -1, &left));
    *done = left == 0;
    if (!*done) return STATUS_OK;
    p->group++;
    p->row = 0;
    p->lost = NULL;
    dictionary_drop(p);
    return STATUS_OK;
}

static void dictionary_take(struct parquet *p, const struct parquet_page *page)
{
    const struct parquet_header *h = &page->header;
    dictionary_drop(p);
    const char *wrong = page->wrong;
    if (!wrong && h->encoding != PARQUET_PLAIN && h->encoding != PARQUET_PLAIN_DICTIONARY)
        wrong = "a dictionary in another encoding than PLAIN is not supported";
    if (!wrong)
        wrong = parquet_dictionary_read(&p->dictionary, p->pages.data + page->at, h->unpacked, p->meta.type,
                                        h->values);
    p->dictionary_wrong = wrong;
    if (wrong) return;
    p->dictionary.at = page->at;
    p->dictionary.bytes = h->unpacked;
}

/* *done: the page is finished; else the call is full. */
static status page_decode(struct parquet *p, struct parquet_page *page, bool *done)
{
    *done = true;
    if (page->kind == PARQUET_GROUP_END) return group_end(p, done);
    if (p->lost) return STATUS_OK;
    if (page->kind == PARQUET_PASSED) {
        p->row += page->rows;
        p->skip -= page->rows;
        return STATUS_OK;
    }
    if (page->kind == PARQUET_ENTRIES) {
        dictionary_take(p, page);
        return STATUS_OK;
    }
    /* True: the page begins with a new row, so its rows can be counted. */
    if (!p->inside && p->faults_left == 0) {
        if (page->rows >= 0) TRY(row_close(p));
        bool joined = page->header.encoding == PARQUET_DELTA_BYTE_ARRAY;
        /* A list that continues in the next page is completed before the call ends. A call's texts are
         * contiguous. */
        *done = p->list.open || (!is_full(p) && (p->row_count == 0 || joined == p->joined));
        if (!*done) return STATUS_OK;
        p->joined = joined;
        TRY(page_begin(p, page));
    }
    if (p->inside) TRY(is_text(p) ? texts_decode(p, page) : lists_decode(p, page));
    if (p->inside) {
        *done = p->values_left == 0;
        p->inside = !*done;
        return STATUS_OK;
    }
    TRY(faults_decode(p, page->wrong, page->file_at, &p->faults_left));
    *done = p->faults_left == 0;
    return STATUS_OK;
}

status parquet_next(struct parquet *p, size_t bytes, struct parquet_rows *out, bool *more)
{
    faults_clear(&p->faults);
    p->row_count = 0;
    p->nulls = p->first = 0;
    p->limit = bytes;
    if (p->text_bytes > 0)
        memmove(p->ids, p->ids + p->text_at, p->text_bytes); /* a prefix of what comes next */
    p->text_at = 0;
    p->ids_used = p->text_bytes;
    p->limit += p->text_bytes;
    for (bool done = true; done;) {
        if (p->page == p->pages.count) {
            /* Texts point into the pages; lists do not. */
            if (p->row_count > 0 && !p->list.open && (is_text(p) || is_full(p))) break;
            TRY(parquet_pages_load(&p->pages, bytes, p->dictionary.at, p->dictionary.bytes));
            p->dictionary.at = p->page = 0;
            if (p->pages.count == 0) break;
        }
        TRY(page_decode(p, &p->pages.list[p->page], &done));
        p->page += done;
    }
    *more = p->row_count > 0;
    bool in_pages = is_text(p) && !p->joined;
    *out = (struct parquet_rows){.data = (const char *)(in_pages ? p->pages.data : p->ids),
                                 .bytes = in_pages ? p->pages.data_used : p->ids_used,
                                 .rows = p->rows,
                                 .count = (int64_t)p->row_count,
                                 .first = p->first,
                                 .nulls = p->nulls,
                                 .faults = p->faults.texts};
    return STATUS_OK;
}

struct parquet_place parquet_place(const struct parquet *p, int64_t row)
{
    const struct parquet_chunk *c = p->meta.chunks;
    int64_t low = 0, high = p->meta.count; /* the last group that begins at or before it */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (c[middle].row <= row)
            low = middle;
        else
            high = middle;
    }
    return (struct parquet_place){low, p->meta.count > 0 ? row - c[low].row : 0};
}

struct parquet_place parquet_here(const struct parquet *p)
{
    int64_t group = p->group, row = p->row + p->skip;
    if (group < p->meta.count && row == chunk_of(p)->rows) return (struct parquet_place){group + 1, 0};
    return (struct parquet_place){group, row};
}

int64_t parquet_row_count(const struct parquet *p)
{
    return p->meta.rows;
}

int32_t parquet_id_bytes(const struct parquet *p)
{
    return is_text(p) ? 0 : (int32_t)sizeof(int32_t);
}
