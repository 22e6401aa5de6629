/* Any bytes as an index of documents: refused, or its entries rise and lie in the shard. */
#include "data/corpus_index.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    void *copy = malloc(bytes + 1); /* aligned, as a mapping is */
    if (!copy) abort();
    memcpy(copy, data, bytes);
    struct corpus_index x;
    if (corpus_index_parse(&x, "x", copy, bytes) == STATUS_OK)
        for (int64_t i = 0; i < x.documents; i++)
            if (x.begins[i] >= x.tokens || (i > 0 && x.begins[i] <= x.begins[i - 1])) abort();
    free(copy);
    return 0;
}
