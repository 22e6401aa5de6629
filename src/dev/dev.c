#include "base/clock.h"
#include "base/parallel.h"
#include "dev/copy_thread.h"
#include "dev/driver_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

status dev_open(struct dev *d, enum dev_kind kind)
{
    return dev_open_local(d, kind, 0);
}

status dev_open_local(struct dev *d, enum dev_kind kind, int local)
{
#if INGOT_CUDA
    const struct dev_driver *driver = cuda_driver();
#else
    const struct dev_driver *driver = NULL;
#endif
    *d = (struct dev){.kind = DEV_CPU, .index = -1, .name = "cpu"};
    if (kind == DEV_CUDA && driver == NULL)
        return FAIL(STATUS_DEVICE, "this ingot was built without CUDA; build it where nvcc is on PATH "
                                   "(cmake --preset cuda), or use --machine.device=cpu");
    if (kind == DEV_CPU || driver == NULL) return STATUS_OK;
    return driver->open(d, kind == DEV_AUTO, local);
}

status dev_address(const struct dev *d, char address[DEV_ADDRESS])
{
    memset(address, 0, DEV_ADDRESS);
    return d->driver ? d->driver->address(d, address) : STATUS_OK;
}

void dev_close(struct dev *d)
{
    *d = (struct dev){.kind = DEV_CPU, .index = -1, .name = "cpu"};
}

status dev_use(const struct dev *d)
{
    return d->driver ? d->driver->use(d) : STATUS_OK;
}

void dev_measure(struct dev *d)
{
    d->bytes_free -= dev_bytes_used(d);
}

size_t dev_bytes_used(const struct dev *d)
{
    return d->driver ? d->driver->bytes_used(d) : 0;
}

