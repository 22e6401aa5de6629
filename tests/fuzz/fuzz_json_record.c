/* One record of JSONL, beside jansson: what either reads, the other reads, and as the same text. */
#include "data/read/jsonl.h"
#include "base/utf8.h"

#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* jansson keeps numbers, and nests up to 2048 deep. */
static bool is_its_limit(const json_error_t *error)
{
    enum json_error_code code = json_error_code(error);
    return code == json_error_numeric_overflow || code == json_error_stack_overflow;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *record = (const char *)data;
    if (utf8_valid(record, bytes) != bytes) return 0;
    bool has_nul = memchr(record, 0, bytes) != NULL; /* jansson passes over one that follows a literal */
    struct jsonl_text text;
    struct jsonl_fault fault;
    json_error_t error = {0};
    bool ok = jsonl_read(record, bytes, "a", &text, &fault);
    json_t *want = json_loadb(record, bytes, JSON_ALLOW_NUL | JSON_DECODE_ANY, &error);
    const json_t *value = json_object_get(want, "a");
    if (!ok && (fault.at > bytes || !fault.what)) abort();
    if (ok && !want && !is_its_limit(&error)) abort();
    if (ok && want &&
        (json_is_null(value) ? text.bytes != 0
                             : !json_is_string(value) || json_string_length(value) != text.bytes ||
                                   memcmp(json_string_value(value), text.text, text.bytes) != 0))
        abort();
    if (!ok && (json_is_string(value) || json_is_null(value)) && !has_nul && !strstr(fault.what, "deeper"))
        abort();
    if (ok) free(text.owner);
    json_decref(want);
    return 0;
}
