/* The bytes of an input at any place: a file, or memory (tests, fuzzing). */
#ifndef INGOT_DATA_READ_SOURCE_H
#define INGOT_DATA_READ_SOURCE_H
#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

struct source {
    char *path;            /* for messages */
    const uint8_t *memory; /* NULL: the file */
    int fd;
    int64_t bytes;
};
/* Both leave something that source_close takes, also when they fail. */
status source_open(struct source *s, const char *path) WARN_UNUSED;
void source_memory(struct source *s, const char *name, const void *data, size_t bytes);
/* All of [at, at + bytes), which lies in the source. May be called from many threads. */
status source_read(const struct source *s, void *to, size_t bytes, int64_t at) WARN_UNUSED;
void source_close(struct source *s);
#endif
