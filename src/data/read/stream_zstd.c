/* zstd (RFC 8878) by libzstd, which verifies the checksum of a frame that has one. */
#include "data/read/stream_int.h"

#include <stdlib.h>
#include <zstd.h>
#include <zstd_errors.h>

enum { WINDOW_LOG_MAX = 31 };

struct zstd {
    ZSTD_DCtx *context;
    bool inside; /* a frame */
};

static void zstd_close(void *state)
{
    struct zstd *z = state;
    ZSTD_freeDCtx(z->context);
    free(z);
}

static status zstd_run(void *state, struct stream_input *in, uint8_t *out, size_t room, size_t *made)
{
    struct zstd *z = state;
    ZSTD_outBuffer to = {out, room, 0};
    *made = 0;
    while (to.pos < room) {
        if (in->next == in->used) {
            TRY(stream_input_fill(in));
            /* Output may still be buffered: it is finished only if a call returns nothing. */
            if (stream_input_ended(in) && !z->inside) break;
        }
        ZSTD_inBuffer from = {in->buffer, in->used, in->next};
        size_t before = to.pos, left = ZSTD_decompressStream(z->context, &to, &from);
        bool stuck = from.pos == in->next && to.pos == before;
        in->next = from.pos;
        *made = to.pos;
        if (ZSTD_getErrorCode(left) == ZSTD_error_memory_allocation)
            return FAIL(STATUS_OUT_OF_MEMORY, "%s: no memory to decompress it", in->source->path);
        if (ZSTD_isError(left))
            return stream_input_fail(in, "the zstd data is damaged", ZSTD_getErrorName(left));
        z->inside = left != 0;
        if (stuck && stream_input_ended(in))
            return stream_input_fail(in, "the zstd data ends inside a frame; is the file cut off?", NULL);
    }
    return STATUS_OK;
}

status stream_zstd_open(struct stream_decoder *d, int window_log_max)
{
    struct zstd *z = calloc(1, sizeof *z);
    MEMORY_CHECK(z && (z->context = ZSTD_createDCtx()), "no memory for libzstd");
    size_t result = ZSTD_DCtx_setParameter(z->context, ZSTD_d_windowLogMax,
                                           window_log_max ? window_log_max : WINDOW_LOG_MAX);
    CHECK(!ZSTD_isError(result), "libzstd: %s", ZSTD_getErrorName(result));
    *d = (struct stream_decoder){zstd_run, zstd_close, z};
    return STATUS_OK;
}
