/* The interface between stream.c and a decompressor. */
#ifndef INGOT_DATA_READ_STREAM_INT_H
#define INGOT_DATA_READ_STREAM_INT_H
#include "data/read/stream.h"

enum { STREAM_IN_BYTES = 256 << 10 };
/* The compressed side: the buffer holds [at - used, at) of the source; bytes before `next` are consumed. */
struct stream_input {
    const struct source *source;
    uint8_t *buffer;
    size_t next, used;
    int64_t at; /* offset of the buffer's end in the source */
};
/* Reads more input into the buffer; leaves next == used at the end of the source. */
status stream_input_fill(struct stream_input *in) WARN_UNUSED;
bool stream_input_ended(const struct stream_input *in);
/* Fails with "file: what: detail (byte N of the file)", the byte at `next`. */
status stream_input_fail(const struct stream_input *in, const char *what, const char *detail);

/* A decompressor; `run` writes up to `room` bytes, fewer only at the end of all input. */
struct stream_decoder {
    status (*run)(void *state, struct stream_input *in, uint8_t *out, size_t room, size_t *made);
    void (*close)(void *state);
    void *state;
};
status stream_gzip_open(struct stream_decoder *d) WARN_UNUSED;
status stream_zstd_open(struct stream_decoder *d, int window_log_max) WARN_UNUSED;
#endif
