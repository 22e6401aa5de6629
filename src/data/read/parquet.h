/* Reads one column of a Parquet file, row by row: texts (BYTE_ARRAY), or lists of token ids (INT32 or INT64 in a
 * list).
 *
 *   pages         data v1 and v2, dictionary; other pages are skipped; checksums are verified where present
 *   encodings     PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY, DELTA_BINARY_PACKED, DELTA_LENGTH_BYTE_ARRAY,
 *                 DELTA_BYTE_ARRAY; levels in RLE
 *   codecs        none, snappy, gzip, brotli, zstd, lz4_raw
 *   nulls         an empty row, counted; a null inside a list is a fault of its row
 *
 * Everything else is an error that names the feature. Memory: the pages of one call (`bytes` of them, decompressed,
 * or one page), their compressed form, and a dictionary; a row group is never held completely. */
#ifndef INGOT_DATA_READ_PARQUET_H
#define INGOT_DATA_READ_PARQUET_H
#include "base/status.h"
#include "data/read/reader.h"
#include "data/read/source.h"
#include <stdbool.h>
#include <stdint.h>

struct parquet;
/* Opens a column. `column` is a name or a path, as in "a.b"; for a list, the names inside it may be omitted. The
 * source must outlive the reader. STATUS_DATA: not a Parquet file, no such column (the message lists the columns), or
 * a column of another type. */
status parquet_open(struct parquet **p, const struct source *source, const char *column) WARN_UNUSED;
void parquet_close(struct parquet *p);

struct parquet_rows { /* valid until the next call */
    const char *data;
    size_t bytes;
    const struct reader_record *rows; /* in data */
    int64_t count, first;             /* first: row number in the file */
    int64_t nulls;
    char *const *faults;
};
/* Reads rows whose pages have about `bytes` bytes; *more is false at the end. */
status parquet_next(struct parquet *p, size_t bytes, struct parquet_rows *rows, bool *more) WARN_UNUSED;
/* Moves to a row of a row group; the row after the last is the first of the next group. */
status parquet_seek(struct parquet *p, int64_t group, int64_t row) WARN_UNUSED;

/* The position of the next call, or of any row of the file. */
struct parquet_place {
    int64_t group, row; /* row: number in the group */
};
struct parquet_place parquet_here(const struct parquet *p);
struct parquet_place parquet_place(const struct parquet *p, int64_t row);
int64_t parquet_row_count(const struct parquet *p);     /* number of rows of the file */
int32_t parquet_id_bytes(const struct parquet *p); /* 0: texts; else bytes of an id */
#endif
