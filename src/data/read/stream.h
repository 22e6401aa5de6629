/* A source as one sequence of bytes, decompressed if its first bytes show a compressed format.
 *
 *   gzip    any number of members, then optional zero padding
 *   zstd    any number of frames, including skippable ones, windows up to 2 GiB (zstd --long=31)
 *
 * Errors are: data after the last member or frame that is neither, a member that ends early, and a wrong checksum.
 * The message is "file: what (byte N of the file)". With STREAM_AHEAD another thread decompresses up to two blocks of
 * 1 MiB ahead of the reader. Memory: two blocks, the input buffer, and the window that a frame requests. */
#ifndef INGOT_DATA_READ_STREAM_H
#define INGOT_DATA_READ_STREAM_H
#include "base/status.h"
#include "data/read/source.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum stream_codec { STREAM_PLAIN, STREAM_GZIP, STREAM_ZSTD };
enum stream_codec stream_detect(const void *data, size_t bytes); /* codec of a file with these first bytes */

enum stream_thread { STREAM_AHEAD, STREAM_HERE };
struct stream_config {
    enum stream_thread thread;
    int window_log_max; /* for zstd; 0: 31. A frame with a larger window is an error */
};
struct stream;
/* The source must outlive the stream. */
status stream_open(struct stream **s, const struct source *source,
                   const struct stream_config *config) WARN_UNUSED;
void stream_close(struct stream *s);

/* Reads up to `bytes` bytes; fewer only at the end. */
status stream_read(struct stream *s, void *to, size_t bytes, size_t *got) WARN_UNUSED;
/* Determines whether everything has been read; may decompress more to find out. */
status stream_ended(struct stream *s, bool *ended) WARN_UNUSED;
/* STATUS_DATA: the stream ends before byte `at`. */
status stream_seek(struct stream *s, int64_t at) WARN_UNUSED;

enum stream_codec stream_kind(const struct stream *s);
int64_t stream_offset(const struct stream *s); /* bytes read from the stream */
int64_t stream_consumed(const struct stream *s); /* bytes of the source consumed for them, approximately */
#endif
