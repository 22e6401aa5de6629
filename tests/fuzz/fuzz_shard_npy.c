/* Any bytes as a numpy array. */
#include "shard_target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct shard s = {.path = (char *)"input.npy"};
    if (bytes >= 10 && memcmp(data, "\x93NUMPY", 6) == 0)
        shard_target_run(data, (int64_t)bytes, NULL, 0);
    else if (bytes >= 6 && shard_npy_parse(&s, data, (int64_t)bytes) == STATUS_OK)
        CHECK(s.tokens + s.count * s.width == data + bytes, "the tokens do not end with the file");
    return 0;
}
