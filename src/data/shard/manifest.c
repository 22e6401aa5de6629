#include "data/shard/manifest.h"

#include "base/io.h"
#include "base/seal.h"
#include "base/utf8.h"
#include "data/text/array.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MANIFEST_BYTES_MAX = 256 << 20 };

/* The beginning of the text: what follows is what the digits are of. */
#define SEAL_HEAD "{\n\"sha256\": \""
#define SEAL_TAIL "\",\n"
enum { SEAL_AT = sizeof SEAL_HEAD - 1, SEAL_BYTES = SEAL_AT + 64 + sizeof SEAL_TAIL - 1 };

/* A text without a seal is of an older ingot, or was edited. If the right digits are in their place, it is not: the key
 * before them is damaged. */
static status check_seal(const char *path, const char *text, size_t bytes, bool has_key)
{
    char seal[SEAL_BYTES + 1];
    if (bytes < SEAL_BYTES) return has_key ? FAIL(STATUS_DATA, "%s: cut short", path) : STATUS_OK;
    seal_write(text + SEAL_BYTES, bytes - SEAL_BYTES, SEAL_HEAD, SEAL_TAIL, seal);
    if (memcmp(text, seal, SEAL_BYTES) == 0) return STATUS_OK;
    if (!has_key && memcmp(text + SEAL_AT, seal + SEAL_AT, 64) != 0) return STATUS_OK;
    return FAIL(
        STATUS_DATA,
        "%s: its SHA-256 does not match its contents: damaged (if it was edited on purpose, remove the "
        "line \"sha256\")",
        path);
}

static const char *const eod_words[] = {
#define X(value, word) [EOD_##value] = (word),
    EOD_WORDS(X)
#undef X
};
enum { EOD_COUNT = sizeof eod_words / sizeof eod_words[0] };

struct manifest_shard *manifest_add(struct manifest *m, const char *file, const char *split)
{
    struct manifest_shard *more = realloc(m->shards, (size_t)(m->count + 1) * sizeof *more);
    MEMORY_CHECK(more, "no memory for %d rows of a manifest", m->count + 1);
    m->shards = more;
    struct manifest_shard *row = &m->shards[m->count++];
    *row = (struct manifest_shard){.file = strdup(file), .split = strdup(split)};
    MEMORY_CHECK(row->file && row->split, "no memory for a name");
    return row;
}

struct manifest_input *manifest_add_input(struct manifest *m, const char *path)
{
    struct manifest_input *more = realloc(m->inputs, (size_t)(m->input_count + 1) * sizeof *more);
    MEMORY_CHECK(more, "no memory for %d inputs of a manifest", m->input_count + 1);
    m->inputs = more;
    struct manifest_input *input = &m->inputs[m->input_count++];
    *input = (struct manifest_input){.path = strdup(path)};
    MEMORY_CHECK(input->path, "no memory for a name");
    return input;
}

void manifest_free(struct manifest *m)
{
    for (int i = 0; i < m->input_count; i++) free(m->inputs[i].path);
    free(m->inputs);
    for (int i = 0; i < m->count; i++) {
        free(m->shards[i].file);
        free(m->shards[i].split);
        shard_blocks_free(&m->shards[i].blocks);
    }
    free(m->shards);
    *m = (struct manifest){0};
}

struct manifest_sum manifest_split(const struct manifest *m, const char *split)
{
    struct manifest_sum sum = {0};
    for (int i = 0; i < m->count; i++) {
        const struct manifest_shard *row = &m->shards[i];
        if (strcmp(row->split, split) != 0) continue;
        sum.shards++;
        sum.tokens += row->tokens;
        sum.documents += row->documents;
        sum.text_bytes += row->text_bytes;
    }
    return sum;
}

