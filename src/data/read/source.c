#include "data/read/source.h"

#include "base/io.h"

#include <stdlib.h>
#include <string.h>

status source_open(struct source *s, const char *path)
{
    *s = (struct source){.path = strdup(path), .fd = -1};
    MEMORY_CHECK(s->path, "no memory for a path");
    return io_open(path, LINKS_FOLLOW, &s->fd, &s->bytes);
}

void source_memory(struct source *s, const char *name, const void *data, size_t bytes)
{
    static const uint8_t nothing;
    *s = (struct source){.path = strdup(name), .memory = bytes ? data : &nothing, .fd = -1};
    s->bytes = (int64_t)bytes;
    MEMORY_CHECK(s->path, "no memory for a path");
}

status source_read(const struct source *s, void *to, size_t bytes, int64_t at)
{
    CHECK(at >= 0 && at <= s->bytes, "%s: byte %lld of %lld", s->path, (long long)at, (long long)s->bytes);
    CHECK((int64_t)bytes <= s->bytes - at, "%s: %zu bytes at %lld", s->path, bytes, (long long)at);
    if (!s->memory) return io_pread(s->fd, s->path, to, bytes, at);
    if (bytes > 0) memcpy(to, s->memory + at, bytes);
    return STATUS_OK;
}

void source_close(struct source *s)
{
    io_close(&s->fd);
    free(s->path);
    s->path = NULL;
}
