/* Any bytes as a shard with a header: llm.c's, LLMQ's or numpy's. */
#include "shard_target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    shard_target_run(data, (int64_t)bytes, NULL, 0);
    return 0;
}