bool manifest_prefix(const char *shard_path, char *prefix, size_t size)
{
    /* PREFIX _ SPLIT _ NNNNNN .bin */
    static const char *const ends[] = {".bin", ".npy", ".idx", ".mask"};
    const char *dot = strrchr(shard_path, '.');
    size_t end_of = 0;
    while (dot && end_of < 4 && strcmp(dot, ends[end_of]) != 0) end_of++;
    if (!dot || end_of == 4) return false;
    size_t at = (size_t)(dot - shard_path), digits = 0;
    while (at > 0 && shard_path[at - 1] >= '0' && shard_path[at - 1] <= '9') at--, digits++;
    if (digits < 6 || at < 2 || shard_path[at - 1] != '_') return false;
    size_t end = at - 1;
    at = end;
    while (at > 0 && shard_path[at - 1] != '_' && shard_path[at - 1] != '/') at--;
    if (at < 2 || at == end || shard_path[at - 1] != '_') return false;
    if (at > size) return false;
    memcpy(prefix, shard_path, at - 1);
    prefix[at - 1] = 0;
    return true;
}

static status want_int(const char *path, const json_t *o, const char *key, int64_t least, int64_t most,
                       int64_t *out)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_integer(v)) return FAIL(STATUS_DATA, "%s: '%s' is missing or not a whole number", path, key);
    *out = json_integer_value(v);
    if (*out < least || *out > most)
        return FAIL(STATUS_DATA, "%s: '%s' is %lld, expected %lld to %lld", path, key, (long long)*out,
                    (long long)least, (long long)most);
    return STATUS_OK;
}

static status want_text(const char *path, const json_t *o, const char *key, const char **out)
{
    const json_t *v = json_object_get(o, key);
    *out = json_string_value(v); /* jansson refuses NUL inside strings, so lengths agree */
    return *out ? STATUS_OK : FAIL(STATUS_DATA, "%s: '%s' is missing or not text", path, key);
}

static status copy_text(const char *path, const json_t *o, const char *key, char *out, size_t size)
{
    const char *text;
    TRY(want_text(path, o, key, &text));
    if (strlen(text) >= size)
        return FAIL(STATUS_DATA, "%s: '%s' has %zu bytes, at most %zu fit", path, key, strlen(text),
                    size - 1);
    memcpy(out, text, strlen(text) + 1);
    return STATUS_OK;
}

/* Sixteen hexadecimal digits. */
static status want_hash(const char *path, const json_t *o, const char *key, uint64_t *out)
{
    const char *hash;
    TRY(want_text(path, o, key, &hash));
    if (strlen(hash) != 16 || strspn(hash, "0123456789abcdef") != 16)
        return FAIL(STATUS_DATA, "%s: '%s' is '%s', expected 16 hexadecimal digits", path, key, hash);
    *out = strtoull(hash, NULL, 16);
    return STATUS_OK;
}

static status read_inputs(struct manifest *m, const char *path, const json_t *root)
{
    const json_t *rows = json_object_get(root, "inputs"), *o = json_object_get(root, "duplicates");
    if (!json_is_array(rows)) return FAIL(STATUS_DATA, "%s: 'inputs' is missing or not a list", path);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const char *name;
        TRY(want_text(path, row, "path", &name));
        struct manifest_input *input = manifest_add_input(m, name);
        TRY(want_int(path, row, "bytes", 0, INT64_MAX, &input->bytes));
        TRY(want_hash(path, row, "xxh64", &input->xxh64));
    }
    if (!o) return STATUS_OK;
    m->duplicates.counted = true;
    m->duplicates.removed = json_is_true(json_object_get(o, "removed"));
    TRY(want_int(path, o, "documents", 0, INT64_MAX, &m->duplicates.documents));
    TRY(want_int(path, o, "text_bytes", 0, INT64_MAX, &m->duplicates.text_bytes));
    m->duplicates.near_removed = json_object_get(o, "near_documents") != NULL;
    if (!m->duplicates.near_removed) return STATUS_OK;
    TRY(want_int(path, o, "near_documents", 0, INT64_MAX, &m->duplicates.near_documents));
    return want_int(path, o, "near_text_bytes", 0, INT64_MAX, &m->duplicates.near_text_bytes);
}

