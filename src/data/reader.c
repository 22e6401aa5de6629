/* The buffer holds the bytes [offset, offset + used) of the file. Each reader_next drops what the last batch
 * consumed, reads until the buffer is full, and cuts it into records; what follows the last complete record
 * stays for the next batch. A record that does not fit doubles the buffer, so the cost stays linear. */
#include "data/reader.h"

#include "base/io.h"
#include "base/utf8.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH_BYTES = 16 << 20, RECORD_BYTES_MAX = INT32_MAX, MAGIC_BYTES = 8 };

struct reader {
    struct reader_config config;
    char *path;
    bool json;
    int fd;
    int64_t size; /* of the file */
    char *buffer;
    size_t capacity, used, consumed; /* consumed: by the batch that is out */
    int64_t offset, line;            /* of buffer[0] */
    struct reader_record *records;
    int64_t count, room;
};

static bool ends_with(const char *text, const char *end)
{
    size_t a = strlen(text), b = strlen(end);
    return a >= b && strcmp(text + a - b, end) == 0;
}

static status foreign_check(const char *path, const char *data, size_t bytes)
{
    static const struct {
        const char *magic, *advice;
    } known[] = {
        {"\x1f\x8b", "gzip data; decompress it first (gunzip)"},
        {"\x28\xb5\x2f\xfd", "zstd data; decompress it first (unzstd)"},
        {"\xfd"
         "7zXZ",
         "xz data; decompress it first (unxz)"},
        {"BZh", "bzip2 data; decompress it first (bunzip2)"},
        {"PK\x03\x04", "a zip archive; unpack it first"},
        {"PAR1", "a Parquet file; convert it to JSONL first"},
        {"\xff\xfe", "UTF-16 text; convert it to UTF-8 first (iconv)"},
        {"\xfe\xff", "UTF-16 text; convert it to UTF-8 first (iconv)"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        size_t n = strlen(known[i].magic);
        if (bytes >= n && memcmp(data, known[i].magic, n) == 0)
            return FAIL(STATUS_DATA, "%s: %s", path, known[i].advice);
    }
    return STATUS_OK;
}

/* Makes room for a record that is longer than the buffer. */
static status grow(struct reader *r)
{
    if (r->capacity >= RECORD_BYTES_MAX)
        return FAIL(STATUS_DATA, "%s:%lld: a document of more than 2 GiB; choose a --separator that cuts it",
                    r->path, (long long)r->line);
    size_t capacity = r->capacity * 2 < RECORD_BYTES_MAX ? r->capacity * 2 : RECORD_BYTES_MAX;
    char *larger = realloc(r->buffer, capacity);
    if (!larger) return FAIL(STATUS_FIT, "%s: no memory for a document of %zu bytes", r->path, capacity);
    r->buffer = larger;
    r->capacity = capacity;
    return STATUS_OK;
}

/* Reads as much as fits. */
static status fill(struct reader *r)
{
    int64_t left = r->size - r->offset - (int64_t)r->used, room = (int64_t)(r->capacity - r->used),
            n = left < room ? left : room;
    TRY(io_pread(r->fd, r->path, r->buffer + r->used, (size_t)n, r->offset + (int64_t)r->used));
    r->used += (size_t)n;
    return STATUS_OK;
}

static bool at_end(const struct reader *r)
{
    return r->offset + (int64_t)r->used == r->size;
}

static int64_t count_lines(const char *data, size_t bytes)
{
    int64_t n = 0;
    for (size_t i = 0; i < bytes; i++) n += data[i] == '\n';
    return n;
}

status reader_open(struct reader **out, const char *path, const struct reader_config *config)
{
    *out = NULL;
    CHECK(config->separator != READER_TEXT || (config->separator_text && config->separator_text[0]),
          "an empty separator");
    struct reader *r = calloc(1, sizeof *r);
    CHECK(r && (r->path = strdup(path)), "no memory for a reader");
    r->config = *config;
    r->fd = -1;
    r->json = config->format == READER_JSONL;
    if (config->format == READER_AUTO) r->json = ends_with(path, ".jsonl") || ends_with(path, ".ndjson");
    r->capacity = config->batch_bytes ? config->batch_bytes : BATCH_BYTES;
    r->line = 1;
    status st;
    TRY_OUT(io_open(path, LINKS_FOLLOW, &r->fd, &r->size));
    if (r->size < (int64_t)r->capacity) r->capacity = (size_t)r->size;
    if (r->capacity < MAGIC_BYTES) r->capacity = MAGIC_BYTES;
    r->buffer = malloc(r->capacity);
    if (!r->buffer) {
        st = FAIL(STATUS_FIT, "%s: no memory to read %zu bytes at once", path, r->capacity);
        goto out;
    }
    TRY_OUT(fill(r));
    TRY_OUT(foreign_check(path, r->buffer, r->used));
    if (r->used >= 3 && memcmp(r->buffer, "\xef\xbb\xbf", 3) == 0) r->consumed = 3;
out:
    if (st == STATUS_OK)
        *out = r;
    else
        reader_close(r);
    return st;
}

void reader_close(struct reader *r)
{
    if (!r) return;
    io_close(&r->fd);
    free(r->path);
    free(r->buffer);
    free(r->records);
    free(r);
}

int64_t reader_bytes(const struct reader *r)
{
    return r->size;
}

int64_t reader_bytes_done(const struct reader *r)
{
    return r->offset + (int64_t)r->consumed;
}

int64_t reader_place(const struct reader_batch *b, int64_t i)
{
    return b->offset + (int64_t)b->records[i].at;
}

struct reader_mark reader_mark(const struct reader *r)
{
    return (struct reader_mark){r->offset + (int64_t)r->consumed,
                                r->line - 1 + count_lines(r->buffer, r->consumed)};
}

status reader_seek(struct reader *r, struct reader_mark mark)
{
    if (mark.at > r->size)
        return FAIL(STATUS_DATA, "%s: the file has %lld bytes; it cannot go on at byte %lld", r->path,
                    (long long)r->size, (long long)mark.at);
    r->offset = mark.at;
    r->line = mark.row + 1;
    r->used = r->consumed = 0;
    if (mark.at > 0) return STATUS_OK;
    TRY(fill(r));
    if (r->used >= 3 && memcmp(r->buffer, "\xef\xbb\xbf", 3) == 0) r->consumed = 3;
    return STATUS_OK;
}

static void record_add(struct reader *r, size_t at, size_t end)
{
    if (r->count == r->room) {
        r->room = r->room ? 2 * r->room : 1024;
        r->records = realloc(r->records, (size_t)r->room * sizeof *r->records);
        CHECK(r->records, "no memory for %lld records", (long long)r->room);
    }
    r->records[r->count++] = (struct reader_record){at, end - at, 0};
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

/* The scanners add the records that are complete in buffer[0, used) and return where the rest begins. At the
 * end of the file the rest is a record too. */
static size_t scan_lines(struct reader *r, bool last)
{
    size_t at = 0;
    while (at < r->used) {
        const char *lf = memchr(r->buffer + at, '\n', r->used - at);
        if (!lf && !last) break;
        size_t end = lf ? (size_t)(lf - r->buffer) : r->used, stop = without_cr(r->buffer, at, end);
        bool skip = r->json ? is_blank(r->buffer + at, stop - at) : stop == at;
        if (!skip) record_add(r, at, stop);
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
            if (start != none) record_add(r, start, stop);
            start = none;
            rest = next;
        }
        at = next;
    }
    if (!last) return rest;
    if (start != none) record_add(r, start, stop);
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
        if (end > at) record_add(r, at, end);
        if (!hit) return r->used;
        at = end + length;
    }
}

