#include "model/feed.h"
#include "base/int_math.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = LOADER_ALIGN }; /* so a block of the loader has the device layout */

static size_t aligned(size_t bytes)
{
    return size_round_up(bytes, ALIGN);
}

/* Tokens, targets and positions, each aligned, then cu_seqlens. */
struct place {
    int64_t rows, docs;
};
static size_t column_bytes(struct place p)
{
    return aligned((size_t)p.rows * sizeof(int32_t));
}
static size_t place_bytes(struct place p)
{
    return 3 * column_bytes(p) + aligned(((size_t)p.docs + 1) * sizeof(int32_t));
}
static struct place own_of(const struct feed_shape *s)
{
    return (struct place){s->rows, s->docs_max};
}
static struct place whole_of(const struct feed_shape *s)
{
    return (struct place){s->rows * s->context, s->docs_max * s->context};
}

static size_t micro_bytes(const struct feed_shape *s)
{
    const size_t own = place_bytes(own_of(s));
    if (s->context <= 1) return own;
    return own + place_bytes(whole_of(s)) + aligned((size_t)s->docs_max * sizeof(struct attn_doc));
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
    f->parts = calloc((size_t)shape->micro_count, sizeof *f->parts);
    if (f->micro == NULL || f->parts == NULL) {
        feed_close(f);
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory to describe %d micro-batches", shape->micro_count);
    }
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
    free(f->parts);
    *f = (struct feed){0};
}

/* True: the micro-batch is in pinned memory and has the device layout already. */
static bool ready(const struct feed *f, const struct batch *b)
{
    return b->block && b->rows == f->shape.rows && (!f->shape.documents || f->shape.docs_max == b->rows);
}

/* Writes a micro-batch to the host staging buffer. */
static void stage(const struct batch *b, struct place p, int64_t docs, char *to)
{
    size_t column = column_bytes(p), used = (size_t)b->rows * sizeof(int32_t);
    int32_t *cu = (int32_t *)(to + 3 * column);
    memcpy(to, b->tokens, used);
    if (b->targets) memcpy(to + column, b->targets, used);
    memcpy(to + 2 * column, b->positions, used);
    for (int64_t k = 0; k <= docs; k++) cu[k] = k <= b->docs ? b->cu_seqlens[k] : (int32_t)b->rows;
}

static status check_docs(int64_t docs, int64_t most)
{
    if (docs <= most) return STATUS_OK;
    return FAIL(STATUS_DATA, "a micro-batch holds %lld documents, the run is laid out for %lld",
                (long long)docs, (long long)most);
}

/* Of a batch on the device at `base`. */
static struct batch view_of(const struct batch *b, struct place p, int64_t docs, char *base)
{
    const size_t column = column_bytes(p);
    return (struct batch){.rows = b->rows,
                          .docs = docs,
                          .len_max = b->len_max,
                          .tokens = (const int32_t *)base,
                          .targets = (const int32_t *)(base + column),
                          .positions = (const int32_t *)(base + 2 * column),
                          .cu_seqlens = (const int32_t *)(base + 3 * column)};
}

/* The same for what a context-parallel rank's micro-batch i is a part of. */
static status put_part(struct feed *f, const struct context_batch *c, const struct batch *own, int i)
{
    const struct feed_shape *s = &f->shape;
    const struct place whole = whole_of(s);
    const size_t first = place_bytes(own_of(s)), second = first + place_bytes(whole);
    const int64_t docs = s->documents ? whole.docs : c->full->docs,
                  listed = s->documents ? s->docs_max : c->count;
    char *host = micro_at(f, f->host, i), *device = micro_at(f, f->device, i);
    TRY(check_docs(c->full->docs, whole.docs));
    TRY(check_docs(c->count, s->docs_max));
    stage(c->full, whole, docs, host + first);
    struct attn_doc *list = (struct attn_doc *)(host + second);
    memcpy(list, c->docs, (size_t)c->count * sizeof *list);
    for (int64_t k = c->count; k < listed; k++) {
        list[k] = (struct attn_doc){.key = (int32_t)c->full->rows};
        list[k].part[1].row = (int32_t)own->rows;
    }
    struct feed_part *part = &f->parts[i];
    part->whole = view_of(c->full, whole, docs, device + first);
    part->of = (struct context_batch){.docs = (const struct attn_doc *)(device + second),
                                      .count = listed,
                                      .length = c->length,
                                      .full = &part->whole};
    f->micro[i].context = &part->of;
    return STATUS_OK;
}

/* Points the view at micro-batch i on the device. Queues its upload, or writes it to the host staging buffer. */
static status put_micro(struct feed *f, const struct batch *b, int i)
{
    const struct feed_shape *s = &f->shape;
    TRY(check_docs(b->docs, s->docs_max));
    const struct place own = own_of(s);
    char *view = micro_at(f, f->device, i);
    int64_t docs = s->documents ? s->docs_max : b->docs;
    f->micro[i] = view_of(b, own, docs, view);
    if (ready(f, b))
        return dev_upload(f->stream, view, b->tokens,
                          3 * column_bytes(own) + ((size_t)docs + 1) * sizeof(int32_t));
    stage(b, own, docs, micro_at(f, f->host, i));
    return b->context ? put_part(f, b->context, b, i) : STATUS_OK;
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

status feed_scalars(struct feed *f, const struct step_scalars *scalars)
{
    if (f->stream == NULL) {
        f->own = *scalars;
        return STATUS_OK;
    }
    memcpy(f->host, scalars, sizeof *scalars); /* free, since feed_read has waited */
    return dev_upload(f->stream, f->device, f->host, sizeof *scalars);
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
