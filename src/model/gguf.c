/* The file: magic, version, counts, keys, descriptions of tensors, then their data, each at a multiple of 32. */
#include "base/io.h"
#include "base/int_math.h"
#include "base/log.h"
#include "model/gguf_int.h"

#include <stdlib.h>
#include <string.h>

enum { VERSION = 3, ALIGN = 32, CHUNK_VALUES = 1 << 18 };

static void put(struct gguf_head *h, const void *data, size_t bytes)
{
    if (h->bytes + bytes > h->room) {
        h->room = 2 * (h->bytes + bytes) + 4096;
        h->data = realloc(h->data, h->room);
        CHECK(h->data, "no memory for %zu bytes of a GGUF file's head", h->room);
    }
    if (bytes > 0) memcpy(h->data + h->bytes, data, bytes);
    h->bytes += bytes;
}

void gguf_put_u32(struct gguf_head *h, uint32_t v)
{
    put(h, &v, sizeof v);
}

static void put_u64(struct gguf_head *h, uint64_t v)
{
    put(h, &v, sizeof v);
}

void gguf_put_text(struct gguf_head *h, const char *text, size_t bytes)
{
    put_u64(h, bytes);
    put(h, text, bytes);
}

static void key(struct gguf_head *h, const char *name, enum gguf_kind kind)
{
    gguf_put_text(h, name, strlen(name));
    gguf_put_u32(h, kind);
    h->keys++;
}

void gguf_key_u32(struct gguf_head *h, const char *name, uint32_t v)
{
    key(h, name, GGUF_KIND_U32);
    gguf_put_u32(h, v);
}

void gguf_key_f32(struct gguf_head *h, const char *name, double v)
{
    const float f = (float)v;
    key(h, name, GGUF_KIND_F32);
    put(h, &f, sizeof f);
}

void gguf_key_bool(struct gguf_head *h, const char *name, bool v)
{
    const uint8_t byte = v;
    key(h, name, GGUF_KIND_BOOL);
    put(h, &byte, 1);
}

void gguf_key_text(struct gguf_head *h, const char *name, const char *v)
{
    key(h, name, GGUF_KIND_TEXT);
    gguf_put_text(h, v, strlen(v));
}

void gguf_key_list(struct gguf_head *h, const char *name, enum gguf_kind kind, int64_t count)
{
    key(h, name, GGUF_KIND_LIST);
    gguf_put_u32(h, kind);
    put_u64(h, (uint64_t)count);
}

static int64_t padded(int64_t bytes)
{
    return int64_round_up(bytes, ALIGN);
}

static int64_t values_of(const struct gguf_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->shape[i];
    return n;
}

/* Name, shape from the innermost dimension on, type, place behind the head. */
static void put_tensors(struct gguf_head *h, const struct gguf_tensors *tensors)
{
    int64_t at = 0;
    for (int i = 0; i < tensors->count; i++) {
        const struct gguf_tensor *t = &tensors->list[i];
        gguf_put_text(h, t->name, strlen(t->name));
        gguf_put_u32(h, (uint32_t)t->rank);
        for (int k = t->rank; k-- > 0;) put_u64(h, (uint64_t)t->shape[k]);
        gguf_put_u32(h, t->type);
        put_u64(h, (uint64_t)at);
        at += padded(gguf_type_bytes(t->type, values_of(t)));
    }
}

/* The row of a tensor that becomes its row `row`: within a head, (i, i + head / 2) become neighbours. */
static int64_t source_row(const struct gguf_tensor *t, int64_t row)
{
    if (t->head == 0) return row;
    const int64_t at = row % t->head;
    return row - at + at / 2 + at % 2 * (t->head / 2);
}

static void load_row(const struct decoder *d, const struct gguf_tensor *t, int64_t row, int64_t columns,
                     float *out)
{
    if (t->values) {
        *out = (float)t->values[row];
        return;
    }
    const struct hf_tensor *first = t->first;
    const struct hf_tensor *h = first + row / first->rows * t->stride;
    const void *master = params_master(&d->params, h->param);
    const int64_t from = hf_row(h, source_row(t, row % first->rows)) * columns;
    for (int64_t c = 0; c < columns; c++)
        out[c] = (float)dtype_load(master, from + c, dtype_acc(d->params.dt));
}

