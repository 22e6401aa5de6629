/* Reads safetensors. The header is copied before it is checked, so a file that changes during the read cannot pass
 * the checks with other numbers than those that are used. Holes and overlaps are found by sorting the tensors by
 * offset: each must begin where the previous one ends. */
#include "model/safetensors.h"
#include "base/io.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct entry {
    struct safetensor t; /* name owned */
    int64_t begin;       /* of the data, in bytes from the data's start */
    int file;
};
struct mapping {
    void *base;
    size_t bytes;
};
struct safetensors {
    struct entry *entries;
    int count;
    struct mapping *maps;
    int map_count;
};

static int type_bits(const char *type)
{
    static const struct {
        const char *name;
        int bits;
    } types[] = {{"F32", 32},    {"BF16", 16},   {"F16", 16},        {"F64", 64},        {"I64", 64},
                 {"I32", 32},    {"I16", 16},    {"I8", 8},          {"U64", 64},        {"U32", 32},
                 {"U16", 16},    {"U8", 8},      {"BOOL", 8},        {"C64", 64},        {"F8_E5M2", 8},
                 {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6},
                 {"F6_E3M2", 6}, {"F4", 4}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i].name, type) == 0) return types[i].bits;
    return 0;
}

static status parse_shape(struct safetensor *t, const json_t *shape, const char *what)
{
    size_t rank = json_array_size(shape);
    if (!json_is_array(shape) || rank > SAFETENSORS_RANK_MAX)
        return FAIL(STATUS_CKPT, "%s: tensor '%s' has no shape of at most %d numbers", what, t->name,
                    SAFETENSORS_RANK_MAX);
    t->rank = (int)rank;
    int64_t bits = type_bits(t->type);
    bool empty = false, overflow = false;
    for (int i = 0; i < t->rank; i++) {
        const json_t *n = json_array_get(shape, (size_t)i);
        t->shape[i] = json_integer_value(n);
        if (!json_is_integer(n) || t->shape[i] < 0)
            return FAIL(STATUS_CKPT, "%s: tensor '%s' has a shape that is not made of counts", what, t->name);
        empty = empty || t->shape[i] == 0;
    }
    for (int i = 0; i < t->rank && !empty; i++)
        overflow = overflow || __builtin_mul_overflow(bits, t->shape[i], &bits);
    if (empty) bits = 0;
    if (overflow) return FAIL(STATUS_CKPT, "%s: the shape of tensor '%s' overflows", what, t->name);
    if (bits % 8)
        return FAIL(STATUS_CKPT, "%s: tensor '%s' of %s does not end on a whole byte", what, t->name,
                    t->type);
    t->bytes = bits / 8;
    return STATUS_OK;
}

/* Parses one member of the header into `e`, except the pointer. */
static status parse_entry(struct entry *e, const char *name, const json_t *o, int64_t data_bytes,
                          const char *what)
{
    struct safetensor *t = &e->t;
    t->name = strdup(name);
    if (!t->name) return FAIL(STATUS_OUT_OF_MEMORY, "%s: no memory for its names", what);
    const char *type = json_string_value(json_object_get(o, "dtype"));
    if (!type || !type_bits(type))
        return FAIL(STATUS_CKPT, "%s: tensor '%s' has the unknown dtype '%.20s'", what, name,
                    type ? type : "(none)");
    if (json_object_size(o) != 3)
        return FAIL(STATUS_CKPT, "%s: tensor '%s' has other members than dtype, shape and data_offsets", what,
                    name);
    snprintf(t->type, sizeof t->type, "%s", type);
    t->dt = dtype_from_name(type);
    TRY(parse_shape(t, json_object_get(o, "shape"), what));
    const json_t *offsets = json_object_get(o, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return FAIL(STATUS_CKPT, "%s: tensor '%s' has no data_offsets of two numbers", what, name);
    int64_t b = json_integer_value(begin), n = json_integer_value(end);
    if (b < 0 || n < b || n > data_bytes)
        return FAIL(STATUS_CKPT, "%s: tensor '%s' lies at [%lld, %lld), outside the %lld bytes of data", what,
                    name, (long long)b, (long long)n, (long long)data_bytes);
    if (n - b != t->bytes)
        return FAIL(STATUS_CKPT, "%s: tensor '%s' takes %lld bytes; its shape and dtype need %lld", what,
                    name, (long long)(n - b), (long long)t->bytes);
    e->begin = b;
    return STATUS_OK;
}

static int by_place(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->t.bytes > y->t.bytes) - (x->t.bytes < y->t.bytes); /* empty tensors first */
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->t.name, ((const struct entry *)b)->t.name);
}

