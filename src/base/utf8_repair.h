/* Text that is not all UTF-8, made so. */
#ifndef INGOT_BASE_UTF8_REPAIR_H
#define INGOT_BASE_UTF8_REPAIR_H
#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

/* What becomes of bytes that are no UTF-8: an error; U+FFFD, one for each longest part of a character that could
 * have gone on, else for each byte (as Python's errors="replace", Rust's from_utf8_lossy and the Unicode standard
 * have it); nothing. */
enum utf8_invalid { UTF8_ERROR, UTF8_REPLACE, UTF8_SKIP };

/* A malloc'd copy, NUL-terminated beyond *out_bytes; free it. *repaired counts the places. UTF8_ERROR:
 * STATUS_DATA with the byte offset of the first. STATUS_FIT. */
status utf8_repair(const char *text, size_t bytes, enum utf8_invalid how, char **out, size_t *out_bytes,
                   int64_t *repaired) WARN_UNUSED;
#endif
