#include "train/ckpt_manifest.h"
#include "base/memory.h"
#include "base/seal.h"
#include "train/ckpt_pieces.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The last line: `"sha256": "` 64 digits `"` newline `}` newline. */
#define SEAL_HEAD "\"sha256\": \""
#define SEAL_TAIL "\"\n}\n"
enum { SEAL_BYTES = sizeof SEAL_HEAD - 1 + 64 + sizeof SEAL_TAIL - 1 };

int64_t ckpt_manifest_item_bytes(const struct ckpt_item *item)
{
    int64_t bytes = (int64_t)dtype_bytes(item->dt);
    for (int i = 0; i < item->rank; i++)
        if (item->shape[i] < 0 || __builtin_mul_overflow(bytes, item->shape[i], &bytes)) return -1;
    return bytes;
}

int64_t ckpt_manifest_chunks(int64_t bytes, int64_t chunk_bytes)
{
    return bytes / chunk_bytes + (bytes % chunk_bytes != 0);
}

const char *ckpt_manifest_name_fault(const char *name)
{
    size_t length = strnlen(name, sizeof((struct ckpt_item *)0)->name);
    if (length == 0) return "is empty";
    if (length == sizeof((struct ckpt_item *)0)->name) return "is longer than 127 bytes";
    if (name[0] == '/' || name[length - 1] == '/') return "begins or ends with '/'";
    if (strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/-") != length)
        return "has other characters than letters, digits, '.', '_', '-' and '/'";
    if (strstr(name, "..")) return "has '..' in it";
    return NULL;
}

void ckpt_manifest_free(struct ckpt_manifest *m)
{
    json_decref(m->meta);
    free(m->files);
    free(m->tensors);
    free(m->crcs);
    free(m->whole);
    free(m->stored);
    for (int i = 0; i < m->piece_count; i++) free(m->pieces[i]);
    free(m->pieces);
    *m = (struct ckpt_manifest){0};
}

char *ckpt_manifest_seal(const char *body, size_t bytes, size_t *sealed_bytes)
{
    char *text = malloc(bytes + SEAL_BYTES + 1);
    if (!text) return NULL;
    memcpy(text, body, bytes);
    seal_write(body, bytes, SEAL_HEAD, SEAL_TAIL, text + bytes);
    *sealed_bytes = bytes + SEAL_BYTES;
    return text;
}

bool ckpt_manifest_sealed(const char *text, size_t bytes)
{
    char seal[SEAL_BYTES + 1];
    if (bytes < SEAL_BYTES) return false;
    seal_write(text, bytes - SEAL_BYTES, SEAL_HEAD, SEAL_TAIL, seal);
    return memcmp(text + bytes - SEAL_BYTES, seal, SEAL_BYTES) == 0;
}

/* ---- parsing: each function parses the part of the JSON that it is named after ---- */

static status get_count(const json_t *o, const char *key, int64_t *out, const char *what)
{
    const json_t *n = json_object_get(o, key);
    *out = json_integer_value(n);
    if (!json_is_integer(n) || *out < 0) return FAIL(STATUS_CKPT, "%s: '%s' is not a count", what, key);
    return STATUS_OK;
}

/* Exactly `digits` lower-case hex digits. */
static bool get_hex(const json_t *text, int digits, uint64_t *out)
{
    const char *s = json_string_value(text);
    if (!s || strlen(s) != (size_t)digits || strspn(s, "0123456789abcdef") != (size_t)digits) return false;
    *out = strtoull(s, NULL, 16);
    return true;
}

/* *pieces: whether tensors may be stored in pieces. */
static status parse_requires(const json_t *requires, bool *pieces, const char *what)
{
    size_t i;
    const json_t *one;
    *pieces = false;
    if (!json_is_array(requires)) return FAIL(STATUS_CKPT, "%s: has no list 'requires'", what);
    json_array_foreach(requires, i, one)
    {
        const char *feature = json_string_value(one);
        if (!feature || strcmp(feature, "pieces") != 0)
            return FAIL(STATUS_CKPT,
                        "%s: requires the feature '%.60s', which ingot %s lacks; use a newer ingot", what,
                        feature ? feature : "?", INGOT_VERSION);
        *pieces = true;
    }
    return STATUS_OK;
}

static status parse_head(struct ckpt_manifest *m, const json_t *root, bool *pieces, const char *what)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    if (!format || strcmp(format, "ingot-checkpoint") != 0)
        return FAIL(STATUS_CKPT, "%s: is not the manifest of an ingot checkpoint", what);
    int64_t version;
    TRY(get_count(root, "version", &version, what));
    if (version != CKPT_VERSION)
        return FAIL(STATUS_CKPT, "%s: has format version %lld; this is ingot %s, which reads version %d",
                    what, (long long)version, INGOT_VERSION, CKPT_VERSION);
    TRY(parse_requires(json_object_get(root, "requires"), pieces, what));
    const json_t *id = json_object_get(root, "run_id");
    uint64_t unused;
    if (!get_hex(id, 32, &unused)) return FAIL(STATUS_CKPT, "%s: run_id is not 32 hex digits", what);
    snprintf(m->run_id, sizeof m->run_id, "%s", json_string_value(id));
    TRY(get_count(root, "step", &m->step, what));
    TRY(get_count(root, "chunk_bytes", &m->chunk_bytes, what));
    int64_t c = m->chunk_bytes;
    if (c < CKPT_CHUNK_BYTES_MIN || c > CKPT_CHUNK_BYTES_MAX || (c & (c - 1)))
        return FAIL(STATUS_CKPT, "%s: chunk_bytes %lld is not a power of two from 4 Ki to 16 Mi", what,
                    (long long)c);
    m->meta = json_incref(json_object_get(root, "meta"));
    return m->meta ? STATUS_OK : FAIL(STATUS_CKPT, "%s: has no 'meta'", what);
}

