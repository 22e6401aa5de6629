/* A source as one sequence of bytes: as it is, or decompressed; which, its first bytes tell.
 *
 *   gzip    any number of members, zero padding behind them
 *   zstd    any number of frames, skippable ones too, windows up to 2 GiB (zstd --long=31)
 *
 * What follows the last member or frame and is none is an error, as is a member that ends early or whose checksum
 * differs: "file: what (byte N of the file)". With STREAM_AHEAD another thread decompresses up to two blocks
 * of 1 MiB in front of the reader. Memory: two blocks, the input's buffer, and the window that a frame asks for. */
#ifndef INGOT_DATA_READ_STREAM_H
#define INGOT_DATA_READ_STREAM_H
#include "base/status.h"
#include "data/read/source.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum stream_codec { STREAM_PLAIN, STREAM_GZIP, STREAM_ZSTD };
enum stream_codec stream_detect(const void *data, size_t bytes); /* of a file that begins like this */

enum stream_thread { STREAM_AHEAD, STREAM_HERE };
struct stream_config {
    enum stream_thread thread;
    int window_log_max; /* of zstd; 0: 31. A frame that needs a larger window is refused */
};
struct stream;
/* The source must outlive the stream. */
status stream_open(struct stream **s, const struct source *source,
                   const struct stream_config *config) WARN_UNUSED;
void stream_close(struct stream *s);

/* Up to `bytes` bytes; fewer only at the end. */
status stream_read(struct stream *s, void *to, size_t bytes, size_t *got) WARN_UNUSED;
/* Whether all has been read; decompresses on to find out. */
status stream_ended(struct stream *s, bool *ended) WARN_UNUSED;
/* STATUS_DATA: the stream ends before byte `at`. */
status stream_seek(struct stream *s, int64_t at) WARN_UNUSED;

enum stream_codec stream_kind(const struct stream *s);
int64_t stream_offset(const struct stream *s); /* bytes that were read of it */
int64_t stream_consumed(const struct stream *s); /* bytes of the source behind them, about */
#endif
