/* Everything that shards, their manifest and their indexes promise, checked token by token on all threads.
 *
 * A shard with a manifest is checked by one thread in one pass: checksum, range of ids, documents, bytes of text. One
 * without is cut into pieces, as it has no checksum. All of it moves at the speed of the page cache: docs/PERF.md. */
#ifndef INGOT_DATA_SHARD_SHARD_VERIFY_H
#define INGOT_DATA_SHARD_SHARD_VERIFY_H
#include "base/status.h"
#include "data/shard/manifest.h"
#include "data/shard/shard.h"
#include <stdbool.h>
#include <stdint.h>

struct shard_check {
    const char *path;
    const struct manifest_shard *promise; /* NULL: no manifest speaks of it */
    bool first;                           /* of its split: a document begins with its first token */
    /* found */
    status st;
    char message[768];  /* "" when st is STATUS_OK */
    int64_t tokens, documents; /* documents -1: nothing says where they begin */
};
struct shard_verify_config {
    struct shard_hints hints;    /* of a manifest: its eot and eod */
    int width;                   /* that the manifest says; 0 */
    int64_t vocab_size;          /* 0: unknown, or that of the header */
    const uint32_t *token_bytes; /* [vocab_size] bytes of text of each id, end-of-text 0; NULL: not checked */
    void (*progress)(void *ctx, int64_t done, int64_t total); /* bytes; from any thread, one at a time; NULL */
    void *ctx;
};
/* Checks follow each other as in their split: a document may begin where the shard before ended. What is wrong with a
 * shard is in its check; STATUS_FIT is the only failure. */
status shard_verify(struct shard_check *checks, int64_t count, const struct shard_verify_config *c) WARN_UNUSED;
#endif
