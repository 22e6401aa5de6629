#include "data/shard/shard_blocks.h"
#include "base/parallel.h"
#include "data/shard/shard.h"
#include "data/text/array.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

status shard_blocks_copy(struct shard_blocks *to, const struct shard_blocks *from)
{
    *to = (struct shard_blocks){.bytes = from->bytes};
    if (from->count == 0) return STATUS_OK;
    TRY(array_new(&to->xxh3, (size_t)from->count, sizeof *to->xxh3));
    memcpy(to->xxh3, from->xxh3, (size_t)from->count * sizeof *to->xxh3);
    to->count = from->count;
    return STATUS_OK;
}

void shard_blocks_free(struct shard_blocks *b)
{
    free(b->xxh3);
    *b = (struct shard_blocks){0};
}

/* ---- making ---- */

static status end_block(struct shard_block_sum *s)
{
    TRY(array_grow(&s->done.xxh3, &s->cap, (size_t)s->done.count + 1, sizeof *s->done.xxh3));
    s->done.xxh3[s->done.count++] = XXH3_64bits_digest(s->state);
    XXH3_64bits_reset(s->state);
    s->used = 0;
    return STATUS_OK;
}

status shard_block_sum_add(struct shard_block_sum *s, const void *data, size_t bytes)
{
    if (s->state == NULL) {
        s->state = XXH3_createState();
        if (s->state == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the checksums of a shard");
        XXH3_64bits_reset(s->state);
    }
    for (const char *at = data; bytes > 0;) {
        const size_t room = SHARD_BLOCK_BYTES - s->used, n = bytes < room ? bytes : room;
        XXH3_64bits_update(s->state, at, n);
        s->used += n;
        at += n;
        bytes -= n;
        if (s->used == SHARD_BLOCK_BYTES) TRY(end_block(s));
    }
    return STATUS_OK;
}

status shard_block_sum_end(struct shard_block_sum *s, struct shard_blocks *out)
{
    if (s->used > 0) TRY(end_block(s));
    *out = s->done;
    out->bytes = SHARD_BLOCK_BYTES;
    s->done = (struct shard_blocks){0};
    s->cap = 0;
    return STATUS_OK;
}

void shard_block_sum_free(struct shard_block_sum *s)
{
    XXH3_freeState(s->state);
    shard_blocks_free(&s->done);
    *s = (struct shard_block_sum){0};
}

/* ---- verifying ---- */

static bool sound(const struct shard *s, int64_t block)
{
    const int64_t at = block * s->blocks.bytes, left = s->count * s->width - at,
                  bytes = left < s->blocks.bytes ? left : s->blocks.bytes;
    if (XXH3_64bits(s->tokens + at, (size_t)bytes) != s->blocks.xxh3[block]) return false;
    __atomic_store_n(&s->verified[block], 1, __ATOMIC_RELAXED);
    return true;
}

static status damaged(const struct shard *s, int64_t block)
{
    return FAIL(
        STATUS_DATA,
        "%s: block %lld (tokens from %lld on) is not what its manifest says: the file has changed or is "
        "damaged; put the right one back, or build the shards again (--data.verify=off reads it as it is)",
        s->path, (long long)block, (long long)(block * s->blocks.bytes / s->width));
}

status shard_blocks_check(const struct shard *s, int64_t at, int64_t n)
{
    if (n == 0 || s->verified == NULL) return STATUS_OK;
    const int64_t last = ((at + n) * s->width - 1) / s->blocks.bytes;
    for (int64_t b = at * s->width / s->blocks.bytes; b <= last; b++)
        if (!__atomic_load_n(&s->verified[b], __ATOMIC_RELAXED) && !sound(s, b)) return damaged(s, b);
    return STATUS_OK;
}

status shard_verify_reads(struct shard *s)
{
    if (s->blocks.count == 0 || s->verified) return STATUS_OK;
    return array_new(&s->verified, (size_t)s->blocks.count, sizeof *s->verified);
}

status shard_set_verify_now(const struct shard_set *s, int part, int parts)
{
    for (int i = 0; i < s->count; i++) {
        const struct shard *shard = &s->shards[i];
        _Atomic int64_t first = INT64_MAX; /* the first damaged block */
        if (!shard->verified) continue;
        PARALLEL_CHUNKS(k, (shard->blocks.count - part + parts - 1) / parts)
        {
            const int64_t block = part + k * parts;
            int64_t now = atomic_load(&first);
            if (block < now && !sound(shard, block))
                while (block < now && !atomic_compare_exchange_weak(&first, &now, block)) {}
        }
        if (first < INT64_MAX) return damaged(shard, first);
    }
    return STATUS_OK;
}