/* 16 hexadecimal digits for each block of `bytes` bytes of tokens. */
static status read_blocks(struct manifest_shard *row, const char *path, const json_t *o, int64_t bytes,
                          int width)
{
    const int64_t count = bytes ? (row->tokens * width + bytes - 1) / bytes : 0;
    const char *text;
    if (count == 0 || !json_object_get(o, "block_xxh3")) return STATUS_OK;
    TRY(want_text(path, o, "block_xxh3", &text));
    if (strlen(text) != (size_t)count * 16 || strspn(text, "0123456789abcdef") != strlen(text))
        return FAIL(STATUS_DATA,
                    "%s: 'block_xxh3' of %s: 16 hexadecimal digits for each of %lld blocks are expected",
                    path, row->file, (long long)count);
    TRY(array_new(&row->blocks.xxh3, (size_t)count, sizeof *row->blocks.xxh3));
    row->blocks.count = count;
    row->blocks.bytes = bytes;
    for (int64_t i = 0; i < count; i++) {
        char digits[17];
        snprintf(digits, sizeof digits, "%.16s", text + 16 * i);
        row->blocks.xxh3[i] = strtoull(digits, NULL, 16);
    }
    return STATUS_OK;
}

static status read_row(const char *path, const json_t *o, int64_t block_bytes, struct manifest *m)
{
    const char *file, *split;
    TRY(want_text(path, o, "file", &file));
    TRY(want_text(path, o, "split", &split));
    if (!*file || strchr(file, '/'))
        return FAIL(STATUS_DATA, "%s: shard file '%s': a name without directories is expected", path, file);
    struct manifest_shard *row = manifest_add(m, file, split);
    int64_t bytes;
    TRY(want_int(path, o, "tokens", 0, m->format == SHARD_LLMC ? INT32_MAX : INT64_MAX / 16, &row->tokens));
    TRY(want_int(path, o, "documents", 0, row->tokens, &row->documents));
    TRY(want_int(path, o, "text_bytes", 0, INT64_MAX / 2, &row->text_bytes));
    int64_t file_bytes = shard_file_bytes(m->format, m->width, row->tokens);
    TRY(want_int(path, o, "file_bytes", file_bytes, file_bytes, &bytes));
    TRY(want_hash(path, o, "xxh64", &row->xxh64));
    TRY(read_blocks(row, path, o, block_bytes, m->width));
    row->indexed = json_object_get(o, "index_xxh64") != NULL;
    if (row->indexed) TRY(want_hash(path, o, "index_xxh64", &row->index_xxh64));
    row->masked = json_object_get(o, "mask_xxh64") != NULL;
    return row->masked ? want_hash(path, o, "mask_xxh64", &row->mask_xxh64) : STATUS_OK;
}

/* Absent: llm.c's, as in version 1. */
static status read_format(struct manifest *m, const char *path, const json_t *root)
{
    const char *text;
    m->format = SHARD_LLMC;
    if (!json_object_get(root, "shard_format")) return STATUS_OK;
    TRY(want_text(path, root, "shard_format", &text));
    static const enum shard_format written[] = {SHARD_LLMC, SHARD_NPY, SHARD_MEGATRON};
    for (int i = 0; i < 3; i++) {
        m->format = written[i];
        if (strcmp(text, shard_format_word(written[i])) == 0) return STATUS_OK;
    }
    return FAIL(STATUS_DATA, "%s: 'shard_format' is '%s', expected llmc, npy or megatron", path, text);
}

