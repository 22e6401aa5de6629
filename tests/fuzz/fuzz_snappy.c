/* Any bytes as snappy data: what it says it holds comes out, or nothing does; never more. */
#include "data/read/snappy.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    uint64_t claimed;
    if (!snappy_bytes(data, bytes, &claimed) || claimed > 1 << 16) return 0;
    uint8_t *out = malloc(claimed ? claimed : 1); /* of exactly this size */
    if (!out) abort();
    bool ok = snappy_decode(data, bytes, out, claimed);
    if (ok && claimed > 0 && snappy_decode(data, bytes, out, claimed - 1)) abort();
    if (ok && snappy_decode(data, bytes - 1, out, claimed)) abort();
    free(out);
    return 0;
}
