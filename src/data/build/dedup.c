/* The table has 256 segments by the top byte of the hash, each with open addressing. A segment grows on its
 * own, by a quarter when it is four fifths full; memory therefore never holds two tables. */
#include "data/build/dedup.h"

#include "base/io.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { SEGMENTS = 256, SEGMENT_ROOM = 64, BUFFER_HASHES = 4096 };

struct segment {
    struct dedup_hash *slots; /* {0, 0}: empty slot */
    size_t room, used;
};
struct dedup {
    struct segment segments[SEGMENTS];
    int64_t count;
    struct io_file file;
    size_t buffered;
    struct dedup_hash buffer[BUFFER_HASHES];
};

struct dedup_hash dedup_hash(const void *text, size_t bytes)
{
    XXH128_hash_t h = XXH3_128bits(text, bytes);
    return (struct dedup_hash){h.low64 | (h.low64 == 0 && h.high64 == 0), h.high64};
}

static size_t first_of(const struct segment *s, struct dedup_hash h)
{
    return (size_t)(((unsigned __int128)h.low * s->room) >> 64);
}

void dedup_prefetch(const struct dedup *d, struct dedup_hash h)
{
    const struct segment *s = &d->segments[h.high >> 56];
    if (s->room) __builtin_prefetch(&s->slots[first_of(s, h)]);
}

/* The slot of h, or the empty slot for it. */
static struct dedup_hash *slot_of(const struct segment *s, struct dedup_hash h)
{
    size_t i = first_of(s, h);
    while ((s->slots[i].low | s->slots[i].high) != 0 &&
           (s->slots[i].low != h.low || s->slots[i].high != h.high))
        if (++i == s->room) i = 0;
    return &s->slots[i];
}

static status segment_grow(struct segment *s)
{
    struct segment larger = {.room = s->room ? s->room + s->room / 4 : SEGMENT_ROOM, .used = s->used};
    larger.slots = calloc(larger.room, sizeof *larger.slots);
    if (!larger.slots)
        return FAIL(STATUS_OUT_OF_MEMORY,
                    "no memory for the hashes of documents; --dedup off builds without them");
    for (size_t i = 0; i < s->room; i++)
        if ((s->slots[i].low | s->slots[i].high) != 0) *slot_of(&larger, s->slots[i]) = s->slots[i];
    free(s->slots);
    *s = larger;
    return STATUS_OK;
}

static status insert(struct dedup *d, struct dedup_hash h, bool *seen)
{
    struct segment *s = &d->segments[h.high >> 56];
    if (s->used * 5 >= s->room * 4) TRY(segment_grow(s));
    struct dedup_hash *slot = slot_of(s, h);
    *seen = (slot->low | slot->high) != 0;
    s->used += !*seen;
    *slot = h;
    return STATUS_OK;
}

static status read_back(struct dedup *d, int64_t count)
{
    int fd;
    int64_t bytes;
    TRY(io_open(d->file.temp, LINKS_REFUSE, &fd, &bytes));
    status st = STATUS_OK;
    bool seen;
    for (int64_t at = 0; st == STATUS_OK && at < count; at += BUFFER_HASHES) {
        int64_t n = count - at < BUFFER_HASHES ? count - at : BUFFER_HASHES;
        st = io_pread(fd, d->file.temp, d->buffer, (size_t)n * sizeof *d->buffer,
                      at * (int64_t)sizeof *d->buffer);
        for (int64_t i = 0; st == STATUS_OK && i < n; i++) st = insert(d, d->buffer[i], &seen);
    }
    io_close(&fd);
    return st;
}

status dedup_open(struct dedup **out, const char *path, int64_t count)
{
    struct dedup *d = *out = calloc(1, sizeof *d);
    MEMORY_CHECK(d, "no memory for a table of documents");
    d->count = count;
    status st = io_reopen(&d->file, path, path, count * (int64_t)sizeof *d->buffer);
    if (st == STATUS_OK && count > 0) st = read_back(d, count);
    if (st != STATUS_OK) dedup_close(out, true);
    return st;
}

static status flush(struct dedup *d)
{
    TRY(io_write(&d->file, d->buffer, d->buffered * sizeof *d->buffer));
    d->buffered = 0;
    return STATUS_OK;
}

status dedup_add(struct dedup *d, struct dedup_hash h, bool *seen)
{
    TRY(insert(d, h, seen));
    d->buffer[d->buffered++] = h;
    d->count++;
    return d->buffered == BUFFER_HASHES ? flush(d) : STATUS_OK;
}

status dedup_sync(struct dedup *d)
{
    TRY(flush(d));
    return io_sync(&d->file);
}

int64_t dedup_count(const struct dedup *d)
{
    return d->count;
}

size_t dedup_bytes(const struct dedup *d)
{
    size_t bytes = 0;
    for (int i = 0; i < SEGMENTS; i++) bytes += d->segments[i].room * sizeof(struct dedup_hash);
    return bytes;
}

void dedup_close(struct dedup **out, bool keep_file)
{
    struct dedup *d = *out;
    if (!d) return;
    for (int i = 0; i < SEGMENTS; i++) free(d->segments[i].slots);
    if (keep_file)
        io_leave(&d->file);
    else
        io_abandon(&d->file);
    free(d);
    *out = NULL;
}
