/* One column of a Parquet file, row by row: texts (BYTE_ARRAY), or lists of token ids (INT32 or INT64 in a list).
 *
 *   pages         data v1 and v2, dictionary; others are passed over; checksums are verified where there are any
 *   encodings     PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY, DELTA_BINARY_PACKED, DELTA_LENGTH_BYTE_ARRAY,
 *                 DELTA_BYTE_ARRAY; levels in RLE
 *   codecs        none, snappy, gzip, zstd, lz4_raw
 *   nulls         an empty row, counted; a null inside a list is a fault of its row
 *
 * All else is refused by name. Memory: the pages of one call (`bytes` of them, decompressed, or one page), as many
 * compressed, and a dictionary; whole row groups are never held. */
#ifndef INGOT_DATA_READ_PARQUET_H
#define INGOT_DATA_READ_PARQUET_H
#include "base/status.h"
#include "data/read/reader.h"
#include "data/read/source.h"
#include <stdbool.h>
#include <stdint.h>

struct parquet;
/* `column` is a name or a path, as in "a.b"; of a list also without the names inside it. The source must outlive it.
 * STATUS_DATA: not a Parquet file, no such column (with those there are), or one of another type. */
status parquet_open(struct parquet **p, const struct source *source, const char *column) WARN_UNUSED;
void parquet_close(struct parquet *p);

struct parquet_rows { /* valid until the next call */
    const char *data;
    size_t bytes;
    const struct reader_record *rows; /* in data */
    int64_t count, first;             /* first: row of the file */
    int64_t nulls;
    char *const *faults;
};
/* Rows whose pages have about `bytes` bytes; *more is false at the end. */
status parquet_next(struct parquet *p, size_t bytes, struct parquet_rows *rows, bool *more) WARN_UNUSED;
/* To a row of a row group; one behind the last is the next group's first. */
status parquet_seek(struct parquet *p, int64_t group, int64_t row) WARN_UNUSED;

/* What the next call begins with, or of any row of the file. */
struct parquet_place {
    int64_t group, row; /* row: of the group */
};
struct parquet_place parquet_here(const struct parquet *p);
struct parquet_place parquet_place(const struct parquet *p, int64_t row);
int64_t parquet_row_count(const struct parquet *p);     /* of the file */
int32_t parquet_id_bytes(const struct parquet *p); /* 0: texts; else of an id */
#endif
