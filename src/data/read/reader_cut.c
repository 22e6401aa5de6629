/* Each reader_next discards the bytes of the previous batch, reads until the buffer is full, and splits it
 * into records. Bytes after the last complete record stay for the next batch. A record larger than the
 * buffer doubles it; the cost stays linear. */
#include "data/read/reader_int.h"

#include "base/bytes32.h"
#include "base/utf8.h"
#include "data/read/jsonl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAGIC_BYTES = 8 };

static bool name_ends(const char *name, size_t bytes, const char *end)
{
    size_t n = strlen(end);
    return bytes >= n && memcmp(name + bytes - n, end, n) == 0;
}

/* By the name without its compression suffix, and by the first bytes of the text. */
static enum reader_format format_of(const char *path, const char *text, size_t bytes)
{
    static const char *const compressed[] = {".gz", ".zst", ".zstd"};
    static const char *const lines[] = {".jsonl", ".ndjson", ".jsonlines"};
    size_t n = strlen(path), first = 0;
    for (size_t i = 0; i < sizeof compressed / sizeof compressed[0]; i++)
        if (name_ends(path, n, compressed[i])) {
            n -= strlen(compressed[i]);
            break;
        }
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        if (name_ends(path, n, lines[i])) return READER_JSONL;
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) first = 3;
    while (first < bytes && strchr(" \t\r\n", text[first]) && text[first]) first++;
    if (strcmp(path, "/dev/stdin") == 0 && first < bytes && text[first] == '{') return READER_JSONL;
    /* A JSON list, too: it is rejected as JSONL with a hint. */
    bool json = first < bytes && (text[first] == '{' || text[first] == '[');
    return json && name_ends(path, n, ".json") ? READER_JSONL : READER_PLAIN;
}

