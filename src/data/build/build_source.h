/* An input of a build, read in batches. */
#ifndef INGOT_DATA_BUILD_BUILD_SOURCE_H
#define INGOT_DATA_BUILD_BUILD_SOURCE_H
#include "data/build/build.h"

struct build_source { /* an open input */
    int users;              /* reference count: slots and the reader thread; guarded by the lock of the pipe */
    struct reader *reader;  /* NULL: the input is shards, and the fields below are used */
    const struct build_config *config;
    struct shard_set set;
    struct document_index documents;
    int64_t next; /* next document */
    int32_t *ids; /* ids of the batch */
    int64_t id_room;
    struct reader_record *records;
    int64_t record_room;
};
/* Determines whether an input is shards: by its first bytes, by a Megatron index next to it, or because it is a
 * pattern. */
status build_source_is_shards(const struct build_config *config, const char *input, bool *shards) WARN_UNUSED;
/* Opens the shard set of such an input; its documents are not indexed yet. */
status build_source_set(const struct build_config *config, const char *input, struct shard_set *set) WARN_UNUSED;
status build_source_open(struct build_source **s, const struct build_config *config, int input,
                         struct reader_mark at) WARN_UNUSED;
status build_source_next(struct build_source *s, struct reader_batch *batch, bool *more) WARN_UNUSED;
struct reader_mark build_source_mark(const struct build_source *s);
int64_t build_source_bytes(const struct build_source *s);
int64_t build_source_done(const struct build_source *s); /* number of bytes read so far */
/* Returns record i of a batch, as reader_text does. */
status build_source_document(const struct build_source *s, const struct reader_batch *batch, int64_t i,
                             struct reader_document *d) WARN_UNUSED;
/* Approximate position of record i in bytes of the file, or -1. */
int64_t build_source_place(const struct build_source *s, const struct reader_batch *batch, int64_t i);
void build_source_close(struct build_source *s);
#endif
