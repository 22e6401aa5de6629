/* What both kinds of reader share: which kind a file is, and the batch's records. */
#include "data/reader.h"

#include "data/reader_int.h"

#include <stdlib.h>
#include <string.h>

static status open_source(struct reader *r)
{
    char magic[4] = "";
    if (r->source.bytes >= (int64_t)sizeof magic) TRY(source_read(&r->source, magic, sizeof magic, 0));
    r->format = r->config.format;
    if (r->format == READER_PARQUET || memcmp(magic, "PAR1", sizeof magic) == 0)
        return FAIL(STATUS_DATA, "%s: a Parquet file; convert it to JSONL first", r->source.path);
    return reader_cut_open(r);
}

static struct reader *reader_new(const struct reader_config *config)
{
    CHECK(config->separator != READER_TEXT || (config->separator_text && config->separator_text[0]),
          "an empty separator");
    struct reader *r = calloc(1, sizeof *r);
    CHECK(r, "no memory for a reader");
    r->config = *config;
    return r;
}

static status finish_open(struct reader **out, struct reader *r, status st)
{
    if (st == STATUS_OK) st = open_source(r);
    *out = st == STATUS_OK ? r : NULL;
    if (st != STATUS_OK) reader_close(r);
    return st;
}

status reader_open(struct reader **out, const char *path, const struct reader_config *config)
{
    struct reader *r = reader_new(config);
    return finish_open(out, r, source_open(&r->source, path));
}

status reader_open_memory(struct reader **out, const char *name, const void *data, size_t bytes,
                          const struct reader_config *config)
{
    struct reader *r = reader_new(config);
    source_memory(&r->source, name, data, bytes);
    return finish_open(out, r, STATUS_OK);
}

void reader_close(struct reader *r)
{
    if (!r) return;
    reader_cut_close(r);
    source_close(&r->source);
    free(r->records);
    free(r);
}

void reader_record_add(struct reader *r, struct reader_record record)
{
    if (r->count == r->room) {
        r->room = r->room ? 2 * r->room : 1024;
        r->records = realloc(r->records, (size_t)r->room * sizeof *r->records);
        CHECK(r->records, "no memory for %lld records", (long long)r->room);
    }
    r->records[r->count++] = record;
}

status reader_next(struct reader *r, struct reader_batch *b, bool *more)
{
    return reader_cut_next(r, b, more);
}

struct reader_mark reader_mark(const struct reader *r)
{
    return reader_cut_mark(r);
}

status reader_seek(struct reader *r, struct reader_mark mark)
{
    return reader_cut_seek(r, mark);
}

int64_t reader_bytes(const struct reader *r)
{
    return r->source.bytes;
}

int64_t reader_bytes_done(const struct reader *r)
{
    return reader_cut_done(r);
}

int64_t reader_place(const struct reader_batch *b, int64_t i)
{
    CHECK(i >= 0 && i < b->count, "record %lld of %lld", (long long)i, (long long)b->count);
    return reader_cut_place(b, i);
}

status reader_text(const struct reader_batch *b, int64_t i, const char *key, struct reader_document *d)
{
    CHECK(i >= 0 && i < b->count, "record %lld of %lld", (long long)i, (long long)b->count);
    *d = (struct reader_document){0};
    return reader_cut_text(b, i, key ? key : "text", d);
}

void reader_document_free(struct reader_document *d)
{
    free(d->owner);
    *d = (struct reader_document){0};
}