static status check_metadata(const json_t *meta, const char *what)
{
    const char *key;
    json_t *value;
    if (meta && !json_is_object(meta)) return FAIL(STATUS_CKPT, "%s: __metadata__ is not an object", what);
    json_object_foreach((json_t *)(uintptr_t)meta, key, value) if (!json_is_string(value)) return FAIL(
        STATUS_CKPT, "%s: __metadata__ '%s' is not text", what, key);
    return STATUS_OK;
}

/* Adds the tensors of a parsed header. data_bytes: size of the file after the header. data: its address;
 * NULL: none. */
static status add_header(struct safetensors *s, const json_t *root, int64_t data_bytes, const char *data,
                         const char *what)
{
    const json_t *meta = json_object_get(root, "__metadata__");
    TRY(check_metadata(meta, what));
    size_t members = json_object_size(root) - (meta ? 1 : 0);
    if (members > (size_t)(INT_MAX - s->count)) return FAIL(STATUS_CKPT, "%s: too many tensors", what);
    struct entry *larger = realloc(s->entries, ((size_t)s->count + members + 1) * sizeof *larger);
    if (!larger) return FAIL(STATUS_OUT_OF_MEMORY, "%s: no memory for %zu tensors", what, members);
    s->entries = larger;
    int first = s->count;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)root, name, value)
    {
        if (value == meta) continue;
        if (!json_is_object(value))
            return FAIL(STATUS_CKPT, "%s: tensor '%s' is not described by an object", what, name);
        struct entry *e = &s->entries[s->count++];
        *e = (struct entry){.file = s->map_count};
        TRY(parse_entry(e, name, value, data_bytes, what));
        e->t.data = data + e->begin;
    }
    if (s->count > first) qsort(s->entries + first, (size_t)(s->count - first), sizeof *s->entries, by_place);
    int64_t at = 0;
    for (int i = first; i < s->count; i++) {
        const struct entry *e = &s->entries[i];
        if (e->begin != at)
            return FAIL(STATUS_CKPT,
                        "%s: tensor '%s' begins at byte %lld, but the one before it ends at %lld", what,
                        e->t.name, (long long)e->begin, (long long)at);
        at += e->t.bytes;
    }
    if (at != data_bytes)
        return FAIL(STATUS_CKPT, "%s: the tensors end at byte %lld of %lld", what, (long long)at,
                    (long long)data_bytes);
    return STATUS_OK;
}

