/* Steps ascend in the file: the first record of a step is found by halving. */
#include "observe/history.h"
#include "base/io.h"
#include "base/memory.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 64 << 10, REPLY = 2 << 20, REPLY_MAX = 64 << 20 };

struct records {
    const char *path;
    int fd;
    int64_t bytes;
    char *buffer; /* [REPLY_MAX at most] */
    size_t room;
};

/* Bytes [at, at + want) of the file, or those that there are; NULL: not readable. */
static const char *piece(struct records *r, int64_t at, int64_t want, size_t *got)
{
    *got = (size_t)(want < r->bytes - at ? want : r->bytes - at);
    if (*got > r->room) {
        r->buffer = realloc(r->buffer, *got);
        MEMORY_CHECK(r->buffer != NULL, "no memory for %zu bytes of records", *got);
        r->room = *got;
    }
    return io_pread(r->fd, r->path, r->buffer, *got, at) == STATUS_OK ? r->buffer : NULL;
}

/* The step of a line; -1: it has none, or is no record. */
static int64_t step_of(const char *line, size_t bytes, json_t **record)
{
    json_t *o = json_loadb(line, bytes, 0, NULL);
    const json_t *step = json_object_get(o, "step");
    const int64_t number = json_is_integer(step) ? (int64_t)json_integer_value(step) : -1;
    if (record && number >= 0)
        *record = o;
    else
        json_decref(o);
    return number;
}

/* The step of the first record behind byte `at`, which may be within a line; -1: none in a piece. */
static int64_t probe(struct records *r, int64_t at)
{
    size_t got;
    const char *text = piece(r, at, PIECE, &got), *line = text ? memchr(text, '\n', got) : NULL;
    while (line) {
        line++;
        const char *end = memchr(line, '\n', got - (size_t)(line - text));
        const int64_t step = end ? step_of(line, (size_t)(end - line), NULL) : -1;
        if (step >= 0) return step;
        line = end;
    }
    return -1;
}

/* A place before the first record of step `since`, at most two pieces. */
static int64_t place_of(struct records *r, int64_t since)
{
    int64_t low = 0, high = r->bytes;
    while (high - low > PIECE) {
        const int64_t middle = low + (high - low) / 2, step = probe(r, middle);
        if (step < 0) break; /* lines longer than a piece */
        if (step < since)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The whole lines of a piece. False: it holds no later step than `since`, though the file goes on. */
static bool take(struct records *r, int64_t at, int64_t want, int64_t since, json_t *o)
{
    size_t got;
    int64_t last = -1;
    json_t *list = json_array(), *record;
    const char *text = piece(r, at, want, &got), *line = text;
    if (at > 0 && text) line = memchr(text, '\n', got), line = line ? line + 1 : NULL;
    for (const char *end; line && (end = memchr(line, '\n', got - (size_t)(line - text))); line = end + 1) {
        const int64_t step = step_of(line, (size_t)(end - line), &record);
        if (step < 0) continue;
        if (step >= since) json_array_append(list, record);
        json_decref(record);
        last = step > last ? step : last;
    }
    const bool more = at + (int64_t)got < r->bytes;
    json_object_set_new(o, "records", list);
    json_object_set_new(o, "step", json_integer(last > since ? last : since));
    json_object_set_new(o, "more", json_boolean(more));
    return last > since || !more;
}

/* Grows when the run leaves a course that it had recorded (forks.jsonl). */
static int64_t branch_of(const char *run_dir)
{
    char path[1100];
    int fd;
    int64_t bytes;
    snprintf(path, sizeof path, "%.1000s/forks.jsonl", run_dir);
    if (io_open(path, LINKS_REFUSE, &fd, &bytes) != STATUS_OK) return 0;
    io_close(&fd);
    return bytes;
}

status history_read(const char *run_dir, int64_t since, json_t **out)
{
    char path[1100];
    struct records r = {.path = path};
    bool there;
    snprintf(path, sizeof path, "%.1000s/metrics.jsonl", run_dir);
    TRY(io_exists(path, &there));
    if (!there) return FAIL(STATUS_DATA, "%s: no record yet", run_dir);
    TRY(io_open(path, LINKS_REFUSE, &r.fd, &r.bytes));
    json_t *o = json_pack("{s:s, s:I, s:I}", "schema", "ingot.history/1", "since", (json_int_t)since,
                          "branch", (json_int_t)branch_of(run_dir));
    MEMORY_CHECK(o != NULL, "no memory for the records of a run");
    const int64_t at = place_of(&r, since);
    for (int64_t want = REPLY; !take(&r, at, want, since, o) && want < REPLY_MAX;) want *= 2;
    io_close(&r.fd);
    free(r.buffer);
    *out = o;
    return STATUS_OK;
}
