/* Repair of text that is not valid UTF-8. */
#ifndef INGOT_BASE_UTF8_REPAIR_H
#define INGOT_BASE_UTF8_REPAIR_H
#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

/* Treatment of invalid bytes. UTF8_ERROR: an error. UTF8_REPLACE: U+FFFD for each maximal part of a character that
 * could have continued, else for each byte (as Python's errors="replace", Rust's from_utf8_lossy and the Unicode
 * standard). UTF8_SKIP: removed. */
enum utf8_invalid { UTF8_ERROR, UTF8_REPLACE, UTF8_SKIP };

/* Returns a malloc'd copy with a NUL after *out_bytes; the caller frees it. *repaired counts the repaired places.
 * UTF8_ERROR returns STATUS_DATA with the byte offset of the first one. STATUS_OUT_OF_MEMORY without memory. */
status utf8_repair(const char *text, size_t bytes, enum utf8_invalid how, char **out, size_t *out_bytes,
                   int64_t *repaired) WARN_UNUSED;
#endif