/* json: N bytes, a copy of ours. */
static status add_file(struct safetensors *s, const char *json, uint64_t n, const char *file,
                       int64_t file_bytes, const char *what)
{
    json_error_t error;
    json_t *root = json_loadb(json, (size_t)n, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return FAIL(STATUS_CKPT, "%s: header is not JSON: %s at byte %d", what, error.text, error.position);
    int64_t start = 8 + (int64_t)n;
    status st = json_is_object(root) ? add_header(s, root, file_bytes - start, file + start, what)
                                     : FAIL(STATUS_CKPT, "%s: header is not a JSON object", what);
    json_decref(root);
    return st;
}

static status header_length(const uint8_t prefix[8], int64_t file_bytes, const char *what, uint64_t *n)
{
    *n = 0;
    for (int i = 7; i >= 0; i--) *n = *n << 8 | prefix[i];
    if (*n > SAFETENSORS_HEADER_MAX || (int64_t)*n > file_bytes - 8)
        return FAIL(STATUS_CKPT,
                    "%s: a header of %llu bytes is not possible in a file of %lld; is this safetensors?",
                    what, (unsigned long long)*n, (long long)file_bytes);
    return STATUS_OK;
}

static status map_file(struct safetensors *s, const char *path)
{
    int fd;
    int64_t bytes;
    uint8_t prefix[8];
    uint64_t n;
    char *json = NULL;
    TRY(io_open(path, LINKS_FOLLOW, &fd, &bytes)); /* model hubs keep files as symbolic links into a cache */
    status st = STATUS_OK;
    if (bytes < 8)
        TRY_OUT(FAIL(STATUS_CKPT, "%s: %lld bytes are no safetensors file", path, (long long)bytes));
    TRY_OUT(io_pread(fd, path, prefix, 8, 0));
    TRY_OUT(header_length(prefix, bytes, path, &n));
    json = malloc((size_t)n + 1);
    if (!json)
        TRY_OUT(FAIL(STATUS_OUT_OF_MEMORY, "%s: no memory for a header of %llu bytes", path,
                     (unsigned long long)n));
    TRY_OUT(io_pread(fd, path, json, (size_t)n, 8));
    struct mapping *larger = realloc(s->maps, ((size_t)s->map_count + 1) * sizeof *larger);
    if (!larger) TRY_OUT(FAIL(STATUS_OUT_OF_MEMORY, "%s: no memory", path));
    s->maps = larger;
    void *base = mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (base == MAP_FAILED)
        TRY_OUT(FAIL(status_of_errno(errno), "cannot map '%s' of %lld bytes into memory: %s", path,
                     (long long)bytes, strerror(errno)));
    s->maps[s->map_count] = (struct mapping){base, (size_t)bytes};
    st = add_file(s, json, n, base, bytes, path);
    s->map_count++;
out:
    free(json);
    io_close(&fd);
    return st;
}

/* An index may name only files in its own directory, not paths. */
static bool file_name_is_safe(const char *name)
{
    size_t length = strlen(name);
    return length > 12 && length < 256 && !strchr(name, '/') && name[0] != '.' &&
           strcmp(name + length - 12, ".safetensors") == 0;
}

static status open_indexed(struct safetensors *s, const char *index, const json_t *map)
{
    const char *name, *slash = strrchr(index, '/');
    json_t *value, *seen = json_object();
    status st = seen ? STATUS_OK : FAIL(STATUS_OUT_OF_MEMORY, "%s: no memory", index);
    json_object_foreach((json_t *)(uintptr_t)map, name, value)
    {
        const char *file = json_string_value(value);
        if (!file || !file_name_is_safe(file))
            TRY_OUT(
                FAIL(STATUS_CKPT, "%s: '%s' is said to be in a file with an unacceptable name", index, name));
        if (json_object_get(seen, file)) continue;
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%.*s%s", slash ? (int)(slash - index + 1) : 0, index, file);
        if (json_object_set_new(seen, file, json_integer(s->map_count)) != 0)
            TRY_OUT(FAIL(STATUS_OUT_OF_MEMORY, "%s: no memory", index));
        TRY_OUT(map_file(s, path));
    }
    if (s->count) qsort(s->entries, (size_t)s->count, sizeof *s->entries, by_name);
    for (int i = 1; i < s->count; i++)
        if (strcmp(s->entries[i - 1].t.name, s->entries[i].t.name) == 0)
            TRY_OUT(FAIL(STATUS_CKPT, "%s: two of its files hold tensor '%s'", index, s->entries[i].t.name));
    json_object_foreach((json_t *)(uintptr_t)map, name, value)
    {
        const struct safetensor *t = safetensors_find(s, name);
        int file = (int)json_integer_value(json_object_get(seen, json_string_value(value)));
        if (!t || ((const struct entry *)t)->file != file)
            TRY_OUT(
                FAIL(STATUS_CKPT, "%s: tensor '%s' is not in '%s'", index, name, json_string_value(value)));
    }
out:
    json_decref(seen);
    return st;
}

static status open_index(struct safetensors *s, const char *path)
{
    char *text;
    size_t bytes;
    TRY(io_read_file(path, SAFETENSORS_HEADER_MAX, &text, &bytes));
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (!root) return FAIL(STATUS_CKPT, "%s: not JSON: %s (line %d)", path, error.text, error.line);
    const json_t *map = json_object_get(root, "weight_map");
    status st =
        json_is_object(map) ? open_indexed(s, path, map) : FAIL(STATUS_CKPT, "%s: has no weight_map", path);
    json_decref(root);
    return st;
}

static bool ends_with(const char *text, const char *end)
{
    size_t a = strlen(text), b = strlen(end);
    return a >= b && strcmp(text + a - b, end) == 0;
}

static status open_path(struct safetensors *s, const char *path)
{
    char inside[PATH_MAX];
    bool there;
    if (ends_with(path, ".safetensors")) return map_file(s, path);
    if (ends_with(path, ".index.json")) return open_index(s, path);
    snprintf(inside, sizeof inside, "%s/model.safetensors", path);
    TRY(io_exists(inside, &there));
    if (there) return map_file(s, inside);
    snprintf(inside, sizeof inside, "%s/model.safetensors.index.json", path);
    TRY(io_exists(inside, &there));
    if (there) return open_index(s, inside);
    return FAIL(STATUS_CKPT, "'%s' holds neither model.safetensors nor model.safetensors.index.json", path);
}

static status begin(struct safetensors **s)
{
    *s = calloc(1, sizeof **s);
    return *s ? STATUS_OK : FAIL(STATUS_OUT_OF_MEMORY, "no memory to open a safetensors file");
}

static status end(struct safetensors **s, status st)
{
    if (st == STATUS_OK && (*s)->count)
        qsort((*s)->entries, (size_t)(*s)->count, sizeof *(*s)->entries, by_name);
    if (st != STATUS_OK) {
        safetensors_close(*s);
        *s = NULL;
    }
    return st;
}

status safetensors_open(struct safetensors **s, const char *path)
{
    TRY(begin(s));
    return end(s, open_path(*s, path));
}

status safetensors_open_memory(struct safetensors **s, const void *data, int64_t bytes, const char *what)
{
    *s = NULL;
    uint64_t n;
    if (bytes < 8) return FAIL(STATUS_CKPT, "%s: %lld bytes are no safetensors file", what, (long long)bytes);
    TRY(header_length(data, bytes, what, &n));
    TRY(begin(s));
    return end(s, add_file(*s, (const char *)data + 8, n, data, bytes, what));
}

void safetensors_close(struct safetensors *s)
{
    if (!s) return;
    for (int i = 0; i < s->count; i++) free((char *)(uintptr_t)s->entries[i].t.name);
    for (int i = 0; i < s->map_count; i++) munmap(s->maps[i].base, s->maps[i].bytes);
    free(s->entries);
    free(s->maps);
    free(s);
}

int safetensors_count(const struct safetensors *s)
{
    return s->count;
}

const struct safetensor *safetensors_item(const struct safetensors *s, int i)
{
    CHECK(i >= 0 && i < s->count, "tensor %d of %d", i, s->count);
    return &s->entries[i].t;
}

const struct safetensor *safetensors_find(const struct safetensors *s, const char *name)
{
    struct entry key = {.t.name = name};
    return s->count ? bsearch(&key, s->entries, (size_t)s->count, sizeof *s->entries, by_name) : NULL;
}
