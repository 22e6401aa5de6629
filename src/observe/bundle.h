/* bundle: a run's records in one small archive (tar, zstd), for a colleague. What goes in is a list of names; weights,
 * texts and what looks like a secret stay out. docs/FORMATS.md tells what is in it. */
#ifndef INGOT_OBSERVE_BUNDLE_H
#define INGOT_OBSERVE_BUNDLE_H
#include "base/status.h"
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

enum { BUNDLE_FILES_MAX = 96 };
struct bundle {
    char *data;          /* the archive as it grows, malloc'd */
    size_t bytes, room;
    int64_t redacted;    /* words that were replaced */
    int count;
    struct bundle_file {
        char name[112];
        size_t bytes;
    } files[BUNDLE_FILES_MAX];
};
/* Collects the records of a run into `b`, behind what is in it. STATUS_DATA: no run directory. */
status bundle_run(struct bundle *b, const char *run_dir) WARN_UNUSED;
/* Adds a text that the caller made, redacted as the others are. */
void bundle_text(struct bundle *b, const char *name, const char *text);
/* Writes the archive to `path`, which no one else may read. The caller frees it afterwards, in any case. */
status bundle_write(struct bundle *b, const char *path) WARN_UNUSED;
void bundle_free(struct bundle *b);
/* The contents of a file in an archive that bundle_write has made; malloc'd. STATUS_DATA: no such archive, or no such
 * file in it. */
status bundle_read(const char *path, const char *name, char **text) WARN_UNUSED;

/* bundle_redact.c: replaces in a copy of `text` what looks like a secret by "[redacted]", and counts it: values of
 * this process's variables whose names say that they are secret, values behind such names, known forms of keys, and
 * user and password of a URL. malloc'd. */
char *bundle_redact(const char *text, int64_t *count);
#endif
