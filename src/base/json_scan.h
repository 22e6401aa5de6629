/* Reading JSON in place, for files that are too large for a tree: values are taken one after another from the
 * text itself. Strict: RFC 8259, valid UTF-8, no NUL in strings, depth at most JSON_DEPTH_MAX.
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
    bool fresh; /* just behind an opening bracket: no comma is due */
};

struct json_text { /* a part of the text; of a string what stands between the quotes */
    const char *data;
    size_t bytes;
    bool escaped; /* has a backslash: see json_scan_unescape */
};

status json_scan_begin(struct json_scan *j, const char *text, size_t bytes) WARN_UNUSED;
status json_scan_end(struct json_scan *j) WARN_UNUSED; /* nothing follows but white space */

char json_scan_peek(struct json_scan *j); /* the first character of the next value, 0 at the end */
status json_scan_open(struct json_scan *j, char bracket /* { or [ */) WARN_UNUSED;
status json_scan_next(struct json_scan *j, char bracket /* } or ] */, bool *more) WARN_UNUSED;
status json_scan_key(struct json_scan *j, struct json_text *key) WARN_UNUSED; /* with its colon */
status json_scan_string(struct json_scan *j, struct json_text *value) WARN_UNUSED;
status json_scan_integer(struct json_scan *j, int64_t *value) WARN_UNUSED;
/* Any value, checked; `value` is its text, for a string with the quotes. */
status json_scan_skip(struct json_scan *j, struct json_text *value) WARN_UNUSED;

/* The characters of a checked string; `out` has room for its bytes. Returns how many. */
size_t json_scan_unescape(struct json_text s, char *out);

/* STATUS_DATA "line L, column C: words" for a place in the text. */
status json_scan_fail(const struct json_scan *j, size_t at, const char *words) WARN_UNUSED;
#endif
