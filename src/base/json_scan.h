/* Pull parser for JSON in place, for files too large for a tree: the caller reads values one after another from the
 * text itself. Strict: RFC 8259, valid UTF-8, no NUL in strings (unless `zeros`), depth at most JSON_DEPTH_MAX.
 *
 *     TRY(json_scan_begin(&j, text, bytes));
 *     TRY(json_scan_open(&j, '{'));
 *     for (;;) {
 *         TRY(json_scan_next(&j, '}', &more));
 *         if (!more) break;
 *         TRY(json_scan_key(&j, &key));
 *         TRY(json_scan_skip(&j, &value));            -- or json_scan_string, json_scan_integer, json_scan_open
 *     }
 *     TRY(json_scan_end(&j));
 *
 * Errors are STATUS_DATA with line and column. Nothing is allocated. */
#ifndef INGOT_BASE_JSON_SCAN_H
#define INGOT_BASE_JSON_SCAN_H
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { JSON_DEPTH_MAX = 64 };

struct json_scan {
    const char *text;
    size_t bytes, at;
    int depth;
    bool fresh; /* after an opening bracket: no comma is expected */
    bool zeros; /* strings may have the escape of NUL; json_scan_begin clears it */
};

struct json_text { /* a part of the text; for a string, without its quotes */
    const char *data;
    size_t bytes;
    bool escaped; /* contains a backslash: see json_scan_unescape */
};

status json_scan_begin(struct json_scan *j, const char *text, size_t bytes) WARN_UNUSED;
status json_scan_end(struct json_scan *j) WARN_UNUSED; /* only white space may follow */

char json_scan_peek(struct json_scan *j); /* the first character of the next value, 0 at the end */
status json_scan_open(struct json_scan *j, char bracket /* { or [ */) WARN_UNUSED;
status json_scan_next(struct json_scan *j, char bracket /* } or ] */, bool *more) WARN_UNUSED;
status json_scan_key(struct json_scan *j, struct json_text *key) WARN_UNUSED; /* reads the key and its colon */
status json_scan_string(struct json_scan *j, struct json_text *value) WARN_UNUSED;
status json_scan_integer(struct json_scan *j, int64_t *value) WARN_UNUSED;
/* Skips any value and checks it; `value` is its text, including the quotes of a string. */
status json_scan_skip(struct json_scan *j, struct json_text *value) WARN_UNUSED;

/* Decodes the escapes of a checked string; `out` needs s.bytes bytes. Returns the number of bytes written. */
size_t json_scan_unescape(struct json_text s, char *out);

/* STATUS_DATA "line L, column C: words" for offset `at` of the text. */
status json_scan_fail(const struct json_scan *j, size_t at, const char *words) WARN_UNUSED;
#endif
