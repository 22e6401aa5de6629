/* Shared by both kinds of reader: format detection, and the records of a batch. */
#include "data/read/reader.h"

#include "data/read/reader_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static status open_source(struct reader *r)
{
    char magic[4] = "";
    if (r->source.bytes >= (int64_t)sizeof magic) TRY(source_read(&r->source, magic, sizeof magic, 0));
    r->format = r->config.format;
    bool parquet = memcmp(magic, "PAR1", sizeof magic) == 0;
    if (memcmp(magic, "PARE", sizeof magic) == 0 && r->format != READER_PLAIN)
        return FAIL(STATUS_DATA, "%s: an encrypted Parquet file; decrypt it first", r->source.path);
    if (r->format == READER_PARQUET && !parquet)
        return FAIL(STATUS_DATA, "%s: it does not begin as a Parquet file does (PAR1)", r->source.path);
    if (parquet && r->format != READER_AUTO && r->format != READER_PARQUET)
        return FAIL(STATUS_DATA, "%s: a Parquet file, not text; --input auto reads it", r->source.path);
    return parquet ? reader_parquet_open(r) : reader_cut_open(r);
}

static struct reader *reader_new(const struct reader_config *config)
{
    CHECK(config->separator != READER_TEXT || (config->separator_text && config->separator_text[0]),
          "an empty separator");
    struct reader *r = calloc(1, sizeof *r);
    MEMORY_CHECK(r, "no memory for a reader");
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

size_t reader_document_bytes_max(const struct reader *r)
{
    size_t bytes = r->config.document_bytes_max;
    return bytes && bytes < READER_DOCUMENT_BYTES_MAX ? bytes : READER_DOCUMENT_BYTES_MAX;
}

char *reader_too_long(const struct reader *r, int64_t bytes, char out[READER_TOO_LONG_BYTES])
{
    snprintf(out, READER_TOO_LONG_BYTES,
             "a document of %lld bytes; --max-document-bytes is %zu, a --separator cuts texts",
             (long long)bytes, reader_document_bytes_max(r));
    return out;
}

void reader_close(struct reader *r)
{
    if (!r) return;
    reader_parquet_close(r);
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
        MEMORY_CHECK(r->records, "no memory for %lld records", (long long)r->room);
    }
    r->records[r->count++] = record;
}

static bool is_parquet(const struct reader *r)
{
    return r->format == READER_PARQUET;
}

status reader_next(struct reader *r, struct reader_batch *b, bool *more)
{
    return is_parquet(r) ? reader_parquet_next(r, b, more) : reader_cut_next(r, b, more);
}

struct reader_mark reader_mark(const struct reader *r)
{
    return is_parquet(r) ? reader_parquet_mark(r) : reader_cut_mark(r);
}

status reader_seek(struct reader *r, struct reader_mark mark)
{
    return is_parquet(r) ? reader_parquet_seek(r, mark) : reader_cut_seek(r, mark);
}

int64_t reader_bytes(const struct reader *r)
{
    return r->source.bytes;
}

int64_t reader_bytes_done(const struct reader *r)
{
    return is_parquet(r) ? reader_parquet_done(r) : reader_cut_done(r);
}

int64_t reader_place(const struct reader_batch *b, int64_t i)
{
    CHECK(i >= 0 && i < b->count, "record %lld of %lld", (long long)i, (long long)b->count);
    return is_parquet(b->reader) ? reader_parquet_place(b, i) : reader_cut_place(b, i);
}

status reader_text(const struct reader_batch *b, int64_t i, const char *key, struct reader_document *d)
{
    CHECK(i >= 0 && i < b->count, "record %lld of %lld", (long long)i, (long long)b->count);
    *d = (struct reader_document){0};
    if (is_parquet(b->reader)) return reader_parquet_text(b, i, d);
    return reader_cut_text(b, i, key ? key : "text", d);
}

void reader_document_free(struct reader_document *d)
{
    free(d->owner);
    *d = (struct reader_document){0};
}
