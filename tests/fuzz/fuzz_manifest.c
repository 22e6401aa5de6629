/* Any bytes as a manifest: refused, or sound. */
#include "data/manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64], prefix[256];
    int fd = memfd_create("manifest", 0);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct manifest m;
    if (manifest_read(&m, path) == STATUS_OK) {
        for (int i = 0; i < m.count; i++) {
            if (m.shards[i].tokens < 0 || strchr(m.shards[i].file, '/')) abort();
            manifest_prefix(m.shards[i].file, prefix, sizeof prefix);
        }
        manifest_split(&m, "train");
        manifest_free(&m);
    }
    close(fd);
    return 0;
}
