/* Any bytes as a manifest: refused, or sound. */
#include "data/shard/manifest.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char prefix[256];
    struct manifest m;
    if (manifest_parse(&m, "manifest.json", (const char *)data, bytes) != STATUS_OK) return 0;
    for (int i = 0; i < m.count; i++) {
        if (m.shards[i].tokens < 0 || strchr(m.shards[i].file, '/')) abort();
        manifest_prefix(m.shards[i].file, prefix, sizeof prefix);
    }
    manifest_split(&m, "train");
    manifest_free(&m);
    return 0;
}
