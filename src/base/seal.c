#include "base/seal.h"
#include "base/hash.h"

#include <string.h>

void seal_write(const void *body, size_t bytes, const char *head, const char *tail, char *out)
{
    const size_t at = strlen(head);
    memcpy(out, head, at);
    sha256_hex_of(body, bytes, out + at);
    memcpy(out + at + 64, tail, strlen(tail) + 1);
}