struct writing {
    struct io_file file;
    float *values;
    char *bytes;
};

static status write_tensor(struct writing *w, const struct decoder *d, const struct gguf_tensor *t)
{
    static const char zeros[ALIGN];
    const bool vector = t->rank == 1;
    const int64_t columns = vector ? 1 : t->shape[t->rank - 1], rows = values_of(t) / columns;
    const int64_t step = columns < CHUNK_VALUES ? CHUNK_VALUES / columns : 1;
    const size_t room = (size_t)(step * columns);
    w->values = realloc(w->values, room * sizeof *w->values);
    w->bytes = realloc(w->bytes, room * sizeof *w->values);
    if (!w->values || !w->bytes)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory to convert %zu weights at once", room);
    for (int64_t row = 0; row < rows; row += step) {
        const int64_t n = rows - row < step ? rows - row : step;
        for (int64_t i = 0; i < n; i++) load_row(d, t, row + i, columns, w->values + i * columns);
        if (!gguf_encode(t->type, w->values, n * columns, w->bytes))
            return FAIL(STATUS_NUMERIC, "%s has a weight that is not finite%s", t->name,
                        t->type == GGUF_F16 || t->type == GGUF_Q8_0
                            ? ", or too large for f16; --dtype bf16 or f32 holds it"
                            : "");
        TRY(io_write(&w->file, w->bytes, (size_t)gguf_type_bytes(t->type, n * columns)));
    }
    const int64_t bytes = gguf_type_bytes(t->type, values_of(t));
    return io_write(&w->file, zeros, (size_t)(padded(bytes) - bytes));
}

static status write_all(struct writing *w, const struct gguf_source *s, const struct gguf_head *keys,
                        const struct gguf_tensors *tensors)
{
    struct gguf_head h = {0};
    put(&h, "GGUF", 4);
    gguf_put_u32(&h, VERSION);
    put_u64(&h, (uint64_t)tensors->count);
    put_u64(&h, (uint64_t)keys->keys);
    put(&h, keys->data, keys->bytes);
    put_tensors(&h, tensors);
    while (h.bytes % ALIGN != 0) put(&h, "", 1);
    status st = io_write(&w->file, h.data, h.bytes);
    free(h.data);
    for (int i = 0; i < tensors->count && st == STATUS_OK; i++) st = write_tensor(w, s->d, &tensors->list[i]);
    return st;
}

static void tell_f16(const struct gguf_source *s, const struct gguf_tensors *tensors)
{
    int count = 0;
    for (int i = 0; i < tensors->count; i++) count += tensors->list[i].type == GGUF_F16;
    if (s->type == GGUF_Q8_0 && count > 0)
        log_warn("%d matrices are f16: q8_0 needs rows of a multiple of 32 weights", count);
}

status gguf_write(const struct gguf_source *s, const char *path)
{
    const char *arch;
    struct gguf_head keys = {0};
    struct gguf_tensors tensors = {0};
    struct writing w = {.file = {.fd = -1}};
    TRY(gguf_architecture(s->d, &arch));
    gguf_put_model(&keys, s, arch);
    status st = gguf_put_tokenizer(&keys, s);
    if (st == STATUS_OK) st = gguf_tensors_list(&tensors, s, arch);
    if (st == STATUS_OK) {
        tell_f16(s, &tensors);
        st = io_create(&w.file, path);
        if (st == STATUS_OK) st = write_all(&w, s, &keys, &tensors);
        if (st == STATUS_OK)
            st = io_commit(&w.file);
        else
            io_abandon(&w.file);
    }
    free(w.values);
    free(w.bytes);
    free(keys.data);
    gguf_tensors_free(&tensors);
    return st;
}