static status parse_files(struct ckpt_manifest *m, const json_t *files, const char *what)
{
    size_t count = json_array_size(files);
    if (!json_is_array(files) || count == 0 || count > CKPT_FILES_MAX)
        return FAIL(STATUS_CKPT, "%s: 'files' is not a list of 1 to %d files", what, CKPT_FILES_MAX);
    m->files = calloc(count, sizeof *m->files);
    if (!m->files) return FAIL(STATUS_OUT_OF_MEMORY, "%s: no memory for %zu files", what, count);
    m->file_count = (int)count;
    for (int i = 0; i < m->file_count; i++) {
        const json_t *o = json_array_get(files, (size_t)i);
        struct ckpt_manifest_file *f = &m->files[i];
        snprintf(f->name, sizeof f->name, "state-%05d.safetensors", i);
        const char *name = json_string_value(json_object_get(o, "name"));
        if (!name || strcmp(name, f->name) != 0)
            return FAIL(STATUS_CKPT, "%s: file %d is not named '%s'", what, i, f->name);
        TRY(get_count(o, "bytes", &f->bytes, what));
        TRY(get_count(o, "data_start", &f->data_start, what));
        uint64_t crc;
        if (!get_hex(json_object_get(o, "header_crc32c"), 8, &crc))
            return FAIL(STATUS_CKPT, "%s: header_crc32c of '%s' is not 8 hex digits", what, f->name);
        f->header_crc = (uint32_t)crc;
        /* A safetensors header is at most 100 MB; 8 bytes of length and padding come on top. */
        if (f->data_start < 8 || f->data_start > 100 << 20 || f->data_start > f->bytes)
            return FAIL(STATUS_CKPT, "%s: data of '%s' begin at %lld of %lld bytes", what, f->name,
                        (long long)f->data_start, (long long)f->bytes);
    }
    return STATUS_OK;
}

static status parse_shape(int *rank, int64_t out[4], const json_t *shape, const char *name, const char *what)
{
    size_t count = json_array_size(shape);
    if (!json_is_array(shape) || count > 4)
        return FAIL(STATUS_CKPT, "%s: tensor '%s' has no shape of at most 4 numbers", what, name);
    *rank = (int)count;
    for (int i = 0; i < *rank; i++) {
        const json_t *n = json_array_get(shape, (size_t)i);
        if (!json_is_integer(n) || json_integer_value(n) < 0)
            return FAIL(STATUS_CKPT, "%s: tensor '%s' has a shape that is not made of counts", what, name);
        out[i] = json_integer_value(n);
    }
    return STATUS_OK;
}

static status parse_runs(struct ckpt_piece *p, const json_t *runs, const struct ckpt_item *item,
                         const char *what)
{
    struct ckpt_item whole = {.dt = item->dt, .rank = p->rank};
    memcpy(whole.shape, p->shape, sizeof whole.shape);
    const int64_t bytes = ckpt_manifest_item_bytes(&whole);
    int64_t sum = 0;
    for (int i = 0; i < p->run_count; i++) {
        const json_t *run = json_array_get(runs, (size_t)i);
        int64_t n[4] = {0};
        for (size_t k = 0; k < 4; k++) n[k] = json_integer_value(json_array_get(run, k));
        p->runs[i] = (struct ckpt_run){n[0], n[1], n[2], n[3]};
    }
    if (bytes < 0 || item->rank != 1 ||
        !ckpt_runs_valid(p->runs, p->run_count, bytes / (int64_t)dtype_bytes(item->dt), &sum) ||
        sum != item->shape[0])
        return FAIL(STATUS_CKPT, "%s: the piece '%s' does not fit tensor '%s'", what, item->name, p->of);
    return STATUS_OK;
}