static size_t scan(struct reader *r, bool last)
{
    if (r->json || r->config.separator == READER_LINE) return scan_lines(r, last);
    if (r->config.separator == READER_BLANK) return scan_blank(r, last);
    if (r->config.separator == READER_TEXT) return scan_text(r, last);
    if (!last) return 0;
    if (r->used > 0) record_add(r, 0, r->used);
    return r->used;
}

status reader_next(struct reader *r, struct reader_batch *b, bool *more)
{
    for (;;) {
        r->line += count_lines(r->buffer, r->consumed);
        r->offset += (int64_t)r->consumed;
        r->used -= r->consumed;
        memmove(r->buffer, r->buffer + r->consumed, r->used);
        r->consumed = 0;
        r->count = 0;
        *more = r->used > 0 || !at_end(r);
        if (!*more) return STATUS_OK;
        TRY(fill(r));
        r->consumed = scan(r, at_end(r));
        if (r->count > 0) break;
        if (r->consumed == 0) TRY(grow(r));
    }
    *b = (struct reader_batch){.path = r->path,
                               .format = r->json ? READER_JSONL : READER_PLAIN,
                               .data = r->buffer,
                               .bytes = r->used,
                               .offset = r->offset,
                               .line = r->line,
                               .records = r->records,
                               .count = r->count,
                               .last = at_end(r) && r->consumed == r->used,
                               .reader = r};
    return STATUS_OK;
}

/* "file:line: what (byte N of the file)" for byte `at` of the batch. */
static status fail_at(const struct reader_batch *b, size_t at, const char *what)
{
    return FAIL(STATUS_DATA, "%s:%lld: %s (byte %lld of the file)", b->path,
                (long long)(b->line + count_lines(b->data, at)), what, (long long)(b->offset + (int64_t)at));
}

static status json_text(const struct reader_batch *b, const struct reader_record *record, const char *key,
                        struct reader_document *d)
{
    json_error_t where;
    char what[sizeof where.text + 128];
    json_t *root = json_loadb(b->data + record->at, record->bytes, JSON_ALLOW_NUL | JSON_DECODE_ANY, &where);
    if (!root) {
        snprintf(what, sizeof what, "not JSON: %s", where.text);
        return fail_at(b, record->at + (where.position > 0 ? (size_t)where.position - 1 : 0), what);
    }
    const json_t *text = json_object_get(root, key);
    if (!json_is_string(text)) {
        if (!json_is_object(root))
            snprintf(what, sizeof what, "a JSON object is expected, as in {\"%.64s\": \"...\"}", key);
        else
            snprintf(what, sizeof what, "%s under the key '%.64s'; --key names another",
                     text ? "not text" : "nothing", key);
        json_decref(root);
        return fail_at(b, record->at, what);
    }
    *d = (struct reader_document){
        .text = json_string_value(text), .bytes = json_string_length(text), .owner = root};
    return STATUS_OK;
}

status reader_text(const struct reader_batch *b, int64_t i, const char *key, struct reader_document *d)
{
    CHECK(i >= 0 && i < b->count, "record %lld of %lld", (long long)i, (long long)b->count);
    const struct reader_record *record = &b->records[i];
    *d = (struct reader_document){.text = b->data + record->at, .bytes = record->bytes};
    size_t valid = utf8_valid(d->text, d->bytes);
    if (valid < d->bytes) {
        *d = (struct reader_document){0};
        return fail_at(b, record->at + valid, "invalid UTF-8");
    }
    return b->format == READER_JSONL ? json_text(b, record, key ? key : "text", d) : STATUS_OK;
}

void reader_document_free(struct reader_document *d)
{
    if (d->owner) json_decref(d->owner);
    *d = (struct reader_document){0};
}
