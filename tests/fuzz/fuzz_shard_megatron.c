/* Any bytes as Megatron's index, beside a file whose size the first two bytes of the input say. */
#include "shard_target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const uint8_t file[65536];
    if (bytes < 2) return 0;
    shard_target_run(file, data[0] | data[1] << 8, data + 2, (int64_t)bytes - 2);
    return 0;
}