/* The key `piece` of a tensor, if there is one. */
static status parse_piece(struct ckpt_manifest *m, struct ckpt_item *item, const json_t *o, const char *what)
{
    const json_t *piece = json_object_get(o, "piece"), *runs = json_object_get(piece, "runs");
    if (piece == NULL) return STATUS_OK;
    const char *of = json_string_value(json_object_get(piece, "of"));
    const char *fault = of ? ckpt_manifest_name_fault(of) : "is missing";
    if (fault)
        return FAIL(STATUS_CKPT, "%s: the name of the tensor of piece '%s' %s", what, item->name, fault);
    const size_t count = json_array_size(runs);
    if (count > CKPT_RUNS_MAX)
        return FAIL(STATUS_CKPT, "%s: the piece '%s' has more than %d runs", what, item->name, CKPT_RUNS_MAX);
    struct ckpt_piece *p = calloc(1, sizeof *p + count * sizeof p->runs[0]);
    if (p == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "%s: no memory for %zu runs", what, count);
    m->pieces[m->piece_count++] = p;
    item->piece = p;
    p->run_count = (int)count;
    snprintf(p->of, sizeof p->of, "%s", of);
    TRY(parse_shape(&p->rank, p->shape, json_object_get(piece, "shape"), of, what));
    return parse_runs(p, runs, item, what);
}

static status parse_item(struct ckpt_item *item, const json_t *o, int index, const char *what)
{
    const char *name = json_string_value(json_object_get(o, "name"));
    const char *fault = name ? ckpt_manifest_name_fault(name) : "is missing";
    if (fault) return FAIL(STATUS_CKPT, "%s: the name of tensor %d %s", what, index, fault);
    snprintf(item->name, sizeof item->name, "%s", name);
    const char *type = json_string_value(json_object_get(o, "dtype"));
    int dt = type ? dtype_from_name(type) : -1;
    if (dt < 0) return FAIL(STATUS_CKPT, "%s: tensor '%s' has an unknown dtype", what, name);
    item->dt = (dtype)dt;
    return parse_shape(&item->rank, item->shape, json_object_get(o, "shape"), name, what);
}

/* Checksums of tensor t, appended to m->crcs. */
static status parse_crcs(struct ckpt_manifest *m, const struct ckpt_manifest_tensor *t, const json_t *list,
                         const char *what)
{
    int64_t count = ckpt_manifest_chunks(t->bytes, m->chunk_bytes);
    if (!json_is_array(list) || (int64_t)json_array_size(list) != count)
        return FAIL(STATUS_CKPT, "%s: tensor '%s' has not %lld checksums", what, t->item.name,
                    (long long)count);
    for (int64_t i = 0; i < count; i++) {
        uint64_t crc;
        if (!get_hex(json_array_get(list, (size_t)i), 8, &crc))
            return FAIL(STATUS_CKPT, "%s: a checksum of tensor '%s' is not 8 hex digits", what, t->item.name);
        m->crcs[m->crc_count++] = (uint32_t)crc;
    }
    return STATUS_OK;
}

/* Tensor i, which must be at *at of file *file or begin the next file. Advances both to its end. */
static status parse_tensor(struct ckpt_manifest *m, int i, const json_t *o, int *file, int64_t *at,
                           const char *what)
{
    struct ckpt_manifest_tensor *t = &m->tensors[i];
    TRY(parse_item(&t->item, o, i, what));
    if (m->pieces) TRY(parse_piece(m, &t->item, o, what));
    int64_t index;
    TRY(get_count(o, "file", &index, what));
    TRY(get_count(o, "offset", &t->offset, what));
    TRY(get_count(o, "bytes", &t->bytes, what));
    while (*file < index && *file + 1 < m->file_count && *at == m->files[*file].bytes)
        *at = m->files[++*file].data_start;
    if (index != *file || t->offset != *at)
        return FAIL(STATUS_CKPT, "%s: tensor '%s' is not where the one before it ends", what, t->item.name);
    t->file = *file;
    if (t->bytes != ckpt_manifest_item_bytes(&t->item) || t->bytes > m->files[*file].bytes - t->offset)
        return FAIL(STATUS_CKPT, "%s: tensor '%s' of %lld bytes does not fit its shape or its file", what,
                    t->item.name, (long long)t->bytes);
    *at += t->bytes;
    if (!get_hex(json_object_get(o, "hash"), 16, &t->hash))
        return FAIL(STATUS_CKPT, "%s: the hash of tensor '%s' is not 16 hex digits", what, t->item.name);
    t->chunk_first = m->crc_count;
    return parse_crcs(m, t, json_object_get(o, "crc32c"), what);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct ckpt_manifest_tensor *const *)a)->item.name,
                  (*(const struct ckpt_manifest_tensor *const *)b)->item.name);
}

