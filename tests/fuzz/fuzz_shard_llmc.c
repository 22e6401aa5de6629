/* Any fields as the header of llm.c: the input is magic, version and count, then the tokens. */
#include "shard_target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    enum { FIELDS = 12, TOKENS_MAX = 4096 };
    uint8_t file[SHARD_LLMC_HEADER + TOKENS_MAX] = {0};
    size_t fields = bytes < FIELDS ? bytes : FIELDS,
           rest = bytes - fields < TOKENS_MAX ? bytes - fields : TOKENS_MAX;
    memcpy(file, data, fields);
    memcpy(file + SHARD_LLMC_HEADER, data + fields, rest);
    shard_target_run(file, SHARD_LLMC_HEADER + (int64_t)rest, NULL, 0);
    return 0;
}
