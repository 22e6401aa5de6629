/* Reads one record of JSONL without building a tree: checks all of it against RFC 8259 and finds the text under one
 * key.
 *
 * Choices where the standard is open: of equal keys the last one counts; values nest up to 1024 deep; numbers have
 * any length; \u0000 is text; a surrogate without its other half is an error. The record must be valid UTF-8. */
#ifndef INGOT_DATA_READ_JSONL_H
#define INGOT_DATA_READ_JSONL_H
#include <stdbool.h>
#include <stddef.h>

struct jsonl_text {
    const char *text; /* points into the record when nothing is escaped, else into `owner` */
    size_t bytes;
    char *owner; /* NULL, or freed by the caller */
};
enum jsonl_kind { JSONL_SYNTAX, JSONL_NO_OBJECT, JSONL_NO_TEXT };
struct jsonl_fault {
    enum jsonl_kind kind;
    size_t at;        /* byte offset in the record */
    const char *what; /* SYNTAX: the reason; NO_OBJECT: an additional detail; NO_TEXT: "nothing" or "not text" */
};
/* Returns false and fills *fault on an error. `key` is a name in the outermost object, or a path of names ("a.b"); a
 * name that is the whole key wins. A null, also where the path expects an object, is an empty text. */
bool jsonl_read(const char *record, size_t bytes, const char *key, struct jsonl_text *out,
                struct jsonl_fault *fault);
#endif
