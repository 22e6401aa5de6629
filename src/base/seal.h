/* seal: the SHA-256 of a text as a line within it, by which a reader knows that the text is whole. */
#ifndef INGOT_BASE_SEAL_H
#define INGOT_BASE_SEAL_H
#include <stddef.h>

/* `out`: head, 64 digits, tail, and a 0. */
void seal_write(const void *body, size_t bytes, const char *head, const char *tail, char *out);
#endif
