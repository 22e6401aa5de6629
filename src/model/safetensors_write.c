/* Writes safetensors: the same bytes as the reference library for the same tensors (compact JSON, the same order,
 * spaces up to a multiple of 8). */
#include "base/io.h"
#include "base/memory.h"
#include "model/safetensors.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The reference writer orders by its list of types, wide to narrow, then by name. */
static int type_order(dtype dt)
{
    static const int order[] = {
        [DTYPE_I64] = 0, [DTYPE_F64] = 1, [DTYPE_F32] = 2, [DTYPE_I32] = 3,     [DTYPE_BF16] = 4,
        [DTYPE_F16] = 5, [DTYPE_U16] = 6, [DTYPE_U8] = 7,  [DTYPE_F8_E4M3] = 8, [DTYPE_F8_E5M2] = 9};
    _Static_assert(sizeof order / sizeof order[0] == DTYPE_COUNT, "a place for every dtype");
    return order[dt];
}

int safetensors_write_order(const void *a, const void *b)
{
    const struct safetensors_source *x = a, *y = b;
    int by_type = type_order(x->dt) - type_order(y->dt);
    return by_type ? by_type : strcmp(x->name, y->name);
}

/* Bytes of a tensor; -1 when they do not fit in 63 bits. */
static int64_t source_bytes(const struct safetensors_source *s)
{
    CHECK(s->rank >= 0 && s->rank <= SAFETENSORS_RANK_MAX, "%s: rank %d", s->name, s->rank);
    int64_t bytes = (int64_t)dtype_bytes(s->dt);
    for (int i = 0; i < s->rank; i++)
        if (s->shape[i] < 0 || __builtin_mul_overflow(bytes, s->shape[i], &bytes)) return -1;
    return bytes;
}

static void print_source(FILE *out, const struct safetensors_source *s, int64_t at)
{
    json_t *name = json_string(s->name);
    char *quoted = name ? json_dumps(name, JSON_ENCODE_ANY) : NULL;
    CHECK(quoted, "the tensor name '%s' is not UTF-8", s->name);
    fprintf(out, ",%s:{\"dtype\":\"%s\",\"shape\":[", quoted, dtype_name(s->dt));
    for (int i = 0; i < s->rank; i++) fprintf(out, "%s%lld", i ? "," : "", (long long)s->shape[i]);
    fprintf(out, "],\"data_offsets\":[%lld,%lld]}", (long long)at, (long long)(at + source_bytes(s)));
    free(quoted);
    json_decref(name);
}

status safetensors_write_header(const struct safetensors_source *sources, int count, int align, char **header,
                                int64_t *bytes)
{
    CHECK(align >= 8 && align % 8 == 0, "alignment %d", align);
    *header = NULL;
    size_t length = 0;
    FILE *out = memory_stream(header, &length);
    int64_t at = 0;
    fprintf(out, "--------{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < count; i++) {
        CHECK(source_bytes(&sources[i]) >= 0, "size of '%s'", sources[i].name);
        print_source(out, &sources[i], at);
        if (__builtin_add_overflow(at, source_bytes(&sources[i]), &at)) CHECK(0, "size of all tensors");
    }
    fputc('}', out);
    for (long n = ftell(out); n % align; n++) fputc(' ', out);
    memory_stream_close(out);
    if (length - 8 > SAFETENSORS_HEADER_MAX) {
        free(*header);
        *header = NULL;
        return FAIL(STATUS_CKPT, "%d tensors need a header of %zu bytes; the format allows %d", count,
                    length - 8, SAFETENSORS_HEADER_MAX);
    }
    for (int i = 0; i < 8; i++) (*header)[i] = (char)((uint64_t)(length - 8) >> (8 * i));
    *bytes = (int64_t)length;
    return STATUS_OK;
}

static status write_tensor(struct io_file *f, const struct safetensors_source *s)
{
    size_t bytes = (size_t)source_bytes(s);
    if (s->data || bytes == 0) return io_write(f, s->data, bytes);
    void *made = malloc(bytes);
    if (!made)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the %zu bytes of tensor '%s'", bytes, s->name);
    status st = s->fill(s->ctx, made);
    if (st == STATUS_OK) st = io_write(f, made, bytes);
    free(made);
    return st;
}

