/* The letters that stand for bytes in tokenizer.json: printable Latin-1 (21-7E, A1-AC, AE-FF) stands for
 * itself, the other 68 bytes in their order for U+0100 to U+0143. So every token is a readable string without
 * white space. */
#ifndef INGOT_DATA_TEXT_ALPHABET_H
#define INGOT_DATA_TEXT_ALPHABET_H
#include <stddef.h>
#include <stdint.h>

enum { ALPHABET_END = 0x144 }; /* no letter at or above it */

int alphabet_byte(uint32_t code); /* -1: not a letter of the alphabet */

/* Bytes -> letters in UTF-8; `out` has room for 2 * count + 1. Returns the length; NUL-terminated. */
size_t alphabet_write(const char *bytes, size_t count, char *out);
/* Letters (valid UTF-8) -> bytes; `out` has room for `count`. Returns how many, or -1 when a character is not
 * in the alphabet. */
ptrdiff_t alphabet_read(const char *letters, size_t count, char *out);
#endif
