/* An input of a build, read in batches. */
#ifndef INGOT_DATA_BUILD_SOURCE_H
#define INGOT_DATA_BUILD_SOURCE_H
#include "data/build.h"

struct build_source { /* an open input: text, or existing shards */
    struct reader *reader;
    int users; /* slots, and the reader's thread; the lock of the pipe guards it */
};
status build_source_open(struct build_source **s, const struct build_config *config, int input,
                         struct reader_mark at) WARN_UNUSED;
status build_source_next(struct build_source *s, struct reader_batch *batch, bool *more) WARN_UNUSED;
struct reader_mark build_source_mark(const struct build_source *s);
int64_t build_source_bytes(const struct build_source *s);
int64_t build_source_done(const struct build_source *s); /* bytes read so far */
/* About where record i begins, in bytes of the file, or -1. */
int64_t build_source_place(const struct build_source *s, const struct reader_batch *batch, int64_t i);
void build_source_close(struct build_source *s);
#endif
