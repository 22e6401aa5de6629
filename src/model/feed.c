#include "model/feed.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = LOADER_ALIGN }; /* so a block of the loader has the device layout */

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Tokens, targets and positions, each aligned, then cu_seqlens. */
static size_t column_bytes(const struct feed_shape *s)
{
    return aligned((size_t)s->rows * sizeof(int32_t));
}
static size_t micro_bytes(const struct feed_shape *s)
{
    return 3 * column_bytes(s) + aligned(((size_t)s->docs_max + 1) * sizeof(int32_t));
}

size_t feed_bytes(enum dev_kind kind, const struct feed_shape *shape)
{
    if (kind != DEV_CUDA) return 0;
    return aligned(sizeof(struct step_scalars)) + (size_t)shape->micro_count * micro_bytes(shape);
}

static char *micro_at(const struct feed *f, char *base, int i)
{
    return base + aligned(sizeof(struct step_scalars)) + (size_t)i * micro_bytes(&f->shape);
}

status feed_open(struct feed *f, const struct dev *dev, struct stream *s, const struct feed_shape *shape,
                 void *device)
{
    *f = (struct feed){.shape = *shape, .dev = dev, .stream = s, .device = device};
    f->micro = calloc((size_t)shape->micro_count, sizeof *f->micro);
    if (f->micro == NULL)
        return FAIL(STATUS_FIT, "no memory to describe %d micro-batches", shape->micro_count);
    f->scalars = s ? (struct step_scalars *)f->device : &f->own;
    if (s == NULL) return STATUS_OK;
    void *host;
    status st = dev_pinned_open(dev, feed_bytes(DEV_CUDA, shape), &host);
    if (st == STATUS_OK)
        f->host = host;
    else
        feed_close(f);
    return st;
}

void feed_close(struct feed *f)
{
    if (f->host) dev_pinned_close(f->dev, f->host);
    free(f->micro);
    *f = (struct feed){0};
}

/* True: the micro-batch is in pinned memory and has the device layout already. */
static bool ready(const struct feed *f, const struct batch *b)
{
    return b->block && b->rows == f->shape.rows && (!f->shape.documents || f->shape.docs_max == b->rows);
}

/* Writes micro-batch i to the host staging buffer. */
static void stage_micro(struct feed *f, const struct batch *b, int64_t docs, int i)
{
    size_t column = column_bytes(&f->shape), used = (size_t)b->rows * sizeof(int32_t);
    char *to = micro_at(f, f->host, i);
    int32_t *cu = (int32_t *)(to + 3 * column);
    memcpy(to, b->tokens, used);
    if (b->targets) memcpy(to + column, b->targets, used);
    memcpy(to + 2 * column, b->positions, used);
    for (int64_t k = 0; k <= docs; k++) cu[k] = k <= b->docs ? b->cu_seqlens[k] : (int32_t)b->rows;
}

/* Points the view at micro-batch i on the device. Queues its upload, or writes it to the host staging buffer. */
static status put_micro(struct feed *f, const struct batch *b, int i)
{
    const struct feed_shape *s = &f->shape;
    if (b->docs > s->docs_max)
        return FAIL(STATUS_DATA, "a micro-batch holds %lld documents, the run is laid out for %lld",
                    (long long)b->docs, (long long)s->docs_max);
    size_t column = column_bytes(s);
    char *view = micro_at(f, f->device, i);
    int64_t docs = s->documents ? s->docs_max : b->docs;
    f->micro[i] = (struct batch){.rows = b->rows,
                                 .docs = docs,
                                 .len_max = b->len_max,
                                 .tokens = (const int32_t *)view,
                                 .targets = (const int32_t *)(view + column),
                                 .positions = (const int32_t *)(view + 2 * column),
                                 .cu_seqlens = (const int32_t *)(view + 3 * column)};
    if (ready(f, b))
        return dev_upload(f->stream, view, b->tokens, 3 * column + ((size_t)docs + 1) * sizeof(int32_t));
    stage_micro(f, b, docs, i);
    return STATUS_OK;
}

status feed_put(struct feed *f, const struct batch *micro, int count, const struct step_scalars *scalars)
{
    if (f->context) micro = context_parts(f->context, micro, count);
    CHECK(count > 0 && count <= f->shape.micro_count, "%d micro-batches in a feed for %d", count,
          f->shape.micro_count);
    int staged = 0; /* the staging buffer is uploaded once, up to its last micro-batch */
    for (int i = 0; i < count; i++) {
        CHECK(micro[i].rows > 0 && micro[i].rows <= f->shape.rows, "%lld rows in a feed for %lld",
              (long long)micro[i].rows, (long long)f->shape.rows);
        if (!ready(f, &micro[i])) staged = i + 1;
    }
    if (f->stream == NULL) {
        for (int i = 0; i < count; i++) f->micro[i] = micro[i];
        f->own = *scalars;
        return STATUS_OK;
    }
    CHECK(staged == 0 || staged == count, "micro-batches of two kinds in a step");
    for (int i = 0; i < count; i++) TRY(put_micro(f, &micro[i], i));
    memcpy(f->host, scalars, sizeof *scalars);
    return dev_upload(f->stream, f->device, f->host, (size_t)(micro_at(f, f->host, staged) - f->host));
}

status feed_read(struct feed *f, struct step_scalars *out)
{
    if (f->stream == NULL) {
        *out = f->own;
        return STATUS_OK;
    }
    /* the head of the staging buffer: pinned, and free until the next feed_put */
    TRY(dev_download(f->stream, f->host, f->device, sizeof *out));
    TRY(dev_sync(f->stream));
    memcpy(out, f->host, sizeof *out);
    return STATUS_OK;
}
