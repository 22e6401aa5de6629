/* One record of JSONL without a tree: checks all of it against RFC 8259 and finds the text under one key.
 *
 * What the standard leaves open: of equal keys the last one counts; values nest up to 1024 deep; numbers have any
 * length; \u0000 is text; a surrogate without its other half is an error. The record must be valid UTF-8. */
#ifndef INGOT_DATA_READ_JSONL_H
#define INGOT_DATA_READ_JSONL_H
#include <stdbool.h>
#include <stddef.h>

struct jsonl_text {
    const char *text; /* in the record when nothing is escaped there, else in `owner` */
    size_t bytes;
    char *owner; /* NULL, or to be freed */
};
enum jsonl_kind { JSONL_SYNTAX, JSONL_NO_OBJECT, JSONL_NO_TEXT };
struct jsonl_fault {
    enum jsonl_kind kind;
    size_t at;        /* byte of the record */
    const char *what; /* SYNTAX: why; NO_OBJECT: what more there is to say; NO_TEXT: "nothing" or "not text" */
};
/* False: *fault says why and where. `key` is compared with the keys of the outermost object alone. */
bool jsonl_read(const char *record, size_t bytes, const char *key, struct jsonl_text *out,
                struct jsonl_fault *fault);
#endif
