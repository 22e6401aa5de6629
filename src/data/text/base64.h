/* Base64 (RFC 4648, section 4), in which files of tokenizers hold the bytes of tokens. */
#ifndef INGOT_DATA_TEXT_BASE64_H
#define INGOT_DATA_TEXT_BASE64_H
#include <stddef.h>

/* Decodes whole groups of 4 digits; `out` needs 3 bytes for each. Returns the number of bytes, or -1: none or a part of a
 * group, another character, bits that are set but not used. */
ptrdiff_t base64_read(const char *digits, size_t count, char *out);
#endif
