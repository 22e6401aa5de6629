/* Any fields as the header of LLMQ, before any tokens and mask: the input follows the 8 bytes of magic, and what the
 * header leaves free is filled up. */
#include "shard_target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    enum { FIELDS = 20, TOKENS_MAX = 4096 };
    uint8_t file[SHARD_LLMC_HEADER + TOKENS_MAX] = "BIN.TOK\n";
    size_t fields = bytes < FIELDS ? bytes : FIELDS,
           rest = bytes - fields < TOKENS_MAX ? bytes - fields : TOKENS_MAX;
    memcpy(file + 8, data, fields);
    memcpy(file + SHARD_LLMC_HEADER, data + fields, rest);
    shard_target_run(file, SHARD_LLMC_HEADER + (int64_t)rest, NULL, 0);
    return 0;
}
