/* gzip (RFC 1952) by zlib, which checks the checksum and length of each member. After a member, zeros up to
 * the end (padding of tapes and block devices) are skipped. Anything else that is not a member is an error,
 * where gzip(1) warns and ignores it. */
#include "data/read/stream_int.h"

#include <stdlib.h>
#include <zlib.h>

enum { WINDOW_GZIP_ONLY = 15 + 16 };

struct gzip {
    z_stream z;
    bool between; /* members: the last one is complete */
    bool padding; /* only zeros may follow */
    bool first;
};

static void gzip_close(void *state)
{
    struct gzip *g = state;
    inflateEnd(&g->z);
    free(g);
}

/* At the beginning of a member, or of what follows the last one. */
static status begin_member(struct gzip *g, struct stream_input *in)
{
    if (g->padding || (!g->first && in->buffer[in->next] == 0)) {
        g->padding = true;
        while (in->next < in->used && in->buffer[in->next] == 0) in->next++;
        return in->next == in->used ? STATUS_OK
                                    : stream_input_fail(in, "something follows the gzip data", NULL);
    }
    if (in->buffer[in->next] != 0x1f) return stream_input_fail(in, "something follows the gzip data", NULL);
    CHECK(inflateReset(&g->z) == Z_OK, "zlib cannot be reset");
    g->between = false;
    g->first = false;
    return STATUS_OK;
}

static status gzip_run(void *state, struct stream_input *in, uint8_t *out, size_t room, size_t *made)
{
    struct gzip *g = state;
    *made = 0;
    while (*made < room) {
        if (in->next == in->used) {
            TRY(stream_input_fill(in));
            if (stream_input_ended(in))
                return g->between ? STATUS_OK
                                  : stream_input_fail(
                                        in, "the gzip data ends inside a member; is the file cut off?", NULL);
        }
        if (g->between) {
            TRY(begin_member(g, in));
            continue;
        }
        g->z.next_in = in->buffer + in->next;
        g->z.avail_in = (uInt)(in->used - in->next);
        g->z.next_out = out + *made;
        g->z.avail_out = (uInt)(room - *made);
        int result = inflate(&g->z, Z_NO_FLUSH);
        in->next = in->used - g->z.avail_in;
        *made = room - g->z.avail_out;
        if (result == Z_MEM_ERROR)
            return FAIL(STATUS_OUT_OF_MEMORY, "%s: no memory to decompress it", in->source->path);
        if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
            return stream_input_fail(in, "the gzip data is damaged", g->z.msg);
        g->between = result == Z_STREAM_END;
    }
    return STATUS_OK;
}

status stream_gzip_open(struct stream_decoder *d)
{
    struct gzip *g = calloc(1, sizeof *g);
    MEMORY_CHECK(g, "no memory for zlib");
    g->between = g->first = true;
    CHECK(inflateInit2(&g->z, WINDOW_GZIP_ONLY) == Z_OK, "zlib cannot begin");
    *d = (struct stream_decoder){gzip_run, gzip_close, g};
    return STATUS_OK;
}
