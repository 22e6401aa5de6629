/* Any bytes as a safetensors file: opened or refused, and every byte that an opened file promises can be
 * read. */
#include "model/safetensors.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct safetensors *s;
    if (safetensors_open_memory(&s, data, (int64_t)bytes, "input") != STATUS_OK) return 0;
    volatile uint8_t sum = 0;
    int64_t total = 0;
    for (int i = 0; i < safetensors_count(s); i++) {
        const struct safetensor *t = safetensors_item(s, i);
        for (int64_t b = 0; b < t->bytes; b++) sum = (uint8_t)(sum + ((const uint8_t *)t->data)[b]);
        total += t->bytes;
        CHECK(safetensors_find(s, t->name) == t, "'%s' is not found", t->name);
    }
    CHECK(total <= (int64_t)bytes, "%lld bytes of tensors in %zu", (long long)total, bytes);
    safetensors_close(s);
    return 0;
}
