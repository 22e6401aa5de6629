/* Parquet rows as records of a reader. */
#include "data/read/reader_int.h"

#include "base/utf8.h"
#include "data/read/parquet.h"

status reader_parquet_open(struct reader *r)
{
    r->format = READER_PARQUET;
    return parquet_open(&r->parquet, &r->source, r->config.key ? r->config.key : "text");
}

void reader_parquet_close(struct reader *r)
{
    parquet_close(r->parquet);
}

status reader_parquet_next(struct reader *r, struct reader_batch *b, bool *more)
{
    struct parquet_rows rows;
    TRY(parquet_next(r->parquet, r->config.batch_bytes ? r->config.batch_bytes : READER_BATCH_BYTES, &rows,
                     more));
    if (*more) r->rows_done = rows.first + rows.count;
    *b = (struct reader_batch){.path = r->source.path,
                               .format = READER_PARQUET,
                               .data = rows.data,
                               .bytes = rows.bytes,
                               .line = rows.first,
                               .records = rows.rows,
                               .count = rows.count,
                               .last = r->rows_done == parquet_row_count(r->parquet),
                               .nulls = rows.nulls,
                               .id_bytes = parquet_id_bytes(r->parquet),
                               .faults = rows.faults,
                               .reader = r};
    return STATUS_OK;
}

struct reader_mark reader_parquet_mark(const struct reader *r)
{
    struct parquet_place here = parquet_here(r->parquet);
    return (struct reader_mark){here.group, here.row};
}

status reader_parquet_seek(struct reader *r, struct reader_mark mark)
{
    TRY(parquet_seek(r->parquet, mark.at, mark.row));
    r->rows_done = 0;
    return STATUS_OK;
}

static int64_t place_of_row(const struct reader *r, int64_t row)
{
    int64_t rows = parquet_row_count(r->parquet);
    return rows > 0 ? (int64_t)((double)r->source.bytes * ((double)row / (double)rows)) : 0;
}

int64_t reader_parquet_done(const struct reader *r)
{
    return place_of_row(r, r->rows_done);
}

int64_t reader_parquet_place(const struct reader_batch *b, int64_t i)
{
    return place_of_row(b->reader, b->line + i);
}

static status fail_at(const struct reader_batch *b, int64_t i, const char *what)
{
    struct parquet_place place = parquet_place(b->reader->parquet, b->line + i);
    return FAIL(STATUS_DATA, "%s: row %lld (row group %lld): %s", b->path, (long long)(b->line + i),
                (long long)place.group, what);
}

status reader_parquet_text(const struct reader_batch *b, int64_t i, struct reader_document *d)
{
    const struct reader_record *record = &b->records[i];
    const char *text = b->data ? b->data + record->at : NULL;
    if (record->fault > 0) return fail_at(b, i, b->faults[record->fault - 1]);
    if (b->id_bytes > 0) {
        *d = (struct reader_document){.ids = (const int32_t *)text,
                                      .bytes = record->bytes,
                                      .id_count = (int64_t)(record->bytes / sizeof(int32_t))};
        return STATUS_OK;
    }
    char what[READER_TOO_LONG_BYTES];
    if (record->bytes > reader_document_bytes_max(b->reader))
        return fail_at(b, i, reader_too_long(b->reader, (int64_t)record->bytes, what));
    if (utf8_valid(text, record->bytes) < record->bytes) return fail_at(b, i, "invalid UTF-8");
    *d = (struct reader_document){.text = text, .bytes = record->bytes};
    return STATUS_OK;
}
