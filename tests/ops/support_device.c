/* One op on a device, three times: op by op, op by op over other leftovers, as a captured graph. */
#include "probe.h"
#include "dev/driver_int.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

enum { TAIL = 4096 }; /* bytes after the workspace that must not change */
enum attempt { FIRST, REPEAT, GRAPH, ATTEMPTS };
static const char *const attempt_names[ATTEMPTS] = {
    "", "a second run over other leftovers in workspace and scratch", "the captured graph"};

status probe_device_open(struct probe_device *d, struct stream *s, size_t bytes)
{
    const struct dev_driver *driver = s->dev->driver;
    void *memory, *ones = malloc(bytes + TAIL);
    *d = (struct probe_device){.stream = s, .workspace_bytes = bytes};
    if (ones == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %zu bytes", bytes);
    memset(ones, 0xFF, bytes + TAIL);
    status st = driver->memory(s->dev, bytes + TAIL, "workspace", &memory);
    if (st == STATUS_OK) d->workspace = memory, st = driver->memory(s->dev, bytes + TAIL, "poison", &memory);
    if (st == STATUS_OK) d->poison = memory, st = dev_upload(s, memory, ones, bytes + TAIL);
    if (st == STATUS_OK) st = dev_sync(s);
    free(ones);
    if (st != STATUS_OK) probe_device_close(d);
    return st;
}

void probe_device_close(struct probe_device *d)
{
    if (d->workspace) d->stream->dev->driver->memory_free(d->workspace, 0);
    if (d->poison) d->stream->dev->driver->memory_free(d->poison, 0);
    *d = (struct probe_device){0};
}

/* Bytes of the block that its twin has: see probe_device.exact. */
static size_t twin_bytes(const struct probe *p, const struct probe_buf *b)
{
    size_t front = (size_t)((char *)b->data - b->block), data = (size_t)b->count * dtype_bytes(b->dt);
    return p->device->exact ? front + data : b->block_bytes;
}

/* Every word of the arguments that is an address in a buffer becomes that in its twin: sizes are small, no double looks like an address,
 * and padding is clear (exec.h), so nothing else is one. */
static void map_pointers(const struct probe *p, void *args, size_t bytes)
{
    uintptr_t word;
    for (size_t at = 0; at + sizeof word <= bytes; at += sizeof word)
        for (int i = 0; i < p->count; i++) {
            const struct probe_buf *b = &p->bufs[i];
            const uintptr_t data = (uintptr_t)b->data, size = (uintptr_t)b->count * dtype_bytes(b->dt);
            memcpy(&word, (char *)args + at, sizeof word);
            if (word != data && !(word > data && word < data + size)) continue;
            word = (uintptr_t)b->twin + (word - (uintptr_t)b->block);
            memcpy((char *)args + at, &word, sizeof word);
            break;
        }
}

static status upload(struct probe *p, char *const *before, enum attempt attempt)
{
    struct stream *s = p->device->stream;
    for (int i = 0; i < p->count; i++) {
        struct probe_buf *b = &p->bufs[i];
        if (b->kind == PROBE_SCRATCH)
            memset(before[i] + ((char *)b->data - b->block), attempt == FIRST ? 0xFF : 0, (size_t)b->count);
        TRY(dev_upload(s, b->twin, before[i], twin_bytes(p, b)));
    }
    return STATUS_OK;
}

/* As many bytes of workspace as the set asked for, full of NaN or of zeros. */
static status layout_workspace(const struct probe *p, const struct ops *o, enum attempt attempt)
{
    const struct probe_device *d = p->device;
    if (d->set_workspace == NULL) return STATUS_OK;
    const size_t bytes = o->workspace(p->tokens);
    CHECK(bytes <= d->workspace_bytes, "a workspace of %zu bytes, the test has %zu", bytes,
          d->workspace_bytes);
    TRY(dev_copy(d->stream, d->workspace, d->poison, bytes + TAIL));
    if (attempt != FIRST) TRY(dev_zero(d->stream, d->workspace, bytes));
    d->set_workspace(d->stream, d->workspace, bytes);
    return STATUS_OK;
}

static void check_workspace(struct probe *p, const struct ops *o)
{
    const struct probe_device *d = p->device;
    unsigned char tail[TAIL];
    if (d->set_workspace == NULL) return;
    p->st = dev_download(d->stream, tail, d->workspace + o->workspace(p->tokens), TAIL);
    if (p->st == STATUS_OK) p->st = dev_sync(d->stream);
    for (size_t i = 0; i < TAIL && p->st == STATUS_OK; i++)
        if (tail[i] != 0xFF) {
            snprintf(p->trouble, sizeof p->trouble, "byte %zu after the workspace was written", i);
            return;
        }
}

static status launch(struct probe *p, const struct ops *o, probe_op *op, const void *args,
                     enum attempt attempt)
{
    struct stream *s = p->device->stream;
    if (attempt == GRAPH) {
        struct graph g;
        TRY(dev_graph_begin(s));
        const status st = op(o, args, s);
        char why[400];
        snprintf(why, sizeof why, "%s", status_message());
        const status end = dev_graph_end(s, &g, st == STATUS_OK);
        if (st != STATUS_OK) return FAIL(st, "%s", why);
        TRY(end);
        const status launched = g.nodes > 0 ? dev_graph_launch(s, &g) : STATUS_OK; /* no rows, no work */
        const status synced = launched == STATUS_OK ? dev_sync(s) : launched;
        dev_graph_close(s->dev, &g);
        return synced;
    }
    TRY(op(o, args, s));
    return dev_sync(s);
}

/* Downloads the results: the first attempt's into the blocks; later ones are compared with them. */
static status download(struct probe *p, enum attempt attempt)
{
    for (int i = 0; i < p->count; i++) {
        struct probe_buf *b = &p->bufs[i];
        const size_t bytes = twin_bytes(p, b);
        char *to = attempt == FIRST ? b->block : malloc(bytes);
        assert_non_null(to);
        status st = dev_download(p->device->stream, to, b->twin, bytes);
        if (st == STATUS_OK) st = dev_sync(p->device->stream);
        if (attempt != FIRST) {
            size_t at = 0, front = (size_t)((char *)b->data - b->block);
            const size_t skip = b->kind == PROBE_SCRATCH ? (size_t)b->count : 0;
            while (at < bytes && to[at] == b->block[at]) at += 1 + (at + 1 == front ? skip : 0);
            if (st == STATUS_OK && at < bytes && p->trouble[0] == 0)
                snprintf(p->trouble, sizeof p->trouble, "%s leaves another byte at %lld of %s, of %lld",
                         attempt_names[attempt], (long long)at - (long long)front, b->name,
                         (long long)b->count * (long long)dtype_bytes(b->dt));
            free(to);
        }
        TRY(st);
    }
    return STATUS_OK;
}

/* A twin for each buffer that has none, and a copy of what all of them hold. */
static status prepare(struct probe *p, char **before)
{
    const struct dev *dev = p->device->stream->dev;
    for (int i = 0; i < p->count; i++) {
        struct probe_buf *b = &p->bufs[i];
        void *twin = b->twin;
        if (twin == NULL) TRY(dev->driver->memory(dev, twin_bytes(p, b), b->name, &twin));
        b->twin = twin;
        before[i] = malloc(b->block_bytes);
        assert_non_null(before[i]);
        memcpy(before[i], b->block, b->block_bytes);
    }
    return STATUS_OK;
}

static status attempts(struct probe *p, const struct ops *o, probe_op *op, const void *args,
                       char *const *before)
{
    for (enum attempt attempt = FIRST; attempt < ATTEMPTS; attempt++) {
        TRY(upload(p, before, attempt));
        TRY(layout_workspace(p, o, attempt));
        const status st = launch(p, o, op, args, attempt);
        if (st != STATUS_OK) return attempt == FIRST ? st : status_wrap(st, "%s", attempt_names[attempt]);
        TRY(download(p, attempt));
    }
    return STATUS_OK;
}

void probe_device_call(struct probe *p, const struct ops *o, probe_op *op, const void *args, size_t bytes)
{
    char *before[sizeof p->bufs / sizeof p->bufs[0]] = {0};
    _Alignas(8) char mapped[512];
    assert_true(bytes <= sizeof mapped);
    if (p->st != STATUS_OK) return; /* an earlier op of this case */
    memcpy(mapped, args, bytes);
    p->st = prepare(p, before);
    map_pointers(p, mapped, bytes);
    if (p->st == STATUS_OK) p->st = attempts(p, o, op, mapped, before);
    if (p->st == STATUS_OK && p->trouble[0] == 0) check_workspace(p, o);
    if (p->st != STATUS_OK) snprintf(p->trouble, sizeof p->trouble, "%s", status_message());
    for (int i = 0; i < p->count; i++) free(before[i]);
}