static status foreign_check(const struct reader *r)
{
    static const struct {
        const char *magic, *advice;
    } known[] = {
        {"\x1f\x8b", "gzip data inside compressed data; decompress it once (gunzip)"},
        {"\x28\xb5\x2f\xfd", "zstd data inside compressed data; decompress it once (unzstd)"},
        {"PAR1", "a Parquet file inside compressed data; decompress it first"},
        {"\xfd"
         "7zXZ",
         "xz data; decompress it first (unxz)"},
        {"BZh", "bzip2 data; decompress it first (bunzip2)"},
        {"\x04\x22\x4d\x18", "lz4 data; decompress it first (unlz4)"},
        {"PK\x03\x04", "a zip archive; unpack it first"},
        {"ARROW1", "an Arrow file; write it as Parquet or JSONL first"},
        {"\xff\xfe", "UTF-16 text; convert it to UTF-8 first (iconv)"},
        {"\xfe\xff", "UTF-16 text; convert it to UTF-8 first (iconv)"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        size_t n = strlen(known[i].magic);
        if (r->used >= n && memcmp(r->buffer, known[i].magic, n) == 0)
            return FAIL(STATUS_DATA, "%s: %s", r->source.path, known[i].advice);
    }
    return STATUS_OK;
}

/* The longest document with what ends it, and one byte that tells that it is not longer. */
static size_t capacity_max(const struct reader *r)
{
    size_t end = r->config.separator == READER_TEXT ? strlen(r->config.separator_text) : 2;
    return reader_document_bytes_max(r) + end + 1;
}

/* Grows the buffer for a record that is longer. */
static status grow(struct reader *r)
{
    size_t most = capacity_max(r), capacity = r->capacity * 2 < most ? r->capacity * 2 : most;
    char *larger = realloc(r->buffer, capacity);
    if (!larger)
        return FAIL(STATUS_OUT_OF_MEMORY, "%s: no memory for a document of %zu bytes", r->source.path,
                    capacity);
    r->buffer = larger;
    r->capacity = capacity;
    return STATUS_OK;
}

/* Reads as much as fits. A failure is reported after everything read before it is delivered: the stream
 * repeats it. */
static status fill(struct reader *r)
{
    size_t got, room = r->capacity - r->used;
    status st = stream_read(r->stream, r->buffer + r->used, room, &got);
    if (got == 0) TRY(st);
    r->used += got;
    if (st != STATUS_OK || stream_ended(r->stream, &r->ended) != STATUS_OK) r->ended = false;
    return STATUS_OK;
}

static int64_t count_lines(const char *data, size_t bytes)
{
    int64_t n = 0;
    size_t i = 0;
    for (; bytes - i >= 32; i += 32)
        n += __builtin_popcount(bytes32_mask(bytes32_equal(bytes32_load(data + i), bytes32_set('\n'))));
    for (; i < bytes; i++) n += data[i] == '\n';
    return n;
}

static void pass_over_mark(struct reader *r)
{
    if (r->used >= 3 && memcmp(r->buffer, "\xef\xbb\xbf", 3) == 0) r->consumed = 3;
}

status reader_cut_open(struct reader *r)
{
    TRY(stream_open(&r->stream, &r->source, &r->config.stream));
    r->capacity = r->config.batch_bytes ? r->config.batch_bytes : READER_BATCH_BYTES;
    if (stream_kind(r->stream) == STREAM_PLAIN && r->source.bytes < (int64_t)r->capacity)
        r->capacity = (size_t)r->source.bytes;
    if (r->capacity < MAGIC_BYTES) r->capacity = MAGIC_BYTES;
    r->buffer = malloc(r->capacity);
    if (!r->buffer)
        return FAIL(STATUS_OUT_OF_MEMORY, "%s: no memory to read %zu bytes at once", r->source.path,
                    r->capacity);
    r->line = 1;
    TRY(fill(r));
    TRY(foreign_check(r));
    if (r->format == READER_AUTO) r->format = format_of(r->source.path, r->buffer, r->used);
    pass_over_mark(r);
    return STATUS_OK;
}

void reader_cut_close(struct reader *r)
{
    stream_close(r->stream);
    free(r->buffer);
}

struct reader_mark reader_cut_mark(const struct reader *r)
{
    return (struct reader_mark){r->offset + (int64_t)r->consumed,
                                r->line - 1 + count_lines(r->buffer, r->consumed)};
}

status reader_cut_seek(struct reader *r, struct reader_mark mark)
{
    if (mark.at < 0 || mark.row < 0)
        return FAIL(STATUS_DATA, "%s: it cannot go on at byte %lld, line %lld", r->source.path,
                    (long long)mark.at, (long long)mark.row);
    TRY(stream_seek(r->stream, mark.at));
    r->offset = mark.at;
    r->line = mark.row + 1;
    r->used = r->consumed = 0;
    r->ended = false;
    if (mark.at > 0) return STATUS_OK;
    TRY(fill(r));
    pass_over_mark(r);
    return STATUS_OK;
}

int64_t reader_cut_done(const struct reader *r)
{
    bool plain = stream_kind(r->stream) == STREAM_PLAIN;
    return plain ? r->offset + (int64_t)r->consumed : stream_consumed(r->stream);
}

int64_t reader_cut_place(const struct reader_batch *b, int64_t i)
{
    if (stream_kind(b->reader->stream) != STREAM_PLAIN) return -1;
    return b->offset + (int64_t)b->records[i].at;
}

static void add(struct reader *r, size_t at, size_t end)
{
    reader_record_add(r, (struct reader_record){at, end - at, 0});
}

static bool is_blank(const char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != ' ' && data[i] != '\t' && data[i] != '\r' && data[i] != '\n') return false;
    return true;
}

static size_t without_cr(const char *data, size_t at, size_t end)
{
    return end > at && data[end - 1] == '\r' ? end - 1 : end;
}

/* The scanners add the complete records in buffer[0, used) and return where the rest begins. At the end of
 * the file the rest is a record, too. */
