/* The two kinds of reader behind reader.h: text split into records, and Parquet. */
#ifndef INGOT_DATA_READ_READER_INT_H
#define INGOT_DATA_READ_READER_INT_H
#include "data/read/reader.h"
#include "data/read/source.h"
#include "data/read/stream.h"

enum { READER_BATCH_BYTES = 16 << 20, READER_TOO_LONG_BYTES = 128 };

struct reader {
    struct reader_config config;
    struct source source;
    enum reader_format format; /* never AUTO once open */
    struct reader_record *records;
    int64_t count, room;
    /* text: the buffer holds the bytes [offset, offset + used) of the stream */
    struct stream *stream;
    char *buffer;
    size_t capacity, used, consumed; /* consumed: bytes of the current batch */
    int64_t offset, line;            /* position of buffer[0] */
    bool ended;                      /* the stream has no data after the buffer */
    char too_long[READER_TOO_LONG_BYTES], *faults[1];   /* the fault of a record that is passed over */
    /* Parquet */
    struct parquet *parquet;
    int64_t rows_done;
};

size_t reader_document_bytes_max(const struct reader *r);
/* What is said of a document of `bytes` bytes. */
char *reader_too_long(const struct reader *r, int64_t bytes, char out[READER_TOO_LONG_BYTES]);
void reader_record_add(struct reader *r, struct reader_record record);

status reader_cut_open(struct reader *r) WARN_UNUSED;
void reader_cut_close(struct reader *r);
status reader_cut_next(struct reader *r, struct reader_batch *batch, bool *more) WARN_UNUSED;
struct reader_mark reader_cut_mark(const struct reader *r);
status reader_cut_seek(struct reader *r, struct reader_mark mark) WARN_UNUSED;
int64_t reader_cut_done(const struct reader *r);
int64_t reader_cut_place(const struct reader_batch *batch, int64_t i);
status reader_cut_text(const struct reader_batch *batch, int64_t i, const char *key,
                       struct reader_document *d) WARN_UNUSED;

status reader_parquet_open(struct reader *r) WARN_UNUSED;
void reader_parquet_close(struct reader *r);
status reader_parquet_next(struct reader *r, struct reader_batch *batch, bool *more) WARN_UNUSED;
struct reader_mark reader_parquet_mark(const struct reader *r);
status reader_parquet_seek(struct reader *r, struct reader_mark mark) WARN_UNUSED;
int64_t reader_parquet_done(const struct reader *r);
int64_t reader_parquet_place(const struct reader_batch *batch, int64_t i);
status reader_parquet_text(const struct reader_batch *batch, int64_t i, struct reader_document *d) WARN_UNUSED;
#endif
