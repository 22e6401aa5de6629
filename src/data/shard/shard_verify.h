/* Verification of shards, their manifest and their indexes, token by token on all threads.
 *
 * A shard with a manifest is checked by one thread in one pass: checksum, range of ids, documents, bytes of text. A
 * shard without one is divided into pieces, because it has no checksum. The check runs at the speed of the page
 * cache: docs/PERF.md. */
#ifndef INGOT_DATA_SHARD_SHARD_VERIFY_H
#define INGOT_DATA_SHARD_SHARD_VERIFY_H
#include "base/status.h"
#include "data/shard/manifest.h"
#include "data/shard/shard.h"
#include <stdbool.h>
#include <stdint.h>

struct shard_check {
    const char *path;
    const struct manifest_shard *promise; /* NULL: not in a manifest */
    bool first;                           /* first shard of its split: a document begins with its first token */
    /* results */
    status st;
    char message[768];  /* "" when st is STATUS_OK */
    int64_t tokens, documents; /* documents -1: their starts are unknown */
};
struct shard_verify_config {
    struct shard_hints hints;    /* with a manifest: its eot and eod */
    int width;                   /* width in the manifest; 0: none */
    int64_t vocab_size;          /* 0: unknown, or the value of the header */
    const uint32_t *token_bytes; /* [vocab_size] bytes of text of each id, end-of-text 0; NULL: not checked */
    /* in bytes; called from any thread, one call at a time; NULL: none */
    void (*progress)(void *ctx, int64_t done, int64_t total);
    void *ctx;
};
/* Runs the checks, which must be in the order of their split: a document may begin where the previous shard ended.
 * The error of a shard is in its check; the function itself only fails with STATUS_OUT_OF_MEMORY. */
status shard_verify(struct shard_check *checks, int64_t count, const struct shard_verify_config *c) WARN_UNUSED;
#endif