static size_t scan_lines(struct reader *r, bool last)
{
    size_t at = 0;
    while (at < r->used) {
        const char *lf = memchr(r->buffer + at, '\n', r->used - at);
        if (!lf && !last) break;
        size_t end = lf ? (size_t)(lf - r->buffer) : r->used, stop = without_cr(r->buffer, at, end);
        bool skip = r->format == READER_JSONL ? is_blank(r->buffer + at, stop - at) : stop == at;
        if (!skip) add(r, at, stop);
        at = lf ? end + 1 : end;
    }
    return at;
}

static size_t scan_blank(struct reader *r, bool last)
{
    const size_t none = SIZE_MAX;
    size_t start = none, stop = 0, at = 0, rest = 0; /* the open document is [start, stop) */
    while (at < r->used) {
        const char *lf = memchr(r->buffer + at, '\n', r->used - at);
        if (!lf && !last) break;
        size_t end = lf ? (size_t)(lf - r->buffer) : r->used, next = lf ? end + 1 : end;
        if (!is_blank(r->buffer + at, end - at)) {
            if (start == none) start = at;
            stop = without_cr(r->buffer, at, end);
        } else {
            if (start != none) add(r, start, stop);
            start = none;
            rest = next;
        }
        at = next;
    }
    if (!last) return rest;
    if (start != none) add(r, start, stop);
    return r->used;
}

static size_t scan_text(struct reader *r, bool last)
{
    const char *mark = r->config.separator_text;
    size_t length = strlen(mark), at = 0;
    for (;;) {
        const char *hit = memmem(r->buffer + at, r->used - at, mark, length);
        if (!hit && !last) return at;
        size_t end = hit ? (size_t)(hit - r->buffer) : r->used;
        if (end > at) add(r, at, end);
        if (!hit) return r->used;
        at = end + length;
    }
}

static size_t scan(struct reader *r, bool last)
{
    if (r->format == READER_JSONL || r->config.separator == READER_LINE) return scan_lines(r, last);
    if (r->config.separator == READER_BLANK) return scan_blank(r, last);
    if (r->config.separator == READER_TEXT) return scan_text(r, last);
    if (!last) return 0;
    if (r->used > 0) add(r, 0, r->used);
    return r->used;
}

/* Leaves what is behind the consumed bytes. */
static void discard(struct reader *r)
{
    r->line += count_lines(r->buffer, r->consumed);
    r->offset += (int64_t)r->consumed;
    r->used -= r->consumed;
    memmove(r->buffer, r->buffer + r->consumed, r->used);
    r->consumed = 0;
}

/* Where the record that the buffer is a part of ends; if it does not end there, *found is false and the result is what of
 * it can be discarded. *blank: of READER_BLANK, the line that the buffer begins in has been white space so far. */
static size_t end_of_record(const struct reader *r, bool *blank, bool *found)
{
    *found = true;
    if (r->format == READER_JSONL || r->config.separator == READER_LINE) {
        const char *lf = memchr(r->buffer, '\n', r->used);
        if (lf) return (size_t)(lf - r->buffer) + 1;
    } else if (r->config.separator == READER_TEXT) {
        size_t length = strlen(r->config.separator_text);
        const char *hit = memmem(r->buffer, r->used, r->config.separator_text, length);
        if (hit) return (size_t)(hit - r->buffer) + length;
        *found = r->ended;
        return r->ended || r->used < length ? r->used : r->used - (length - 1);
    } else if (r->config.separator == READER_BLANK) {
        for (size_t i = 0; i < r->used; i++) {
            bool end = r->buffer[i] == '\n';
            if (end && *blank) return i + 1;
            *blank = end || (*blank && is_blank(r->buffer + i, 1));
        }
    }
    *found = r->ended;
    return r->used;
}

/* The record at the start of the full buffer is longer than it may be: it becomes a record without text and with a fault,
 * at the place where it begins. Nothing of it is kept, so its length costs no memory. */
