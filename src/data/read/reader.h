/* Reads documents from files of common formats, in bounded memory: one batch of complete records at a time.
 *
 *   JSONL      one JSON object per line, the text under `key`; blank lines are skipped
 *   plain      split at `separator`
 *   Parquet    a column of text, or of token lists; `key` names the column
 *
 * JSONL and plain text may be compressed by gzip or zstd. READER_AUTO detects the format from the content:
 * compression and Parquet from the first bytes. Text is JSONL when the name, without .gz or .zst, ends in .jsonl,
 * .ndjson or .jsonlines, or ends in .json and the text begins with '{'. So is text of /dev/stdin that begins with '{'.
 *
 * Splitting a file into records is sequential and cheap. reader_text, which parses and checks one record, is pure and
 * may be called from many threads. A byte order mark at the start of a text is skipped. The text of a document of
 * plain text:
 *   file    the whole file
 *   line    a line without its end (LF or CRLF); empty lines are skipped
 *   blank   lines up to the next line of white space, without the last line's end
 *   text    the text between two separators; empty pieces are skipped
 * A document of Parquet is a row; a null is an empty document, and counted.
 *
 * A document that cannot be read fails only in its own reader_text; the rest of the batch is valid. An error of
 * reader_next ends the file, because the number of lost documents is unknown (a broken gzip stream, an invalid
 * footer). A damaged page of Parquet loses its rows, or the rest of its row group if the page does not contain its
 * number of rows: each lost row is one failing record. */
#ifndef INGOT_DATA_READ_READER_H
#define INGOT_DATA_READ_READER_H
#include "base/status.h"
#include "data/read/stream.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum reader_format { READER_AUTO, READER_PLAIN, READER_JSONL, READER_PARQUET };
enum reader_separator { READER_FILE, READER_BLANK, READER_LINE, READER_TEXT };
enum { READER_DOCUMENT_BYTES_MAX = INT32_MAX };
struct reader_config {
    enum reader_format format;
    const char *key; /* NULL: "text"; for Parquet a column or its path, as in "a.b" */
    enum reader_separator separator; /* for plain text */
    const char *separator_text;      /* for READER_TEXT, not empty */
    size_t batch_bytes; /* bytes read at once; 0: 16 MiB. A longer record makes its batch longer */
    /* 0: READER_DOCUMENT_BYTES_MAX. A longer record fails in its reader_text, and its bytes are passed over as they are
     * read: the buffer never grows beyond this, a separator, and twice the batch. */
    size_t document_bytes_max;
    struct stream_config stream; /* for compressed files; {0}: a thread decompresses ahead */
};

struct reader_record {
    size_t at, bytes; /* range in data, without the separator */
    int32_t fault;    /* 0, or faults[fault - 1] is the reason why it cannot be read */
};
struct reader_batch {
    const char *path;
    enum reader_format format; /* never AUTO */
    const char *data;
    size_t bytes;
    int64_t offset, line; /* position of data[0]: byte of the text from 0, line from 1. Parquet: 0, row from 0 */
    const struct reader_record *records;
    int64_t count;
    bool last;     /* the file ends with this batch */
    int64_t nulls; /* null records: they read as empty */
    int32_t id_bytes; /* 0: text; 4: the records are token ids */
    char *const *faults;
    const struct reader *reader;
};

struct reader;
/* Opens a file. STATUS_DATA for unsupported formats, detected from the first bytes. */
status reader_open(struct reader **r, const char *path, const struct reader_config *config) WARN_UNUSED;
/* The same for bytes in memory, which must outlive the reader; `name` replaces the path. */
status reader_open_memory(struct reader **r, const char *name, const void *data, size_t bytes,
                          const struct reader_config *config) WARN_UNUSED;
/* Reads the next batch, valid until the following call; *more is false at the end of the file. */
status reader_next(struct reader *r, struct reader_batch *batch, bool *more) WARN_UNUSED;
void reader_close(struct reader *r);

/* Position of the next batch, where another reader of the same file and config can continue. The documents after a
 * mark are always the same; their division into batches may differ. {0, 0} is the start of any file. Seeking in a
 * compressed text decompresses everything before. STATUS_DATA: the file is too short for the mark. */
struct reader_mark {
    int64_t at;  /* byte of the text, decompressed; Parquet: row group */
    int64_t row; /* lines before it; Parquet: row of the group */
};
struct reader_mark reader_mark(const struct reader *r);
status reader_seek(struct reader *r, struct reader_mark mark) WARN_UNUSED;

int64_t reader_bytes(const struct reader *r);      /* size of the file */
int64_t reader_bytes_done(const struct reader *r); /* bytes of the file read so far, for progress */
/* Approximate position of record i in the file, in [0, reader_bytes). It never decreases from record to record and
 * does not depend on the division into batches. -1: not known (compressed text). */
int64_t reader_place(const struct reader_batch *batch, int64_t i);

/* Returns the text or the token ids of record i. STATUS_DATA "file:line: reason (byte N of the text)", or "file: row
 * N (row group G): reason", rows from 0: invalid UTF-8 or JSON, nothing under `key`, a negative token id. */
struct reader_document {
    const char *text; /* NULL for ids */
    size_t bytes;     /* bytes of the text, or of the ids as stored: 0 for an empty document */
    const int32_t *ids;
    int64_t id_count;
    const uint8_t *targets; /* [id_count] 1: the token is a target; NULL: all are */
    void *owner;
};
status reader_text(const struct reader_batch *batch, int64_t i, const char *key,
                   struct reader_document *d) WARN_UNUSED;
void reader_document_free(struct reader_document *d);
/* STATUS_DATA "file:line: what (byte N of the text)" about record i; for JSONL and plain text. */
status reader_fail(const struct reader_batch *batch, int64_t i, const char *what) WARN_UNUSED;
#endif
