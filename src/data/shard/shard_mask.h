/* The targets among a shard's tokens: PREFIX_SPLIT_NNNNNN.mask next to a shard of the same name, listed by a manifest
 * of version 3. Little-endian.
 *
 *   offset  type
 *   0       8 bytes       "INGOTMSK"
 *   8       u32           version: 1
 *   12      u32           bits per token: 1
 *   16      i64           tokens of the shard
 *   24      i64           targets: bits that are 1
 *   32      u64           XXH64, seed 0, of the bits
 *   40      24 bytes      zero
 *   64      u8 x ceil(tokens / 8)   bit i % 8 of byte i / 8 is 1 when token i is a target; bits after the last are 0
 *
 * A token that is no target is read as an input; no loss is counted for its prediction. */
#ifndef INGOT_DATA_SHARD_SHARD_MASK_H
#define INGOT_DATA_SHARD_SHARD_MASK_H
#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

struct shard_mask { /* of bytes that outlive it */
    int64_t tokens, targets;
    const uint8_t *bits; /* [ceil(tokens / 8)] */
    uint64_t xxh64;
};
/* Checks everything, including checksum and count, in one pass. STATUS_DATA names the file and the expected value. */
status shard_mask_parse(struct shard_mask *m, const char *path, const void *data, size_t bytes) WARN_UNUSED;
/* Writes "x_000000.mask" for "x_000000.bin" or "x_000000.npy". */
void shard_mask_name(const char *shard, char *out, size_t size);

/* Writer. The bits are in a file `temp`, which keeps that name if the process is killed, until it is committed as
 * `path`. */
struct shard_mask_writer;
/* Opens a writer that continues after `tokens` tokens, whose bits are read back; 0: starts a new file. STATUS_DATA: the
 * file has fewer. */
status shard_mask_create(struct shard_mask_writer **w, const char *path, const char *temp, int64_t tokens) WARN_UNUSED;
/* Appends `count` tokens; targets[i] is 1 for a target, else 0. */
status shard_mask_add(struct shard_mask_writer *w, const uint8_t *targets, int64_t count) WARN_UNUSED;
/* Makes all added tokens durable. */
status shard_mask_sync(struct shard_mask_writer *w) WARN_UNUSED;
/* Commits, and closes on success and on failure; *xxh64 gets the checksum. */
status shard_mask_commit(struct shard_mask_writer **w, uint64_t *xxh64) WARN_UNUSED;
void shard_mask_leave(struct shard_mask_writer **w); /* closes and keeps the file */
#endif