static status check_names_unique(const struct ckpt_manifest *m, const char *what)
{
    const struct ckpt_manifest_tensor **order = malloc(((size_t)m->tensor_count + 1) * sizeof *order);
    if (!order) return FAIL(STATUS_OUT_OF_MEMORY, "%s: no memory for %d tensors", what, m->tensor_count);
    for (int i = 0; i < m->tensor_count; i++) order[i] = &m->tensors[i];
    qsort(order, (size_t)m->tensor_count, sizeof *order, by_name);
    status st = STATUS_OK;
    for (int i = 1; i < m->tensor_count && st == STATUS_OK; i++)
        if (by_name(&order[i - 1], &order[i]) == 0)
            st = FAIL(STATUS_CKPT, "%s: lists tensor '%s' twice", what, order[i]->item.name);
    free(order);
    return st;
}

static status parse_tensors(struct ckpt_manifest *m, const json_t *tensors, bool pieces, const char *what)
{
    size_t count = json_array_size(tensors), crcs = 0;
    if (!json_is_array(tensors) || count > CKPT_TENSORS_MAX)
        return FAIL(STATUS_CKPT, "%s: 'tensors' is not a list of at most %d", what, CKPT_TENSORS_MAX);
    for (size_t i = 0; i < count; i++)
        crcs += json_array_size(json_object_get(json_array_get(tensors, i), "crc32c"));
    m->tensors = calloc(count + 1, sizeof *m->tensors);
    m->crcs = calloc(crcs + 1, sizeof *m->crcs);
    if (pieces) m->pieces = calloc(count + 1, sizeof(struct ckpt_piece *));
    if (!m->tensors || !m->crcs || (pieces && !m->pieces))
        return FAIL(STATUS_OUT_OF_MEMORY, "%s: no memory for %zu tensors", what, count);
    m->tensor_count = (int)count;
    int file = 0;
    int64_t at = m->files[0].data_start;
    for (int i = 0; i < m->tensor_count; i++)
        TRY(parse_tensor(m, i, json_array_get(tensors, (size_t)i), &file, &at, what));
    while (file + 1 < m->file_count && at == m->files[file].bytes) at = m->files[++file].data_start;
    if (file + 1 != m->file_count || at != m->files[file].bytes)
        return FAIL(STATUS_CKPT, "%s: the tensors do not fill '%s'", what, m->files[file].name);
    TRY(check_names_unique(m, what));
    return ckpt_pieces_index(m, what);
}

static status parse_root(struct ckpt_manifest *m, const json_t *root, const char *what)
{
    if (!json_is_object(root)) return FAIL(STATUS_CKPT, "%s: is not a JSON object", what);
    bool pieces = false;
    TRY(parse_head(m, root, &pieces, what));
    TRY(parse_files(m, json_object_get(root, "files"), what));
    return parse_tensors(m, json_object_get(root, "tensors"), pieces, what);
}

status ckpt_manifest_parse(struct ckpt_manifest *m, const char *text, size_t bytes, const char *what)
{
    *m = (struct ckpt_manifest){0};
    if (bytes > CKPT_BYTES_MAX)
        return FAIL(STATUS_CKPT, "%s: %zu bytes are too many for a manifest", what, bytes);
    if (bytes < SEAL_BYTES)
        return FAIL(STATUS_CKPT, "%s: is cut short or no manifest (%zu bytes)", what, bytes);
    if (!ckpt_manifest_sealed(text, bytes))
        return FAIL(STATUS_CKPT, "%s: its SHA-256 does not match its contents: damaged or edited", what);
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!root) return FAIL(STATUS_CKPT, "%s: not JSON: %s (line %d)", what, error.text, error.line);
    status st = parse_root(m, root, what);
    json_decref(root);
    if (st != STATUS_OK) ckpt_manifest_free(m);
    return st;
}

/* ---- writing: one line per file and tensor, for people and for diff ---- */