static status read_root(struct manifest *m, const char *path, const json_t *root)
{
    const char *text;
    int64_t n = 0;
    TRY(want_text(path, root, "format", &text));
    if (strcmp(text, "ingot-shards") != 0)
        return FAIL(STATUS_DATA, "%s: format '%s', expected 'ingot-shards'", path, text);
    TRY(want_int(path, root, "version", 1, MANIFEST_VERSION_MASKED, &n));
    if (n >= 2) TRY(read_inputs(m, path, root));
    const json_t *tokenizer = json_object_get(root, "tokenizer");
    TRY(copy_text(path, tokenizer, "dir", m->tokenizer_dir, sizeof m->tokenizer_dir));
    TRY(copy_text(path, tokenizer, "sha256", m->tokenizer_hash, sizeof m->tokenizer_hash));
    TRY(want_int(path, tokenizer, "vocab_size", 1, (int64_t)INT32_MAX + 1, &m->vocab_size));
    TRY(want_int(path, root, "eot", -1, m->vocab_size - 1, &n));
    m->eot = (int32_t)n;
    TRY(want_text(path, root, "eod", &text));
    int eod = 0;
    while (eod < EOD_COUNT && strcmp(text, eod_words[eod]) != 0) eod++;
    if (eod == EOD_COUNT)
        return FAIL(STATUS_DATA, "%s: 'eod' is '%s', expected none, before or after", path, text);
    m->eod = (enum eod)eod;
    if (m->eod != EOD_NONE && m->eot < 0)
        return FAIL(STATUS_DATA, "%s: 'eod' is '%s', but 'eot' names no token", path, text);
    TRY(want_int(path, root, "token_bytes", 2, 4, &n));
    m->width = (int)n;
    TRY(read_format(m, path, root));
    TRY(want_int(path, root, "skipped", 0, INT64_MAX, &m->skipped));
    int64_t block = 0;
    if (json_object_get(root, "block_bytes"))
        TRY(want_int(path, root, "block_bytes", SHARD_BLOCK_BYTES_MIN, SHARD_BLOCK_BYTES_MAX, &block));
    if (block & (block - 1))
        return FAIL(STATUS_DATA, "%s: 'block_bytes' is %lld, a power of two is expected", path,
                    (long long)block);
    if (json_object_get(root, "empty")) TRY(want_int(path, root, "empty", 0, INT64_MAX, &m->empty));
    const json_t *rows = json_object_get(root, "shards");
    if (!json_is_array(rows)) return FAIL(STATUS_DATA, "%s: 'shards' is missing or not a list", path);
    for (size_t i = 0; i < json_array_size(rows); i++) TRY(read_row(path, json_array_get(rows, i), block, m));
    return STATUS_OK;
}

status manifest_from_json(struct manifest *m, const char *path, const json_t *root)
{
    *m = (struct manifest){0};
    status st = read_root(m, path, root);
    if (st != STATUS_OK) manifest_free(m);
    return st;
}

status manifest_parse(struct manifest *m, const char *path, const char *data, size_t bytes)
{
    *m = (struct manifest){0};
    json_error_t where;
    json_t *root = json_loadb(data, bytes, JSON_REJECT_DUPLICATES, &where);
    status st = root ? manifest_from_json(m, path, root)
                     : FAIL(STATUS_DATA, "%s:%d:%d: %s", path, where.line, where.column, where.text);
    if (st == STATUS_OK) {
        st = check_seal(path, data, bytes, json_object_get(root, "sha256") != NULL);
        if (st != STATUS_OK) manifest_free(m);
    }
    json_decref(root);
    return st;
}

status manifest_read(struct manifest *m, const char *path)
{
    *m = (struct manifest){0};
    char *data = NULL;
    size_t bytes = 0;
    TRY(io_read_file(path, MANIFEST_BYTES_MAX, &data, &bytes));
    status st = manifest_parse(m, path, data, bytes);
    free(data);
    return st;
}

static json_t *sum_json(const struct manifest *m, const char *split)
{
    struct manifest_sum s = manifest_split(m, split);
    return json_pack("{s:I, s:I, s:I, s:I}", "shards", (json_int_t)s.shards, "tokens", (json_int_t)s.tokens,
                     "documents", (json_int_t)s.documents, "text_bytes", (json_int_t)s.text_bytes);
}

static json_t *hash_json(uint64_t hash)
{
    char text[17];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    return json_string(text);
}

static json_t *blocks_json(const struct shard_blocks *b)
{
    char *text = malloc((size_t)b->count * 16 + 1);
    MEMORY_CHECK(text, "no memory for %lld checksums", (long long)b->count);
    for (int64_t i = 0; i < b->count; i++)
        snprintf(text + 16 * i, 17, "%016llx", (unsigned long long)b->xxh3[i]);
    json_t *o = json_stringn(text, (size_t)b->count * 16);
    free(text);
    return o;
}

