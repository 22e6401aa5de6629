/* Documents out of text files, in bounded memory: one batch of whole records at a time.
 *
 *   JSONL (.jsonl, .ndjson)       one JSON object per line, the text under `key`; blank lines are passed over
 *   plain text (anything else)    cut by `separator`
 *
 * Cutting a file into records is sequential and cheap; reader_text, which parses and checks one record, is
 * pure and may be called from many threads. A byte order mark at the start of a file is not text.
 * The text of a document:
 *   file    all of it
 *   line    a line without its end (LF or CRLF); empty ones are passed over
 *   blank   lines up to the next line of white space, without the last line's end
 *   text    what stands between two separators; empty pieces are passed over */
#ifndef INGOT_DATA_READER_H
#define INGOT_DATA_READER_H
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum reader_format { READER_AUTO, READER_PLAIN, READER_JSONL }; /* AUTO: by the name of the file */
enum reader_separator { READER_FILE, READER_BLANK, READER_LINE, READER_TEXT };
struct reader_config {
    enum reader_format format;
    const char *key;                 /* NULL: "text" */
    enum reader_separator separator; /* of plain text */
    const char *separator_text;      /* of READER_TEXT, not empty */
    size_t batch_bytes; /* bytes read at once; 0: 16 MiB. A longer record makes its batch longer */
};

struct reader_record {
    size_t at, bytes; /* in data; without the separator */
};
struct reader_batch {
    const char *path;
    bool json;
    const char *data;
    size_t bytes;
    int64_t offset, line; /* of data[0]: byte in the file from 0, line from 1 */
    const struct reader_record *records;
    int64_t count;
    bool last; /* the file ends with this batch */
};

struct reader;
/* STATUS_DATA for compressed or otherwise foreign files, known by their first bytes. */
status reader_open(struct reader **r, const char *path, const struct reader_config *config) WARN_UNUSED;
/* The next batch, valid until the following call; *more is false at the end of the file. */
status reader_next(struct reader *r, struct reader_batch *batch, bool *more) WARN_UNUSED;
void reader_close(struct reader *r);
int64_t reader_bytes(const struct reader *r); /* size of the file */

/* The text of record i. STATUS_DATA "file:line: reason (byte N of the file)": invalid UTF-8 or JSON, no
 * text under `key`. */
struct reader_document {
    const char *text;
    size_t bytes;
    void *owner;
};
status reader_text(const struct reader_batch *batch, int64_t i, const char *key,
                   struct reader_document *d) WARN_UNUSED;
void reader_document_free(struct reader_document *d);
#endif
