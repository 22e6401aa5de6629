/* The starts of documents: PREFIX_SPLIT_NNNNNN.idx next to a shard of the same name. It avoids a search for
 * end-of-text tokens. Little-endian.
 *
 *   offset  type
 *   0       8 bytes       "INGOTIDX"
 *   8       u32           version: 1
 *   12      u32           bytes per entry: 4
 *   16      i64           tokens of the shard
 *   24      i64           documents that begin in it
 *   32      u64           XXH64, seed 0, of the entries
 *   40      24 bytes      zero
 *   64      u32 x docs    token of the shard at which each document begins: rising
 *
 * A document ends where the next one begins, or continues in the next shard. Tokens before the first entry belong to
 * the last document of the previous shard. */
#ifndef INGOT_DATA_SHARD_CORPUS_INDEX_H
#define INGOT_DATA_SHARD_CORPUS_INDEX_H
#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

struct corpus_index { /* open: mapped, read-only */
    int64_t tokens, documents;
    const uint32_t *begins; /* [documents] */
    uint64_t xxh64;
    void *map;
    size_t map_bytes;
};
/* Opens an index and checks everything, including the checksum and the order of the entries, in one pass over them.
 * STATUS_DATA names the file and the expected value. */
status corpus_index_open(struct corpus_index *x, const char *path) WARN_UNUSED;
void corpus_index_close(struct corpus_index *x); /* accepts a zeroed or closed index */
/* The same for bytes in memory, aligned to 8, which must outlive it; no close is needed. */
status corpus_index_parse(struct corpus_index *x, const char *path, const void *data,
                          size_t bytes) WARN_UNUSED;
/* Writes the name of the file beside a shard: "d/x_000000.idx" for "d/x_000000.bin" and ".idx". */
void corpus_beside(const char *shard, const char *suffix, char *out, size_t size);
/* Writes "x_000000.idx" for "x_000000.bin" or "x_000000.npy". */
void corpus_index_name(const char *shard, char *out, size_t size);

/* Writer. The entries are in a file `temp`, which keeps that name if the process is killed, until it is committed as
 * `path`. */
struct corpus_index_writer;
/* Opens a writer that continues after `documents` entries, which are read back; 0: starts a new file. STATUS_DATA:
 * the file has fewer. */
status corpus_index_create(struct corpus_index_writer **w, const char *path, const char *temp,
                           int64_t documents) WARN_UNUSED;
status corpus_index_add(struct corpus_index_writer *w, uint32_t begin) WARN_UNUSED;
/* Makes all added entries durable. */
status corpus_index_sync(struct corpus_index_writer *w) WARN_UNUSED;
/* Commits, and closes on success and on failure; *xxh64 gets the checksum. */
status corpus_index_commit(struct corpus_index_writer **w, int64_t tokens, uint64_t *xxh64) WARN_UNUSED;
void corpus_index_leave(struct corpus_index_writer **w); /* closes and keeps the file */
/* Reads the first `documents` entries of a writer's file; *begins is malloc'd, NULL for 0. */
status corpus_index_load(const char *temp, int64_t documents, uint32_t **begins) WARN_UNUSED;
#endif
