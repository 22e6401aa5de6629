/* Random access to the bytes of an input: a file, or memory (tests, fuzzing). */
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
/* After both, even on failure, call source_close. */
status source_open(struct source *s, const char *path) WARN_UNUSED;
void source_memory(struct source *s, const char *name, const void *data, size_t bytes);
/* Reads [at, at + bytes), which must be inside the source. May be called from many threads. */
status source_read(const struct source *s, void *to, size_t bytes, int64_t at) WARN_UNUSED;
void source_close(struct source *s);
#endif
