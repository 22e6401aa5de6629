/* Checksums of the blocks of a shard's token bytes, which the manifest lists: contents are verified where they are
 * read, and damage has a place. A block is 1 MiB: a random row that is the first of its block reads that much. */
#ifndef INGOT_DATA_SHARD_SHARD_BLOCKS_H
#define INGOT_DATA_SHARD_SHARD_BLOCKS_H
#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

enum { SHARD_BLOCK_BYTES = 1 << 20, SHARD_BLOCK_BYTES_MIN = 4096, SHARD_BLOCK_BYTES_MAX = 1 << 26 };

struct shard_blocks {
    uint64_t *xxh3;       /* XXH3-64, seed 0, of each block; the last may be short. Owned; NULL: not known */
    int64_t count, bytes; /* blocks; bytes of a block, a power of two */
};
struct shard_sums { /* what shard_commit returns */
    uint64_t xxh64;
    struct shard_blocks blocks; /* the caller's */
};
status shard_blocks_copy(struct shard_blocks *to, const struct shard_blocks *from) WARN_UNUSED;
void shard_blocks_free(struct shard_blocks *b);

/* The checksums of bytes that come piece by piece, in blocks of SHARD_BLOCK_BYTES. Zeroed: begins. */
struct shard_block_sum {
    struct shard_blocks done;
    size_t cap, used; /* used: bytes of the block that is not complete */
    void *state;
};
status shard_block_sum_add(struct shard_block_sum *s, const void *data, size_t bytes) WARN_UNUSED;
/* Ends the last block; the caller owns *out. */
status shard_block_sum_end(struct shard_block_sum *s, struct shard_blocks *out) WARN_UNUSED;
void shard_block_sum_free(struct shard_block_sum *s);

/* Reading. */
struct shard;
struct shard_set;
/* From now on each block is verified when shard_read first needs a part of it; without checksums nothing is. shard_read
 * then returns STATUS_DATA with shard and block. Any number of threads may read. */
status shard_verify_reads(struct shard *s) WARN_UNUSED;
/* After shard_verify_reads of its shards: verifies part `part` of `parts` of all blocks now, on all threads. */
status shard_set_verify_now(const struct shard_set *s, int part, int parts) WARN_UNUSED;
/* What shard_read does: verifies the blocks of tokens [at, at+n) that have not been. */
status shard_blocks_check(const struct shard *s, int64_t at, int64_t n) WARN_UNUSED;
#endif
