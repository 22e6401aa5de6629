#include "nn/conv_cache.h"
#include "dev/dev.h"

status conv_cache_fill(struct tensor before, const void *in, int64_t stride, const struct cache_at *at,
                       const struct exec *r)
{
    const struct tensor own = cache_of(before, at->sequences, at->sequence);
    const size_t element = dtype_bytes(before.dt), width = (size_t)before.shape[1] * element;
    const int64_t count = own.shape[0], blank = at->rows < count ? count - at->rows : 0;
    const int64_t from = at->rows - (count - blank); /* the first row that is kept */
    TRY(dev_zero(r->stream, own.data, (size_t)blank * width));
    return dev_copy_lines(r->stream,
                          &(struct dev_lines){.to = (char *)own.data + (size_t)blank * width,
                                              .from = (const char *)in + (size_t)(from * stride) * element,
                                              .to_stride = width,
                                              .from_stride = (size_t)stride * element,
                                              .bytes = width,
                                              .count = (size_t)(count - blank)});
}

/* Row by row: the rows of a sequence overlap where they move to. */
status conv_cache_shift(struct tensor before, const void *in, int64_t stride, const struct cache_at *at,
                        const struct exec *r)
{
    const size_t element = dtype_bytes(before.dt), width = (size_t)before.shape[1] * element;
    const int64_t count = before.shape[0] / at->sequences;
    char *to = before.data;
    for (int64_t i = 0; i < count; i++) {
        const bool last = i + 1 == count;
        TRY(dev_copy_lines(r->stream, &(struct dev_lines){.to = to + (size_t)i * width,
                                                          .from = last ? in : to + (size_t)(i + 1) * width,
                                                          .to_stride = (size_t)count * width,
                                                          .from_stride = last ? (size_t)stride * element
                                                                              : (size_t)count * width,
                                                          .bytes = width,
                                                          .count = (size_t)at->sequences}));
    }
    return STATUS_OK;
}
