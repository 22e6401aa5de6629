/* Token shards as other trainers read them: llm.c v1 (u16) and v7 (u32). Little-endian.
 *
 *   offset  type        v1 (GPT-2)   v7 (Llama-3)
 *   0       i32 magic   20240520     20240801
 *   4       i32 version 1            7
 *   8       i32 tokens  count, < 2^31
 *   12      i32 x 253   zero (written so, not demanded)
 *   1024    u16 | u32   tokens; the file is exactly 1024 + count * width bytes
 *
 * Beside the shards PREFIX_train_000000.bin ... stands PREFIX_manifest.json (data/manifest.h,
 * docs/FORMATS.md): tokenizer, end-of-text id and its place, counts, text bytes, checksums. Shards of other
 * programs have none; then llm.c's own habit is assumed: documents begin with token 50256 (v1) or 128000
 * (v7). */
#ifndef INGOT_DATA_SHARD_H
#define INGOT_DATA_SHARD_H
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shard { /* an open shard: mapped, read-only */
    char *path;
    int64_t count; /* tokens */
    int width;     /* bytes per token: 2 or 4 */
    const void *tokens;
    size_t map_bytes;
    void *map;
};
/* Checks magic, version, and that the size fits exactly: STATUS_DATA with what was expected. */
status shard_open(struct shard *s, const char *path) WARN_UNUSED;
void shard_close(struct shard *s); /* a zeroed or closed shard is fine */
/* Copies tokens [at, at+n) as int32. STATUS_DATA names file and position of an id >= vocab_size (0:
 * unknown, the limit is 2^31). */
status shard_read(const struct shard *s, int64_t at, int64_t n, int64_t vocab_size, int32_t *out) WARN_UNUSED;
/* XXH64 of the token bytes, as the manifest keeps it. */
uint64_t shard_hash(const struct shard *s);

/* Bytes per token for a vocabulary: 2 up to 65536 ids, else 4. */
int shard_width(int64_t vocab_size);

/* Writer: temporary file, header last, fsync, rename. After an error only shard_abandon may follow. */
struct shard_writer;
status shard_create(struct shard_writer **w, const char *path, int width) WARN_UNUSED;
status shard_append(struct shard_writer *w, const int32_t *ids, int64_t count) WARN_UNUSED;
/* Also closes, whether or not it succeeds. xxh64 (may be NULL) gets the hash of the token bytes. */
status shard_commit(struct shard_writer **w, uint64_t *xxh64) WARN_UNUSED;
void shard_abandon(struct shard_writer **w);

/* Where the end-of-text token stands. */
#define EOD_WORDS(X) X(NONE, "none") X(BEFORE, "before") X(AFTER, "after")
enum eod {
#define X(value, word) EOD_##value,
    EOD_WORDS(X)
#undef X
};

/* All shards that match a pattern ("data/kjv_train_*.bin" or one file), in name order, as one stream of
 * tokens. */
struct shard_set {
    struct shard *shards;
    int64_t *starts; /* [count+1]: first token of each shard in the stream; starts[count] == tokens */
    int count;
    bool manifest;      /* the fields below come from a manifest, not from the rule for foreign shards */
    bool mixed;         /* shards of different splits, as of train and val */
    int64_t tokens;     /* of all */
    int64_t documents;  /* that begin in these shards; 0 unknown */
    int64_t text_bytes; /* that the tokens stand for (end-of-text tokens: 0); 0 unknown */
    int64_t vocab_size; /* 0 unknown */
    int32_t eot;        /* id of the end-of-text token; -1: there is none */
    enum eod eod;       /* BEFORE: eot begins each document; AFTER: eot ends it */
    char tokenizer_dir[1024]; /* usable from the working directory; "" unknown */
    char tokenizer_hash[65];  /* "" unknown */
};
/* STATUS_DATA: nothing matches, a damaged shard, shards of different tokenizers, a shard that disagrees
 * with its manifest, or a build that was interrupted. */
status shard_set_open(struct shard_set *s, const char *pattern) WARN_UNUSED;
void shard_set_close(struct shard_set *s);
/* Copies tokens [at, at+n) of the stream. Errors as shard_read. */
status shard_set_read(const struct shard_set *s, int64_t at, int64_t n, int64_t vocab_size,
                      int32_t *out) WARN_UNUSED;
/* True when token `id`, preceded by `previous` (-1: nothing), begins a document. */
static inline bool shard_set_document_begins(const struct shard_set *s, int32_t previous, int32_t id)
{
    return s->eod == EOD_AFTER ? previous == s->eot : s->eod == EOD_BEFORE && id == s->eot;
}
#endif
