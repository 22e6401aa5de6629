/* Any bytes as the body of a manifest, sealed as if by someone who knows how (and as they are): parsed or refused; what is
 * parsed satisfies what the reader relies on, and is written and parsed again as the same. */
#include "train/ckpt_manifest.h"
#include "train/ckpt_pieces.h"
#include "json_mutator.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#define HEAD HEAD_OF("")
#define HEAD_OF(requires)                                                                                    \
    "{\"format\":\"ingot-checkpoint\",\"version\":1,\"requires\":[" requires "],\"writer\":\"ingot\","       \
                                                                             "\"run_id\":"                   \
                                                                             "\"e13373415e9c9e43781bf2edaf0" \
                                                                             "9a3a0\",\"step\":7,\"meta\":{" \
                                                                             "\"loss\":0.5},\"chunk_"        \
                                                                             "bytes\":"                      \
                                                                             "4096,"
#define FILE_OF(number, bytes)                                                                               \
    "{\"name\":\"state-0000" number ".safetensors\",\"bytes\":" bytes                                        \
    ",\"data_start\":4096,\"header_crc32c\":\"5e5380ac\"}"
#define TENSOR(name, dtype, shape, file, offset, bytes, crcs)                                                \
    "{\"name\":\"" name "\",\"dtype\":\"" dtype "\",\"shape\":" shape ",\"file\":" file                      \
    ",\"offset\":" offset ",\"bytes\":" bytes ",\"hash\":\"4de8d78f7134f4b7\",\"crc32c\":[" crcs "]}"
#define PIECE(name, shape, offset, bytes, runs)                                                              \
    "{\"name\":\"" name "\",\"dtype\":\"F32\",\"shape\":" shape                                              \
    ",\"piece\":{\"of\":\"w\",\"shape\":[2,3],\"runs\":" runs "},\"file\":0,\"offset\":" offset              \
    ",\"bytes\":" bytes ",\"hash\":\"4de8d78f7134f4b7\",\"crc32c\":[\"8cb6879e\"]}"
static const char *const samples[] = {
    HEAD "\"files\":[" FILE_OF("0", "4096") "],\"tensors\":[]}",
    HEAD "\"files\":[" FILE_OF("0", "4104") "],\"tensors\":[" TENSOR("s", "I64", "[]", "0", "4096", "8",
                                                                     "\"8cb6879e\"") "]}",
    HEAD "\"files\":[" FILE_OF("0", "4120") "," FILE_OF("1", "9096") "],\"tensors\":[" TENSOR(
        "m/w", "F32", "[2,3]", "0", "4096", "24",
        "\"8cb6879e\"") "," TENSOR("v", "BF16", "[50,50]", "1", "4096", "5000",
                                   "\"8cb6879e\",\"00000000\"") "]}",
    HEAD_OF("\"pieces\"") "\"files\":[" FILE_OF("0", "4136") "],\"tensors\":[" PIECE(
        "w.rank0", "[4]", "4096", "16",
        "[[0,2,3,2]]") "," PIECE("w.rank1", "[2]", "4112", "8",
                                 "[[2,1,3,2]]") "," TENSOR("v", "F32", "[4]", "0", "4120", "16",
                                                           "\"8cb6879e\"") "]}",
    NULL};
static const char *const words[] = {"format",
                                    "version",
                                    "requires",
                                    "run_id",
                                    "step",
                                    "meta",
                                    "chunk_bytes",
                                    "files",
                                    "tensors",
                                    "name",
                                    "bytes",
                                    "data_start",
                                    "header_crc32c",
                                    "dtype",
                                    "shape",
                                    "file",
                                    "offset",
                                    "hash",
                                    "crc32c",
                                    "pieces",
                                    "piece",
                                    "of",
                                    "runs",
                                    "ingot-checkpoint",
                                    "state-00000.safetensors",
                                    "state-00001.safetensors",
                                    "8cb6879e",
                                    "4de8d78f7134f4b7",
                                    "I64",
                                    "F32",
                                    "BF16",
                                    "I8",
                                    "a/b",
                                    "../x",
                                    "/a",
                                    "a b",
                                    "",
                                    NULL};

/* Places, sizes and numbers of checksums that follow from shapes and types, so that other mutations get behind the checks of
 * them: all tensors in the first file. */
static void lay_out(json_t *root)
{
    json_t *tensor, *number, *files = json_object_get(root, "files"), *first = json_array_get(files, 0);
    int64_t at = json_integer_value(json_object_get(first, "data_start"));
    const int64_t chunk = json_integer_value(json_object_get(root, "chunk_bytes"));
    size_t i, k;
    json_array_foreach(json_object_get(root, "tensors"), i, tensor)
    {
        const char *type = json_string_value(json_object_get(tensor, "dtype"));
        struct ckpt_item item = {.dt =
                                     (dtype)(type && dtype_from_name(type) >= 0 ? dtype_from_name(type) : 0)};
        json_array_foreach(json_object_get(tensor, "shape"), k, number) if (item.rank < 4)
            item.shape[item.rank++] = json_integer_value(number);
        int64_t bytes = ckpt_manifest_item_bytes(&item),
                chunks = bytes >= 0 && chunk > 0 ? ckpt_manifest_chunks(bytes, chunk) : 0;
        json_object_set_new(tensor, "file", json_integer(0));
        json_object_set_new(tensor, "offset", json_integer(at));
        json_object_set_new(tensor, "bytes", json_integer(bytes));
        json_t *crcs = json_array();
        for (int64_t c = 0; c < chunks && c < 16; c++) json_array_append_new(crcs, json_string("8cb6879e"));
        json_object_set_new(tensor, "crc32c", crcs);
        if (__builtin_add_overflow(at, bytes, &at)) return;
    }
    while (json_array_size(files) > 1) json_array_remove(files, 1);
    if (json_is_object(first)) json_object_set_new(first, "bytes", json_integer(at));
}

