/* Token shards as other trainers read them: llm.c v1 (u16) and v7 (u32).
 *
 *   offset  type        v1 (GPT-2)   v7 (Llama-3)
 *   0       i32 magic   20240520     20240801
 *   4       i32 version 1            7
 *   8       i32 tokens  count, < 2^31
 *   12      i32 x 253   zero
 *   1024    u16 | u32   tokens; the file is exactly 1024 + count * width bytes
 *
 * Beside the shards stands PREFIX_manifest.json: tokenizer hash, vocabulary, end-of-text id, counts, text bytes, checksums. */
#ifndef INGOT_DATA_SHARD_H
#define INGOT_DATA_SHARD_H
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shard {              /* an open shard: mapped, read-only */
    char *path;
    int64_t count;          /* tokens */
    int width;              /* bytes per token: 2 or 4 */
    const void *tokens;
    size_t map_bytes;
    void *map;
};
/* Checks magic, version, and that the size fits exactly: STATUS_DATA with what was expected. */
status shard_open(struct shard *s, const char *path) WARN_UNUSED;
void shard_close(struct shard *s);
/* Copies tokens [at, at+n) as int32. STATUS_DATA names file and position of an id >= vocab_size. */
status shard_read(const struct shard *s, int64_t at, int64_t n, int64_t vocab_size, int32_t *out) WARN_UNUSED;

/* Writer: temporary file, header last, fsync, rename. */
struct shard_writer;
status shard_create(struct shard_writer **w, const char *path, int width) WARN_UNUSED;
status shard_append(struct shard_writer *w, const int32_t *ids, int64_t count) WARN_UNUSED;
status shard_commit(struct shard_writer **w) WARN_UNUSED;      /* also closes */
void shard_abandon(struct shard_writer **w);

/* All shards that match a pattern ("data/train_*.bin" or one file), in name order, as one stream of tokens. */
struct shard_set {
    struct shard *shards;
    int count;
    int64_t tokens;             /* of all */
    int64_t text_bytes;         /* from the manifest; 0 when there is none (foreign shards) */
    int64_t vocab_size;         /* from the manifest; 0 unknown */
    int32_t eot;                /* from the manifest; -1 unknown */
    char tokenizer_dir[512];    /* from the manifest, absolute or relative to the shards; "" unknown */
    char tokenizer_hash[65];    /* "" unknown */
};
status shard_set_open(struct shard_set *s, const char *pattern) WARN_UNUSED;
void shard_set_close(struct shard_set *s);
#endif
