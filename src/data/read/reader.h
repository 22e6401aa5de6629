/* Documents out of the files that people hold, in bounded memory: one batch of whole records at a time.
 *
 *   JSONL      one JSON object per line, the text under `key`; blank lines are passed over
 *   plain      cut by `separator`
 *   Parquet    a column of text, or of token lists; the column is named by `key`
 *
 * The first two also inside gzip and zstd. READER_AUTO goes by content: compression and Parquet by their
 * first bytes; text is JSONL when the name, less .gz or .zst, ends in .jsonl, .ndjson or .jsonlines, or in
 * .json and the text begins with '{'.
 *
 * Cutting a file into records is sequential and cheap; reader_text, which parses and checks one record, is
 * pure and may be called from many threads. A byte order mark at the start of a text is not text.
 * The text of a document of plain text:
 *   file    all of it
 *   line    a line without its end (LF or CRLF); empty ones are passed over
 *   blank   lines up to the next line of white space, without the last line's end
 *   text    what stands between two separators; empty pieces are passed over
 * Of Parquet: a row; a null is an empty document, and counted.
 *
 * A document that cannot be read fails in reader_text, alone: the others of the batch are good. What fails in
 * reader_next ends the file: how many documents are lost cannot be known (a broken gzip stream, a footer that
 * is none). A damaged page of Parquet costs its rows, or, where the page does not say how many, the rest of
 * its row group: one failing record for each row. */
#ifndef INGOT_DATA_READ_READER_H
#define INGOT_DATA_READ_READER_H
#include "base/status.h"
#include "data/read/stream.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum reader_format { READER_AUTO, READER_PLAIN, READER_JSONL, READER_PARQUET };
enum reader_separator { READER_FILE, READER_BLANK, READER_LINE, READER_TEXT };
struct reader_config {
    enum reader_format format;
    const char *key; /* NULL: "text"; of Parquet a column or its path, as in "a.b" */
    enum reader_separator separator; /* of plain text */
    const char *separator_text;      /* of READER_TEXT, not empty */
    size_t batch_bytes; /* bytes read at once; 0: 16 MiB. A longer record makes its batch longer */
    struct stream_config stream; /* of compressed files; {0}: decompressed ahead, by a thread */
};

struct reader_record {
    size_t at, bytes; /* in data; without the separator */
    int32_t fault;    /* 0; else faults[fault - 1] says why it cannot be read */
};
struct reader_batch {
    const char *path;
    enum reader_format format; /* never AUTO */
    const char *data;
    size_t bytes;
    int64_t offset, line; /* of data[0]: byte of the text from 0, line from 1. Parquet: 0, row from 0 */
    const struct reader_record *records;
    int64_t count;
    bool last;     /* the file ends with this batch */
    int64_t nulls; /* records that are null: they read as empty */
    int32_t id_bytes; /* 0: text; 4: the records are token ids */
    char *const *faults;
    const struct reader *reader;
};

struct reader;
/* STATUS_DATA for formats that are not read, known by their first bytes. */
status reader_open(struct reader **r, const char *path, const struct reader_config *config) WARN_UNUSED;
/* The same over bytes in memory, which must outlive the reader; `name` stands for the path. */
status reader_open_memory(struct reader **r, const char *name, const void *data, size_t bytes,
                          const struct reader_config *config) WARN_UNUSED;
/* The next batch, valid until the following call; *more is false at the end of the file. */
status reader_next(struct reader *r, struct reader_batch *batch, bool *more) WARN_UNUSED;
void reader_close(struct reader *r);

/* Where the next batch begins, to go on from there with another reader of the same file and config. The
 * documents behind a mark are always the same; how they are divided into batches may differ. {0, 0} is the
 * start of any file. Seeking in a compressed text decompresses what comes before. STATUS_DATA: the file is
 * too short for the mark. */
struct reader_mark {
    int64_t at;  /* byte of the text, decompressed; Parquet: row group */
    int64_t row; /* lines before it; Parquet: row of the group */
};
struct reader_mark reader_mark(const struct reader *r);
status reader_seek(struct reader *r, struct reader_mark mark) WARN_UNUSED;

int64_t reader_bytes(const struct reader *r);      /* size of the file */
int64_t reader_bytes_done(const struct reader *r); /* of the file, read so far: for progress */
/* About where in the file record i begins, in [0, reader_bytes), never falling from record to record; the
 * same however the file is cut into batches. -1: cannot be told (compressed text). */
int64_t reader_place(const struct reader_batch *batch, int64_t i);

/* The text, or the token ids, of record i. STATUS_DATA "file:line: reason (byte N of the text)", or "file:
 * row N (row group G): reason", rows from 0: invalid UTF-8 or JSON, nothing under `key`, a negative token id. */
struct reader_document {
    const char *text; /* NULL for ids */
    size_t bytes;     /* of the text, or of the ids as stored: 0 for an empty document */
    const int32_t *ids;
    int64_t id_count;
    void *owner;
};
status reader_text(const struct reader_batch *batch, int64_t i, const char *key,
                   struct reader_document *d) WARN_UNUSED;
void reader_document_free(struct reader_document *d);
#endif
