/* Any bytes as a journal, and any text with the checksum that makes it one: refused, or sound. */
#include "data/build/build_journal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void parse(const char *data, size_t bytes)
{
    struct build_journal j;
    if (build_journal_parse(&j, "x", data, bytes) != STATUS_OK) return;
    const struct manifest *rows = &j.state.rows;
    if (j.mark.input >= rows->input_count || j.hashed > rows->input_count || !j.settings) abort();
    if (j.mark.at.at < 0 || j.mark.at.row < 0 || j.hashes < 0 || j.sketches < 0) abort();
    for (int i = 0; i < rows->count; i++)
        if (rows->shards[i].tokens < 0 || strchr(rows->shards[i].file, '/')) abort();
    build_journal_free(&j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    parse((const char *)data, bytes);
    char *signed_text = malloc(bytes + 32);
    if (!signed_text) abort();
    memcpy(signed_text, data, bytes);
    snprintf(signed_text + bytes, 32, "\n%016llx\n", (unsigned long long)XXH64(data, bytes, 0));
    parse(signed_text, bytes + 18);
    free(signed_text);
    return 0;
}
