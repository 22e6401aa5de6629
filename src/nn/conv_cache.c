#include "nn/conv_cache.h"
#include "dev/dev.h"

status conv_cache_keep(struct tensor before, const void *in, int64_t stride, const struct cache_at *at,
                       const struct exec *r)
{
    const size_t element = dtype_bytes(before.dt), width = (size_t)before.shape[1] * element;
    const int64_t count = before.shape[0];
    char *to = before.data;
    for (int64_t i = 0; i < count; i++) {
        const int64_t from = at->rows - count + i; /* a row of this batch, or one from the cache */
        const char *row = (const char *)in + (size_t)(from * stride) * element;
        if (from < 0) row = to + (size_t)(i + at->rows) * width;
        if (from >= 0 || at->at > 0)
            TRY(dev_copy(r->stream, to + (size_t)i * width, row, width));
        else
            TRY(dev_zero(r->stream, to + (size_t)i * width, width));
    }
    return STATUS_OK;
}