static json_t *row_json(const struct manifest_shard *row, const struct manifest *m)
{
    json_t *o = json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:o}", "file", row->file, "split", row->split,
                          "tokens", (json_int_t)row->tokens, "documents", (json_int_t)row->documents,
                          "text_bytes", (json_int_t)row->text_bytes, "file_bytes",
                          (json_int_t)shard_file_bytes(m->format, m->width, row->tokens), "xxh64",
                          hash_json(row->xxh64));
    if (o && row->indexed) json_object_set_new(o, "index_xxh64", hash_json(row->index_xxh64));
    if (o && row->masked) json_object_set_new(o, "mask_xxh64", hash_json(row->mask_xxh64));
    if (o && row->blocks.count > 0) json_object_set_new(o, "block_xxh3", blocks_json(&row->blocks));
    return o;
}

static json_t *inputs_json(const struct manifest *m)
{
    json_t *rows = json_array();
    for (int i = 0; i < m->input_count; i++) {
        char *path = utf8_clean(m->inputs[i].path, strlen(m->inputs[i].path));
        json_array_append_new(rows, json_pack("{s:s, s:I, s:o}", "path", path, "bytes",
                                              (json_int_t)m->inputs[i].bytes, "xxh64",
                                              hash_json(m->inputs[i].xxh64)));
        free(path);
    }
    return rows;
}

static json_t *duplicates_json(const struct manifest_duplicates *d)
{
    if (!d->counted) return NULL;
    json_t *o = json_pack("{s:b, s:I, s:I}", "removed", d->removed, "documents", (json_int_t)d->documents,
                          "text_bytes", (json_int_t)d->text_bytes);
    if (!o || !d->near_removed) return o;
    json_object_set_new(o, "near_documents", json_integer(d->near_documents));
    json_object_set_new(o, "near_text_bytes", json_integer(d->near_text_bytes));
    return o;
}

json_t *manifest_to_json(const struct manifest *m)
{
    json_t *rows = json_array();
    int version = MANIFEST_VERSION;
    for (int i = 0; i < m->count; i++) {
        json_array_append_new(rows, row_json(&m->shards[i], m));
        if (m->shards[i].masked) version = MANIFEST_VERSION_MASKED;
    }
    return json_pack(
        "{s:s, s:i, s:{s:s, s:s, s:I}, s:i, s:s, s:i, s:s, s:I, s:I, s:o*, s:o, s:{s:o, s:o}, s:i, s:o}",
        "format", "ingot-shards", "version", version, "tokenizer", "dir", m->tokenizer_dir, "sha256",
        m->tokenizer_hash, "vocab_size", (json_int_t)m->vocab_size, "eot", m->eot, "eod", eod_words[m->eod],
        "token_bytes", m->width, "shard_format", shard_format_word(m->format), "skipped",
        (json_int_t)m->skipped, "empty", (json_int_t)m->empty, "duplicates", duplicates_json(&m->duplicates),
        "inputs", inputs_json(m), "splits", "train", sum_json(m, "train"), "val", sum_json(m, "val"),
        "block_bytes", SHARD_BLOCK_BYTES, "shards", rows);
}

status manifest_write(const struct manifest *m, const char *path)
{
    json_t *root = manifest_to_json(m);
    if (!root) return FAIL(STATUS_DATA, "%s: a name in the manifest is not UTF-8", path);
    char *text = json_dumps(root, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    json_decref(root);
    MEMORY_CHECK(text, "no memory for a manifest");
    const char *body = text + strlen("{\n"); /* the seal has these */
    size_t length = strlen(body) + 1;
    char *sealed = malloc(SEAL_BYTES + 1 + length);
    MEMORY_CHECK(sealed, "no memory for a manifest");
    memcpy(sealed + SEAL_BYTES, body, length);
    sealed[SEAL_BYTES + length - 1] = '\n';
    char seal[SEAL_BYTES + 1];
    seal_write(sealed + SEAL_BYTES, length, SEAL_HEAD, SEAL_TAIL, seal);
    memcpy(sealed, seal, SEAL_BYTES);
    status st = io_write_file(path, sealed, SEAL_BYTES + length);
    free(sealed);
    free(text);
    return st;
}
