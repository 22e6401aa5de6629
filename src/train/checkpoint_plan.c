/* The layout of a checkpoint: which tensor is in which file, and where. It follows from the list of tensors alone, so
 * that several ranks that know the list know the layout. */
#include "model/safetensors.h"
#include "train/ckpt_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct ckpt_item *const *)a)->name, (*(const struct ckpt_item *const *)b)->name);
}

/* `me`: whose tensors must be in memory. */
static status check_items(const struct ckpt_item *items, int count, int me)
{
    CHECK(count >= 0 && count <= CKPT_TENSORS_MAX, "%d tensors", count);
    const struct ckpt_item **order = malloc(((size_t)count + 1) * sizeof *order);
    if (!order) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %d tensors", count);
    for (int i = 0; i < count; i++) {
        const char *fault = ckpt_manifest_name_fault(items[i].name);
        CHECK(!fault, "tensor name '%.128s' %s", items[i].name, fault);
        CHECK(items[i].rank >= 0 && items[i].rank <= 4, "%s: rank %d", items[i].name, items[i].rank);
        int64_t bytes = ckpt_manifest_item_bytes(&items[i]);
        CHECK(bytes == 0 || (bytes > 0 && (items[i].writer != me || items[i].data || items[i].fill)),
              "%s: %lld bytes at %p", items[i].name, (long long)bytes, items[i].data);
        order[i] = &items[i];
    }
    qsort(order, (size_t)count, sizeof *order, by_name);
    for (int i = 1; i < count; i++)
        CHECK(by_name(&order[i - 1], &order[i]) != 0, "two tensors '%s'", order[i]->name);
    free(order);
    return STATUS_OK;
}

static struct safetensors_source source_of(const struct ckpt_item *t)
{
    struct safetensors_source s = {
        .name = t->name, .dt = t->dt, .rank = t->rank, .ctx = (void *)(uintptr_t)t};
    memcpy(s.shape, t->shape, sizeof t->shape);
    return s;
}

static int file_order(const void *a, const void *b)
{
    const struct safetensors_source x = source_of(a), y = source_of(b);
    return safetensors_write_order(&x, &y);
}

/* Each writer's tensors follow those of the writer before it. */
static int plan_order(const void *a, const void *b)
{
    const struct safetensors_source *x = a, *y = b;
    const int w = ((const struct ckpt_item *)x->ctx)->writer, v = ((const struct ckpt_item *)y->ctx)->writer;
    return w != v ? (w > v) - (w < v) : safetensors_write_order(a, b);
}

void checkpoint_order(struct ckpt_item *items, int count)
{
    qsort(items, (size_t)count, sizeof *items, file_order);
}

void ckpt_plan_free(struct ckpt_plan *p)
{
    for (int i = 0; p->headers && i < p->m.file_count; i++) free(p->headers[i]);
    free(p->headers);
    ckpt_manifest_free(&p->m);
}

/* Which file a tensor is in: the next one when this one would be too large with it, or is another writer's. */
static void plan_files(struct ckpt_plan *p, const struct safetensors_source *sources, int count)
{
    struct ckpt_manifest *m = &p->m;
    int64_t held = 0;
    m->tensor_count = count;
    m->file_count = 1;
    for (int i = 0; i < count; i++) {
        struct ckpt_manifest_tensor *t = &m->tensors[i];
        t->item = *(const struct ckpt_item *)sources[i].ctx;
        t->bytes = ckpt_manifest_item_bytes(&t->item);
        const bool other = i > 0 && t->item.writer != m->tensors[i - 1].item.writer;
        if (other || (held > 0 && t->bytes > p->file_bytes - held)) m->file_count++, held = 0;
        CHECK(m->file_count <= CKPT_FILES_MAX, "%d files", m->file_count);
        if (__builtin_add_overflow(held, t->bytes, &held)) CHECK(0, "size of the checkpoint");
        t->file = m->file_count - 1;
    }
}

/* Places the tensors [*at, ...) of file `file`, and writes its header. */
static status plan_file(struct ckpt_plan *p, const struct safetensors_source *sources, int file, int *at)
{
    struct ckpt_manifest *m = &p->m;
    struct ckpt_manifest_file *f = &m->files[file];
    const int first = *at;
    while (*at < m->tensor_count && m->tensors[*at].file == file) ++*at;
    snprintf(f->name, sizeof f->name, "state-%05d.safetensors", file);
    /* Data begin on a page, for direct and mapped access. */
    TRY(safetensors_write_header(sources + first, *at - first, 4096, &p->headers[file], &f->data_start));
    f->header_crc = ckpt_chunk_header_crc(m, file, p->headers[file], f->data_start);
    f->bytes = f->data_start;
    for (int i = first; i < *at; i++) {
        struct ckpt_manifest_tensor *t = &m->tensors[i];
        t->offset = f->bytes;
        t->chunk_first = m->crc_count;
        m->crc_count += ckpt_manifest_chunks(t->bytes, m->chunk_bytes);
        if (__builtin_add_overflow(f->bytes, t->bytes, &f->bytes)) CHECK(0, "size of the checkpoint");
    }
    return STATUS_OK;
}

status ckpt_plan_make(struct ckpt_plan *p, const struct ckpt_item *items, int count, int me)
{
    TRY(check_items(items, count, me));
    struct ckpt_manifest *m = &p->m;
    struct safetensors_source *sources = calloc((size_t)count + 1, sizeof *sources);
    m->tensors = calloc((size_t)count + 1, sizeof *m->tensors);
    m->files = calloc((size_t)count + 1, sizeof *m->files);
    p->headers = calloc((size_t)count + 1, sizeof *p->headers);
    status st = STATUS_OK;
    int at = 0;
    if (!sources || !m->tensors || !m->files || !p->headers)
        TRY_OUT(FAIL(STATUS_OUT_OF_MEMORY, "no memory for %d tensors", count));
    for (int i = 0; i < count; i++) sources[i] = source_of(&items[i]);
    qsort(sources, (size_t)count, sizeof *sources, plan_order);
    plan_files(p, sources, count);
    for (int f = 0; f < m->file_count; f++) TRY_OUT(plan_file(p, sources, f, &at));
    m->crcs = calloc((size_t)m->crc_count + 1, sizeof *m->crcs);
    if (!m->crcs) st = FAIL(STATUS_OUT_OF_MEMORY, "no memory for %lld checksums", (long long)m->crc_count);
out:
    free(sources);
    return st;
}

/* The first tensor of `writer`, or of one behind it. */
static int first_of(const struct ckpt_plan *p, int writer)
{
    int low = 0, high = p->m.tensor_count;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (p->m.tensors[middle].item.writer < writer)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct ckpt_span ckpt_plan_tensors(const struct ckpt_plan *p, int writer)
{
    return (struct ckpt_span){first_of(p, writer), first_of(p, writer + 1)};
}

struct ckpt_span ckpt_plan_files(const struct ckpt_plan *p, int writer)
{
    const struct ckpt_span t = ckpt_plan_tensors(p, writer);
    if (t.first < t.end)
        return (struct ckpt_span){p->m.tensors[t.first].file, p->m.tensors[t.end - 1].file + 1};
    const bool empty = writer == 0 && p->m.tensor_count == 0;
    return (struct ckpt_span){0, empty ? 1 : 0};
}