static status write_file(const char *path, const struct safetensors_source *sources, int count)
{
    char *header;
    int64_t bytes;
    struct io_file f;
    TRY(safetensors_write_header(sources, count, 8, &header, &bytes));
    status st = io_create(&f, path);
    if (st == STATUS_OK) {
        st = io_write(&f, header, (size_t)bytes);
        for (int i = 0; i < count && st == STATUS_OK; i++) st = write_tensor(&f, &sources[i]);
        if (st == STATUS_OK)
            st = io_commit(&f);
        else
            io_abandon(&f);
    }
    free(header);
    return st;
}

/* Index of the first source after the shard that begins at `first`. A tensor above the limit gets a shard of
 * its own. */
static int shard_end(const struct safetensors_source *sources, int count, int first, int64_t bytes_max)
{
    int i = first;
    for (int64_t bytes = 0; i < count; i++) {
        bytes += source_bytes(&sources[i]);
        if (bytes > bytes_max && i > first) break;
    }
    return i;
}

static status write_index(const char *dir, json_t *map, int64_t total)
{
    json_t *root = json_pack("{s:{s:I},s:O}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    json_decref(root);
    if (!text) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the index of '%s'", dir);
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    status st = io_write_file(path, text, strlen(text));
    free(text);
    return st;
}

static status write_shards(const char *dir, const struct safetensors_source *sources, int count,
                           int64_t bytes_max, int shards, int64_t total)
{
    json_t *map = json_object();
    status st = map ? STATUS_OK : FAIL(STATUS_OUT_OF_MEMORY, "no memory for the index of '%s'", dir);
    for (int shard = 1, first = 0; shard <= shards && st == STATUS_OK; shard++) {
        int end = shard_end(sources, count, first, bytes_max);
        char name[64], path[PATH_MAX];
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", shard, shards);
        snprintf(path, sizeof path, "%s/%s", dir, name);
        st = write_file(path, sources + first, end - first);
        for (int i = first; i < end && st == STATUS_OK; i++)
            if (json_object_set_new(map, sources[i].name, json_string(name)) != 0)
                st = FAIL(STATUS_OUT_OF_MEMORY, "no memory for the index of '%s'", dir);
        first = end;
    }
    if (st == STATUS_OK) st = write_index(dir, map, total);
    json_decref(map);
    return st;
}

/* Files of an earlier export in the directory, which a reader would prefer or mix with ours. */
static status remove_others(const char *dir, int shards)
{
    struct io_list list;
    TRY(io_list(dir, &list));
    char last[32];
    snprintf(last, sizeof last, "-of-%05d.safetensors", shards);
    status st = STATUS_OK;
    for (int i = 0; i < list.count && st == STATUS_OK; i++) {
        const char *name = list.names[i], *of = strstr(name, "-of-");
        bool whole = strcmp(name, "model.safetensors") == 0,
             index = strcmp(name, "model.safetensors.index.json") == 0;
        bool shard =
            strncmp(name, "model-", 6) == 0 && of && strcmp(name + strlen(name) - 12, ".safetensors") == 0;
        bool ours = shards == 1 ? whole : index || (shard && strcmp(of, last) == 0);
        if (ours || !(whole || index || shard)) continue;
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", dir, name);
        st = io_remove_tree(path);
    }
    io_list_free(&list);
    return st;
}

status safetensors_write(const char *dir, struct safetensors_source *sources, int count,
                         int64_t shard_bytes_max)
{
    char path[PATH_MAX];
    int64_t total = 0;
    int shards = 0;
    for (int i = 0; i < count; i++) {
        int64_t bytes = source_bytes(&sources[i]);
        CHECK(bytes >= 0 && !__builtin_add_overflow(total, bytes, &total), "size of '%s'", sources[i].name);
    }
    if (count) qsort(sources, (size_t)count, sizeof *sources, safetensors_write_order);
    for (int i = 0; i < count; i = shard_end(sources, count, i, shard_bytes_max)) shards++;
    if (shards == 0) shards = 1;
    TRY(io_make_dirs(dir));
    if (shards == 1) {
        snprintf(path, sizeof path, "%s/model.safetensors", dir);
        TRY(write_file(path, sources, count));
    } else {
        /* Shards of an earlier export may have the same names. Without its index no reader can mix the two. */
        snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
        TRY(io_remove_tree(path));
        TRY(write_shards(dir, sources, count, shard_bytes_max, shards, total));
    }
    return remove_others(dir, shards);
}