static void print_shape(FILE *out, int rank, const int64_t *shape)
{
    fprintf(out, "\"shape\": [");
    for (int i = 0; i < rank; i++) fprintf(out, "%s%lld", i ? ", " : "", (long long)shape[i]);
    fprintf(out, "], ");
}

static void print_piece(FILE *out, const struct ckpt_piece *p)
{
    fprintf(out, "\"piece\": {\"of\": \"%s\", ", p->of);
    print_shape(out, p->rank, p->shape);
    fprintf(out, "\"runs\": [");
    for (int i = 0; i < p->run_count; i++)
        fprintf(out, "%s[%lld, %lld, %lld, %lld]", i ? ", " : "", (long long)p->runs[i].begin,
                (long long)p->runs[i].length, (long long)p->runs[i].stride, (long long)p->runs[i].times);
    fprintf(out, "]}, ");
}

static void print_tensor(FILE *out, const struct ckpt_manifest *m, const struct ckpt_manifest_tensor *t)
{
    fprintf(out, "{\"name\": \"%s\", \"dtype\": \"%s\", ", t->item.name, dtype_name(t->item.dt));
    print_shape(out, t->item.rank, t->item.shape);
    if (t->item.piece) print_piece(out, t->item.piece);
    fprintf(out, "\"file\": %d, \"offset\": %lld, \"bytes\": %lld, \"hash\": \"%016llx\", \"crc32c\": [",
            t->file, (long long)t->offset, (long long)t->bytes, (unsigned long long)t->hash);
    int64_t chunks = ckpt_manifest_chunks(t->bytes, m->chunk_bytes);
    for (int64_t i = 0; i < chunks; i++)
        fprintf(out, "%s\"%08x\"", i ? ", " : "", m->crcs[t->chunk_first + i]);
    fprintf(out, "]}");
}

static status print_body(FILE *out, const struct ckpt_manifest *m)
{
    /* 17 digits restore every double exactly. */
    char *meta =
        json_dumps(m->meta, JSON_ENCODE_ANY | JSON_SORT_KEYS | JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    if (!meta)
        return FAIL(STATUS_OUT_OF_MEMORY, "the meta data of step %lld cannot be written as JSON",
                    (long long)m->step);
    bool pieces = false;
    for (int i = 0; i < m->tensor_count; i++) pieces = pieces || m->tensors[i].item.piece;
    fprintf(out, "{\n\"format\": \"ingot-checkpoint\",\n\"version\": %d,\n\"requires\": [%s],\n",
            CKPT_VERSION, pieces ? "\"pieces\"" : "");
    fprintf(out, "\"writer\": \"ingot %s\",\n\"run_id\": \"%s\",\n\"step\": %lld,\n", INGOT_VERSION,
            m->run_id, (long long)m->step);
    fprintf(out, "\"meta\": %s,\n\"chunk_bytes\": %lld,\n\"files\": [", meta, (long long)m->chunk_bytes);
    free(meta);
    for (int i = 0; i < m->file_count; i++) {
        const struct ckpt_manifest_file *f = &m->files[i];
        fprintf(out,
                "%s\n{\"name\": \"%s\", \"bytes\": %lld, \"data_start\": %lld, \"header_crc32c\": \"%08x\"}",
                i ? "," : "", f->name, (long long)f->bytes, (long long)f->data_start, f->header_crc);
    }
    fprintf(out, "\n],\n\"tensors\": [");
    for (int i = 0; i < m->tensor_count; i++) {
        fprintf(out, "%s\n", i ? "," : "");
        print_tensor(out, m, &m->tensors[i]);
    }
    fprintf(out, "\n],\n");
    return STATUS_OK;
}

status ckpt_manifest_format(const struct ckpt_manifest *m, char **text, size_t *bytes)
{
    char *body = NULL;
    size_t body_bytes = 0;
    *text = NULL;
    FILE *out = memory_stream(&body, &body_bytes);
    status st = print_body(out, m);
    memory_stream_close(out);
    if (st == STATUS_OK) *text = ckpt_manifest_seal(body, body_bytes, bytes);
    free(body);
    if (st == STATUS_OK && !*text)
        st = FAIL(STATUS_OUT_OF_MEMORY, "no memory for the manifest of step %lld", (long long)m->step);
    if (st == STATUS_OK && *bytes > CKPT_BYTES_MAX) {
        free(*text);
        *text = NULL;
        st = FAIL(STATUS_CKPT, "the manifest of %d tensors would have %zu bytes; %d are allowed",
                  m->tensor_count, *bytes, CKPT_BYTES_MAX);
    }
    return st;
}
