/* Any bytes as a shard: refused, or every token can be read. */
#include "data/shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64];
    int fd = memfd_create("shard", 0);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct shard_set s;
    if (shard_set_open(&s, path) == STATUS_OK) {
        int32_t *ids = malloc((size_t)s.tokens * 4 + 1);
        if (shard_set_read(&s, 0, s.tokens, 50257, ids) == STATUS_OK)
            for (int64_t i = 0; i < s.tokens; i++)
                if (ids[i] < 0 || ids[i] >= 50257) abort();
        free(ids);
        shard_set_close(&s);
    }
    close(fd);
    return 0;
}
