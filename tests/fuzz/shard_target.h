/* What the fuzz targets of shard formats do with bytes: refused, or every token, every document and the mask can be
 * read, and what the parser promised holds. */
#ifndef INGOT_TESTS_FUZZ_SHARD_TARGET_H
#define INGOT_TESTS_FUZZ_SHARD_TARGET_H
#include "data/shard/shard.h"
#include "data/shard/shard_int.h"

#include <stdlib.h>

static inline status shard_target_count(void *ctx, int64_t tokens)
{
    int64_t *sum = (int64_t *)ctx;
    CHECK(tokens >= 0, "a document of %lld tokens", (long long)tokens);
    *sum += tokens;
    return STATUS_OK;
}

/* `data`: all bytes of a file; index: of the file beside it, or NULL. */
static inline void shard_target_run(const uint8_t *data, int64_t bytes, const uint8_t *index, int64_t index_bytes)
{
    enum { BLOCK = 256, VOCAB = 50257 };
    struct shard s;
    int32_t ids[BLOCK];
    int64_t places[BLOCK], sum = 0;
    if (shard_open_memory(&s, "input.bin", SHARD_TYPE_UNKNOWN, data, bytes, index, index_bytes) != STATUS_OK) return;
    CHECK(s.count >= 0 && s.count <= bytes / s.width, "%lld tokens in %lld bytes", (long long)s.count, (long long)bytes);
    for (int64_t at = 0; at < s.count; at += BLOCK) {
        int64_t n = s.count - at < BLOCK ? s.count - at : BLOCK;
        if (shard_read(&s, at, n, VOCAB, ids) != STATUS_OK) break;
        for (int64_t i = 0; i < n; i++) CHECK(ids[i] >= 0 && ids[i] < VOCAB, "id %d", ids[i]);
        int64_t found = shard_find_id(s.type, s.tokens + at * s.width, n, ids[0], places, n);
        CHECK(found >= 1 && places[0] == 0, "the first token is not found");
    }
    volatile uint8_t mask = 0;
    for (int64_t i = 0; s.mask && i < s.count; i += 8) mask = (uint8_t)(mask ^ s.mask[i / 8]);
    (void)mask;
    if (s.format == SHARD_MEGATRON && shard_megatron_walk(&s, shard_target_count, &sum) == STATUS_OK)
        CHECK(sum == s.count, "documents of %lld tokens in %lld", (long long)sum, (long long)s.count);
    shard_close(&s);
}
#endif