status dev_arena_reserve(const struct dev *d, struct arena *a, const char *name, size_t size)
{
    if (d->driver == NULL) return arena_reserve(a, name, size);
    void *p = NULL;
    size = (size + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    if (size) TRY(d->driver->memory(d, size, name, &p));
    arena_attach(a, name, p, size, d->driver->memory_free);
    return STATUS_OK;
}

status dev_pinned_open(const struct dev *d, size_t size, void **out)
{
    if (d->driver) return d->driver->pinned(size, out);
    *out = malloc(size ? size : 1);
    return *out ? STATUS_OK : FAIL(STATUS_OUT_OF_MEMORY, "no memory for %zu bytes", size);
}

void dev_pinned_close(const struct dev *d, void *p)
{
    if (p == NULL) return;
    if (d->driver)
        d->driver->pinned_free(p);
    else
        free(p);
}

/* First touch places pages on NUMA nodes and costs most: all threads take part. What is there stays. */
static void touch(char *p, size_t size)
{
    enum { STRIDE = 1 << 25, PAGE = 4096 };
    PARALLEL_CHUNKS(c, chunk_count((int64_t)size, STRIDE))
    {
        const struct span s = chunk_span(c, (int64_t)size, STRIDE);
        for (int64_t at = s.begin; at < s.end; at += PAGE)
            ((volatile char *)p)[at] = ((volatile char *)p)[at];
    }
}

status dev_pinned_arena(const struct dev *d, struct arena *a, const char *name, size_t size)
{
    TRY(arena_reserve(a, name, size));
    if (d->driver == NULL || size == 0) return STATUS_OK;
    touch(a->base, a->size);
    const status st = d->driver->pin(d, a->base, a->size, name);
    if (st == STATUS_OK)
        a->release = d->driver->pinned_unmap;
    else
        arena_free(a);
    return st;
}

status dev_pin(const struct dev *d, void *p, size_t bytes, const char *what)
{
    if (d->driver == NULL || bytes == 0) return STATUS_OK;
    touch(p, bytes);
    return d->driver->pin(d, p, bytes, what);
}

void dev_unpin(const struct dev *d, void *p)
{
    if (d->driver && p) d->driver->unpin(p);
}

static status open_stream(const struct dev *d, struct stream *s, bool side)
{
    CHECK(d->driver != NULL, "%s has no streams", d->name);
    *s = (struct stream){.dev = d, .side = side};
    return d->driver->stream_open(s);
}

status dev_stream_open(const struct dev *d, struct stream *s)
{
    return open_stream(d, s, false);
}

status dev_stream_open_side(const struct dev *d, struct stream *s)
{
    return open_stream(d, s, true);
}

void dev_stream_close(struct stream *s)
{
    if (s->queue) s->dev->driver->stream_close(s);
    *s = (struct stream){0};
}

static status copy(struct stream *s, void *to, const void *from, size_t bytes)
{
    if (bytes == 0) return STATUS_OK;
    if (s) return s->dev->driver->copy(s, to, from, bytes);
    if (to != from) memmove(to, from, bytes);
    return STATUS_OK;
}

status dev_upload(struct stream *s, void *to, const void *from, size_t bytes)
{
    return copy(s, to, from, bytes);
}

status dev_download(struct stream *s, void *to, const void *from, size_t bytes)
{
    return copy(s, to, from, bytes);
}

status dev_copy(struct stream *s, void *to, const void *from, size_t bytes)
{
    return copy(s, to, from, bytes);
}

status dev_copy_lines(struct stream *s, const struct dev_lines *l)
{
    if (l->bytes == 0 || l->count == 0) return STATUS_OK;
    if (s) return s->dev->driver->copy_lines(s, l);
    for (size_t k = 0; k < l->count; k++)
        memcpy((char *)l->to + k * l->to_stride, (const char *)l->from + k * l->from_stride, l->bytes);
    return STATUS_OK;
}

status dev_zero(struct stream *s, void *to, size_t bytes)
{
    if (bytes == 0) return STATUS_OK;
    if (s) return s->dev->driver->zero(s, to, bytes);
    memset(to, 0, bytes);
    return STATUS_OK;
}

/* Checks the other ranks between polls of the stream: a wait must end when they abort. */
static status wait_and_look(struct stream *s)
{
    const double look_s = 0.05;
    double last = clock_s();
    for (bool done = false; !done;) {
        TRY(s->dev->driver->done(s, &done));
        const double now = clock_s();
        if (done || now - last < look_s) {
            if (!done) usleep(10);
            continue;
        }
        TRY(s->look(s->look_at));
        last = now;
    }
    return STATUS_OK;
}

status dev_sync(struct stream *s)
{
    if (s && s->look) TRY(wait_and_look(s));
    return s ? s->dev->driver->sync(s) : STATUS_OK;
}

status dev_event_open(const struct dev *d, struct event *e)
{
    CHECK(d->driver != NULL, "%s has no events", d->name);
    return d->driver->event_open(e, true);
}

status dev_fence_open(const struct dev *d, struct event *e)
{
    CHECK(d->driver != NULL, "%s has no events", d->name);
    return d->driver->event_open(e, false);
}

status dev_stream_wait(struct stream *s, const struct event *e)
{
    return s->dev->driver->stream_wait(s, e);
}

status dev_stream_wait_outside(struct stream *s, const struct event *e)
{
    return s->dev->driver->stream_wait_outside(s, e);
}

void dev_event_close(const struct dev *d, struct event *e)
{
    if (e->mark) d->driver->event_close(e);
    *e = (struct event){0};
}

status dev_event_record(struct stream *s, struct event *e)
{
    return s->dev->driver->event_record(s, e);
}

status dev_event_stamp(struct stream *s, struct event *e)
{
    return s->dev->driver->event_stamp(s, e);
}

status dev_event_ms(const struct dev *d, const struct event *begin, const struct event *end, double *ms)
{
    return d->driver->event_ms(begin, end, ms);
}

status dev_graph_begin(struct stream *s)
{
    return s->dev->driver->graph_begin(s);
}

status dev_graph_end(struct stream *s, struct graph *g, bool keep)
{
    *g = (struct graph){0};
    return s->dev->driver->graph_end(s, g, keep);
}

status dev_graph_launch(struct stream *s, const struct graph *g)
{
    return s->dev->driver->graph_launch(s, g);
}

void dev_graph_close(const struct dev *d, struct graph *g)
{
    if (g->exec) d->driver->graph_close(g);
    *g = (struct graph){0};
}
