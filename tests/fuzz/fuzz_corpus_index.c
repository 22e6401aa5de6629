/* Any bytes as an index of documents, as they are and with the checksum that they should have: refused, or its entries rise and lie in
 * the shard. */
#include "data/shard/corpus_index.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { HEADER_BYTES = 64, SUM_AT = 32 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void parse(const void *data, size_t bytes)
{
    struct corpus_index x;
    if (corpus_index_parse(&x, "x", data, bytes) != STATUS_OK) return;
    for (int64_t i = 0; i < x.documents; i++)
        if (x.begins[i] >= x.tokens || (i > 0 && x.begins[i] <= x.begins[i - 1])) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    uint8_t *copy = calloc(bytes + 1, 1); /* aligned, as a mapping is */
    if (!copy) abort();
    if (bytes > 0) memcpy(copy, data, bytes);
    parse(copy, bytes);
    if (bytes >= HEADER_BYTES) {
        uint64_t sum = XXH64(copy + HEADER_BYTES, bytes - HEADER_BYTES, 0);
        memcpy(copy + SUM_AT, &sum, sizeof sum);
        parse(copy, bytes);
    }
    free(copy);
    return 0;
}
