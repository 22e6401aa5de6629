/* Any bytes as gzip or zstd: no more comes out than was asked for, in pieces as in one go. */
#include "data/read/stream.h"

#include <stdlib.h>
#include <string.h>

enum { OUT_BYTES = 1 << 16 };
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static status read_all(const struct source *source, uint8_t *out, size_t piece, size_t *used)
{
    struct stream *s;
    status st = stream_open(&s, source, &(struct stream_config){STREAM_HERE, 17});
    *used = 0;
    for (size_t got = 1; st == STATUS_OK && got > 0 && *used < OUT_BYTES; *used += got) {
        size_t room = OUT_BYTES - *used;
        st = stream_read(s, out + *used, room < piece ? room : piece, &got);
        if (got > piece || stream_consumed(s) > source->bytes) abort();
    }
    stream_close(s);
    return st;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static uint8_t once[OUT_BYTES], pieces[OUT_BYTES];
    if (stream_detect(data, bytes) == STREAM_PLAIN) return 0;
    struct source source;
    size_t a, b;
    source_memory(&source, "fuzz", data, bytes);
    status st = read_all(&source, once, OUT_BYTES, &a), again = read_all(&source, pieces, 997, &b);
    /* How much of a damaged frame comes out before the damage shows is the library's matter, and the processor's. */
    if (a < OUT_BYTES && b < OUT_BYTES && st != again) abort();
    if (st == STATUS_OK && again == STATUS_OK && (a != b || memcmp(once, pieces, a) != 0)) abort();
    source_close(&source);
    return 0;
}
