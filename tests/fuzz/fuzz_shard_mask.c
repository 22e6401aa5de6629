/* Any bytes as a mask of targets, as they are and with the checksum and the count that they should have: refused, or its
 * bits are as many as it says, and none lies behind the last token. */
#include "data/shard/shard_mask.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { HEADER_BYTES = 64, TARGETS_AT = 24, SUM_AT = 32 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void parse(const void *data, size_t bytes)
{
    struct shard_mask m;
    int64_t ones = 0;
    if (shard_mask_parse(&m, "x", data, bytes) != STATUS_OK) return;
    for (int64_t i = 0; i < m.tokens; i++) ones += m.bits[i / 8] >> i % 8 & 1;
    if (ones != m.targets || bytes != HEADER_BYTES + (size_t)(m.tokens + 7) / 8) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    uint8_t *copy = calloc(bytes + 1, 1);
    if (!copy) abort();
    if (bytes > 0) memcpy(copy, data, bytes);
    parse(copy, bytes);
    if (bytes >= HEADER_BYTES) {
        const uint64_t sum = XXH64(copy + HEADER_BYTES, bytes - HEADER_BYTES, 0);
        int64_t ones = 0;
        for (size_t i = HEADER_BYTES; i < bytes; i++) ones += __builtin_popcount(copy[i]);
        memcpy(copy + SUM_AT, &sum, sizeof sum);
        memcpy(copy + TARGETS_AT, &ones, sizeof ones);
        parse(copy, bytes);
    }
    free(copy);
    return 0;
}