static status pass_over(struct reader *r, struct reader_batch *b)
{
    const int64_t offset = r->offset, line = r->line;
    bool blank = false, found;
    for (;;) {
        r->consumed = end_of_record(r, &blank, &found);
        discard(r);
        if (found) break;
        TRY(fill(r));
    }
    r->faults[0] = reader_too_long(r, r->offset - offset, r->too_long);
    reader_record_add(r, (struct reader_record){.fault = 1});
    *b = (struct reader_batch){.path = r->source.path,
                               .format = r->format,
                               .data = r->buffer,
                               .offset = offset,
                               .line = line,
                               .records = r->records,
                               .count = 1,
                               .faults = r->faults,
                               .last = r->ended && r->used == 0,
                               .reader = r};
    return STATUS_OK;
}

status reader_cut_next(struct reader *r, struct reader_batch *b, bool *more)
{
    for (;;) {
        discard(r);
        r->count = 0;
        *more = r->used > 0 || !r->ended;
        if (!*more) return STATUS_OK;
        if (!r->ended) TRY(fill(r));
        r->consumed = scan(r, r->ended);
        if (r->count > 0) break;
        if (r->consumed > 0 || r->used < r->capacity) continue;
        if (r->capacity >= capacity_max(r)) return pass_over(r, b);
        TRY(grow(r));
    }
    *b = (struct reader_batch){.path = r->source.path,
                               .format = r->format,
                               .data = r->buffer,
                               .bytes = r->used,
                               .offset = r->offset,
                               .line = r->line,
                               .records = r->records,
                               .count = r->count,
                               .last = r->ended && r->consumed == r->used,
                               .reader = r};
    return STATUS_OK;
}

/* "file:line: what (byte N of the text)" for byte `at` of the batch. */
static status fail_at(const struct reader_batch *b, size_t at, const char *what)
{
    bool plain = stream_kind(b->reader->stream) == STREAM_PLAIN;
    return FAIL(STATUS_DATA, "%s:%lld: %s (byte %lld of the %s)", b->path,
                (long long)(b->line + count_lines(b->data, at)), what, (long long)(b->offset + (int64_t)at),
                plain ? "file" : "decompressed text");
}

status reader_fail(const struct reader_batch *b, int64_t i, const char *what)
{
    return fail_at(b, b->records[i].at, what);
}

static status json_text(const struct reader_batch *b, const struct reader_record *record, const char *key,
                        struct reader_document *d)
{
    struct jsonl_text text;
    struct jsonl_fault fault;
    if (jsonl_read(b->data + record->at, record->bytes, key, &text, &fault)) {
        *d = (struct reader_document){.text = text.text, .bytes = text.bytes, .owner = text.owner};
        return STATUS_OK;
    }
    char what[256];
    switch (fault.kind) {
    case JSONL_SYNTAX: snprintf(what, sizeof what, "not JSON: %s", fault.what); break;
    case JSONL_NO_OBJECT:
        snprintf(what, sizeof what, "a JSON object is expected%s, as in {\"%.64s\": \"...\"}", fault.what,
                 key);
        break;
    case JSONL_NO_TEXT:
        snprintf(what, sizeof what, "%s under the key '%.64s'; --key names another", fault.what, key);
        break;
    }
    return fail_at(b, record->at + fault.at, what);
}

status reader_cut_text(const struct reader_batch *b, int64_t i, const char *key, struct reader_document *d)
{
    const struct reader_record *record = &b->records[i];
    if (record->fault > 0) return fail_at(b, record->at, b->faults[record->fault - 1]);
    const char *text = b->data + record->at;
    char what[READER_TOO_LONG_BYTES];
    if (record->bytes > reader_document_bytes_max(b->reader))
        return fail_at(b, record->at, reader_too_long(b->reader, (int64_t)record->bytes, what));
    size_t valid = utf8_valid(text, record->bytes);
    if (valid < record->bytes) return fail_at(b, record->at + valid, "invalid UTF-8");
    if (b->format == READER_JSONL) return json_text(b, record, key, d);
    *d = (struct reader_document){.text = text, .bytes = record->bytes};
    return STATUS_OK;
}
