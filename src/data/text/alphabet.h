/* The letters that represent bytes in tokenizer.json. Printable Latin-1 (21-7E, A1-AC, AE-FF) represents itself; the
 * other 68 bytes, in order, are U+0100 to U+0143. Every token is therefore a readable string without white space. */
#ifndef INGOT_DATA_TEXT_ALPHABET_H
#define INGOT_DATA_TEXT_ALPHABET_H
#include <stddef.h>
#include <stdint.h>

enum { ALPHABET_END = 0x144 }; /* all letters are below it */

int alphabet_byte(uint32_t code); /* the byte of a letter; -1: not in the alphabet */

/* Converts bytes to letters in UTF-8, NUL-terminated; `out` needs 2 * count + 1 bytes. Returns the length. */
size_t alphabet_write(const char *bytes, size_t count, char *out);
/* Converts letters (valid UTF-8) to bytes; `out` needs `count` bytes. Returns the number of bytes, or -1 for a
 * character outside the alphabet. */
ptrdiff_t alphabet_read(const char *letters, size_t count, char *out);
#endif