/* The body, which ends in a comma where the seal follows, or one input in eight a whole manifest with its seal. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    struct json_mutator m = {.samples = samples, .words = words, .state = seed};
    if (mutator_below(&m, 8) == 0) return LLVMFuzzerMutate(data, size, max_size);
    char *closed = malloc(size + 1);
    CHECK(closed, "no memory");
    size_t n = size;
    if (size > 0) memcpy(closed, data, size);
    while (n > 0 && closed[n - 1] != ',' && closed[n - 1] != '}') n--;
    if (n > 0) closed[n - 1] = '}';
    json_t *root = mutator_tree(&m, closed, n);
    free(closed);
    if (mutator_below(&m, 3) != 0) lay_out(root);
    char *text = json_dumps(root, JSON_ENCODE_ANY | JSON_COMPACT), *sealed = NULL;
    json_decref(root);
    n = text ? strlen(text) : 0;
    if (n > 2 && text[n - 1] == '}' && text[n - 2] != '{') text[n - 1] = ',';
    if (text && mutator_below(&m, 8) == 0) sealed = ckpt_manifest_seal(text, n, &n);
    bool fits = n > 0 && n <= max_size;
    if (fits) memcpy(data, sealed ? sealed : text, n);
    free(sealed);
    free(text);
    return fits ? n : LLVMFuzzerMutate(data, size, max_size);
}

/* ckpt_stretch_fn: counts elements, which must be in the tensor. */
struct walk {
    int64_t elements, sum;
};
static bool count_stretch(void *ctx, int64_t at, int64_t to, int64_t count)
{
    struct walk *w = ctx;
    CHECK(count > 0 && at == w->sum && to >= 0 && count <= w->elements - to, "a stretch at %lld",
          (long long)to);
    w->sum += count;
    return false;
}

/* Each stored tensor belongs to one whole one, and pieces fill it. */
static void check_whole(const struct ckpt_manifest *m)
{
    int parts = 0;
    for (int i = 0; i < m->whole_count; i++) {
        const struct ckpt_manifest_whole *w = &m->whole[i];
        const int64_t elements = ckpt_manifest_item_bytes(&w->item) / (int64_t)dtype_bytes(w->item.dt);
        int64_t sum = 0;
        for (int k = 0; k < w->count && w->in_pieces; k++) {
            const struct ckpt_item *item = &m->tensors[m->stored[w->first + k]].item;
            struct walk one = {elements, 0};
            if (item->shape[0] > 1 << 20) return; /* as many as a test may walk */
            (void)ckpt_piece_walk(item->piece, 0, item->shape[0], count_stretch, &one);
            CHECK(one.sum == item->shape[0], "%lld elements", (long long)one.sum);
            sum += one.sum;
        }
        CHECK(!w->in_pieces || sum == elements, "%lld elements", (long long)sum);
        parts += w->count;
    }
    CHECK(parts == m->tensor_count, "%d parts of %d", parts, m->tensor_count);
}

static void check(const struct ckpt_manifest *m)
{
    int64_t chunks = 0;
    for (int i = 0; i < m->tensor_count; i++) {
        const struct ckpt_manifest_tensor *t = &m->tensors[i];
        CHECK(t->file >= 0 && t->file < m->file_count, "file %d", t->file);
        CHECK(t->offset >= m->files[t->file].data_start, "offset %lld", (long long)t->offset);
        CHECK(t->bytes >= 0 && t->bytes <= m->files[t->file].bytes - t->offset, "bytes %lld",
              (long long)t->bytes);
        CHECK(t->bytes == ckpt_manifest_item_bytes(&t->item), "bytes %lld", (long long)t->bytes);
        CHECK(!ckpt_manifest_name_fault(t->item.name), "name '%s'", t->item.name);
        CHECK(t->chunk_first == chunks, "chunk %lld", (long long)t->chunk_first);
        chunks += ckpt_manifest_chunks(t->bytes, m->chunk_bytes);
    }
    CHECK(chunks == m->crc_count, "%lld checksums", (long long)m->crc_count);
    check_whole(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct ckpt_manifest m, again;
    if (ckpt_manifest_parse(&m, (const char *)data, bytes, "input") == STATUS_OK) ckpt_manifest_free(&m);
    size_t sealed_bytes, text_bytes;
    char *sealed = ckpt_manifest_seal((const char *)data, bytes, &sealed_bytes), *text;
    CHECK(sealed, "no memory");
    if (ckpt_manifest_parse(&m, sealed, sealed_bytes, "input") == STATUS_OK) {
        check(&m);
        CHECK(ckpt_manifest_format(&m, &text, &text_bytes) == STATUS_OK, "%s", status_message());
        CHECK(ckpt_manifest_parse(&again, text, text_bytes, "again") == STATUS_OK, "%s", status_message());
        CHECK(again.whole_count == m.whole_count && again.tensor_count == m.tensor_count &&
                  again.crc_count == m.crc_count && again.step == m.step,
              "differs");
        ckpt_manifest_free(&again);
        ckpt_manifest_free(&m);
        free(text);
    }
    free(sealed);
    return 0;
}
