/* A shard: format detection, and access to its tokens. The parsers are shard_header.c, shard_npy.c,
 * shard_megatron.c. */
#include "data/shard/shard.h"

#include "base/io.h"
#include "base/utf8.h"
#include "data/shard/shard_int.h"
#include "data/shard/shard_mask.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

static const char *const format_words[SHARD_FORMAT_COUNT] = {
#define X(value, word) [SHARD_##value] = (word),
    SHARD_FORMATS(X)
#undef X
};
static const struct {
    const char *word;
    int bytes;
} types[SHARD_TYPE_COUNT] = {[SHARD_TYPE_UNKNOWN] = {"unknown", 0},
#define X(value, text, ctype) [SHARD_TYPE_##value] = {(text), (int)sizeof(ctype)},
                             SHARD_TYPES(X)
#undef X
};

/* The first bytes of each known header, and its parser. Longer ones come first. */
static const struct {
    const char *bytes;
    int count;
    status (*parse)(struct shard *s, const uint8_t *data, int64_t bytes);
} headers[] = {
    {"BIN.TOK\n", 8, shard_llmq_parse},
    {"\x93NUMPY", 6, shard_npy_parse},
    {"\x88\xd8\x34\x01", 4, shard_llmc_parse},
    {"\xa1\xd9\x34\x01", 4, shard_llmc_parse},
};

/* Files that people mistake for shards: the message names the format. */
static const struct {
    const char *bytes;
    int count;
    const char *text;
} strangers[] = {
    {"\x8a\xd8\x34\x01", 4, "an llm.c evaluation file (magic 20240522)"},
    {"\x01\x34\xd8\x88", 4, "an llm.c shard of a big-endian machine"},
    {"\x01\x34\xd9\xa1", 4, "an llm.c shard of a big-endian machine"},
    {"MMIDIDX", 7, "a Megatron index; name the .bin beside it"},
    {"TNTIDX", 6, "an index of fairseq or of an old Megatron"},
    {"PAR1", 4, "a Parquet file: text for `ingot data build`"},
    {"ARROW1", 6, "an Arrow file"},
    {"\x1f\x8b", 2, "gzip data; unpack it first"},
    {"\x28\xb5\x2f\xfd", 4, "zstd data; unpack it first"},
    {"PK\x03\x04", 4, "a zip archive, as .npz and .pt files are"},
    {"\x80\x02", 2, "a Python pickle"},
    {"\x80\x04", 2, "a Python pickle"},
    {"\x80\x05", 2, "a Python pickle"},
    {"\x89HDF", 4, "an HDF5 file"},
    {"GGUF", 4, "a GGUF model"},
    {"{\"", 2, "JSON: text for `ingot data build`"},
};

const char *shard_format_word(enum shard_format f)
{
    return format_words[f];
}

const char *shard_type_word(enum shard_type t)
{
    return types[t].word;
}

int shard_type_bytes(enum shard_type t)
{
    return types[t].bytes;
}

enum shard_type shard_type_find(const char *word)
{
    for (int t = SHARD_TYPE_UNKNOWN + 1; t < SHARD_TYPE_COUNT; t++)
        if (strcmp(types[t].word, word) == 0) return (enum shard_type)t;
    return SHARD_TYPE_UNKNOWN;
}

void shard_set_type(struct shard *s, enum shard_type t)
{
    s->type = t;
    s->width = types[t].bytes;
}

int shard_width(int64_t vocab_size)
{
    return vocab_size <= 65536 ? 2 : 4;
}

bool shard_begins(const void *head, size_t bytes)
{
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++)
        if (bytes >= (size_t)headers[i].count &&
            memcmp(head, headers[i].bytes, (size_t)headers[i].count) == 0)
            return true;
    return false;
}

/* What begins as a text does: UTF-8 without control characters. */
static bool is_text(const uint8_t *data, int64_t bytes)
{
    const size_t n = bytes < 512 ? (size_t)bytes : 512;
    for (size_t i = 0; i < n; i++)
        if ((data[i] < 32 && !strchr("\t\n\r\f", data[i])) || data[i] == 0) return false;
    return n >= 8 && utf8_valid((const char *)data, n) + 4 > n;
}

static status raw_parse(struct shard *s, enum shard_type type, const uint8_t *data, int64_t bytes)
{
    if (type == SHARD_TYPE_UNKNOWN) {
        if (bytes == 0) return FAIL(STATUS_DATA, "%s: not a token shard: the file is empty", s->path);
        for (size_t i = 0; i < sizeof strangers / sizeof strangers[0]; i++)
            if (bytes >= strangers[i].count &&
                memcmp(data, strangers[i].bytes, (size_t)strangers[i].count) == 0)
                return FAIL(STATUS_DATA, "%s: not a token shard but %s", s->path, strangers[i].text);
        if (is_text(data, bytes))
            return FAIL(
                STATUS_DATA,
                "%s: not a token shard but text; `ingot data build %s -o data/my --tokenizer DIR` makes "
                "shards of it",
                s->path, s->path);
        return FAIL(STATUS_DATA,
                    "%s: not a token shard: no header of llm.c, LLMQ or numpy%s; if these are bare ids, "
                    "data.dtype or --dtype "
                    "must say how they are stored: uint16 or uint32",
                    s->path,
                    strlen(s->path) > 4 && strcmp(s->path + strlen(s->path) - 4, ".bin") == 0
                        ? ", and no Megatron .idx beside it"
                        : "");
    }
    shard_set_type(s, type);
    if (bytes % s->width != 0)
        return FAIL(STATUS_DATA, "%s: %lld bytes are no whole number of %s tokens", s->path, (long long)bytes,
                    shard_type_word(type));
    s->format = SHARD_RAW;
    s->count = bytes / s->width;
    s->tokens = data;
    return STATUS_OK;
}

static status parse(struct shard *s, enum shard_type type, const uint8_t *data, int64_t bytes)
{
    status (*parser)(struct shard *, const uint8_t *, int64_t) = s->index ? shard_megatron_parse : NULL;
    for (size_t i = 0; !parser && i < sizeof headers / sizeof headers[0]; i++)
        if (bytes >= headers[i].count && memcmp(data, headers[i].bytes, (size_t)headers[i].count) == 0)
            parser = headers[i].parse;
    if (!parser) return raw_parse(s, type, data, bytes);
    TRY(parser(s, data, bytes));
    if (type != SHARD_TYPE_UNKNOWN && types[type].bytes != s->width)
        return FAIL(STATUS_CONFIG,
                    "%s: its tokens are %s, as its %s says; data.dtype or --dtype says %s, and is needed for "
                    "files without a header alone",
                    s->path, shard_type_word(s->type), s->index ? ".idx" : "header", shard_type_word(type));
    return STATUS_OK;
}

status shard_open_memory(struct shard *s, const char *name, enum shard_type type, const void *data,
                         int64_t bytes, const void *index, int64_t index_bytes)
{
    *s = (struct shard){.path = strdup(name), .index = index, .index_bytes = index_bytes};
    MEMORY_CHECK(s->path, "no memory for a name");
    status st = parse(s, type, data, bytes);
    if (st != STATUS_OK) shard_close(s);
    return st;
}

/* An empty file cannot be mapped: `at` stays NULL. */
static status map_file(const char *path, struct shard_map *m)
{
    int fd;
    int64_t bytes;
    TRY(io_open(path, LINKS_FOLLOW, &fd, &bytes));
    status st = STATUS_OK;
    void *at = bytes > 0 ? mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, 0) : NULL;
    if (at == MAP_FAILED)
        st = FAIL(status_of_errno(errno), "%s: cannot map %lld bytes: %s", path, (long long)bytes,
                  strerror(errno));
    else
        *m = (struct shard_map){at, (size_t)bytes};
    io_close(&fd);
    return st;
}

/* The index of NAME.bin, if it is one of Megatron's. */
static status open_index(struct shard *s, const char *path)
{
    char name[PATH_MAX];
    size_t length = strlen(path);
    bool there = false;
    if (length < 5 || strcmp(path + length - 4, ".bin") != 0) return STATUS_OK;
    if (shard_file(SHARD_MEGATRON, path, 1, name, sizeof name)) TRY(io_exists(name, &there));
    if (!there) return STATUS_OK;
    TRY(map_file(name, &s->maps[1]));
    const uint8_t *at = s->maps[1].at;
    if (s->maps[1].bytes < 7 || memcmp(at, "MMIDIDX", 7) != 0) return STATUS_OK;
    s->index = at;
    s->index_bytes = (int64_t)s->maps[1].bytes;
    return STATUS_OK;
}

status shard_open_as(struct shard *s, const char *path, enum shard_type type)
{
    *s = (struct shard){.path = strdup(path)};
    MEMORY_CHECK(s->path, "no memory for a path");
    status st = open_index(s, path);
    if (st == STATUS_OK) st = map_file(path, &s->maps[0]);
    if (st == STATUS_OK) st = parse(s, type, s->maps[0].at, (int64_t)s->maps[0].bytes);
    if (st != STATUS_OK) shard_close(s);
    return st;
}

status shard_open(struct shard *s, const char *path)
{
    return shard_open_as(s, path, SHARD_TYPE_UNKNOWN);
}

status shard_open_mask(struct shard *s, uint64_t xxh64)
{
    char name[PATH_MAX];
    struct shard_mask mask;
    shard_mask_name(s->path, name, sizeof name);
    TRY(map_file(name, &s->maps[2]));
    TRY(shard_mask_parse(&mask, name, s->maps[2].at ? s->maps[2].at : "", s->maps[2].bytes));
    if (mask.tokens != s->count || mask.xxh64 != xxh64)
        return FAIL(STATUS_DATA,
                    "%s: %lld tokens, checksum %016llx, but its manifest says %lld, %016llx: the mask of "
                    "another shard",
                    name, (long long)mask.tokens, (unsigned long long)mask.xxh64, (long long)s->count,
                    (unsigned long long)xxh64);
    s->mask = mask.bits;
    return STATUS_OK;
}

void shard_close(struct shard *s)
{
    for (int i = 0; i < 3; i++)
        if (s->maps[i].at) munmap(s->maps[i].at, s->maps[i].bytes);
    free(s->path);
    shard_blocks_free(&s->blocks);
    free(s->verified);
    *s = (struct shard){0};
}

uint64_t shard_hash(const struct shard *s)
{
    return XXH64(s->tokens, (size_t)(s->count * s->width), 0);
}

status shard_read(const struct shard *s, int64_t at, int64_t n, int64_t vocab_size, int32_t *out)
{
    CHECK(at >= 0 && n >= 0 && at <= s->count - n, "tokens [%lld, +%lld) of %lld", (long long)at,
          (long long)n, (long long)s->count);
    uint64_t limit =
        vocab_size > 0 && vocab_size <= INT32_MAX ? (uint64_t)vocab_size : (uint64_t)INT32_MAX + 1;
    TRY(shard_blocks_check(s, at, n));
    const uint8_t *from = s->tokens + at * s->width;
    if (n == 0 || shard_copy(s->type, from, n, out) < limit) return STATUS_OK;
    for (int64_t i = 0; i < n; i++) {
        int32_t one;
        uint64_t id = shard_copy(s->type, from + i * s->width, 1, &one);
        if (id < limit) continue;
        /* A narrow signed type is returned as 32 bits, a wide one as 64. */
        bool negative =
            (s->type == SHARD_TYPE_I64 && id > INT64_MAX) ||
            ((s->type == SHARD_TYPE_I8 || s->type == SHARD_TYPE_I16 || s->type == SHARD_TYPE_I32) &&
             id > INT32_MAX);
        long long value = s->type == SHARD_TYPE_I64 ? (long long)id : (long long)(int32_t)id;
        if (negative)
            return FAIL(STATUS_DATA, "%s: token %lld is %lld: ids are not negative", s->path,
                        (long long)(at + i), value);
        if (vocab_size <= 0)
            return FAIL(STATUS_DATA, "%s: token %lld is %llu, and ids lie below 2^31: its tokens are not %s",
                        s->path, (long long)(at + i), (unsigned long long)id, shard_type_word(s->type));
        return FAIL(STATUS_DATA,
                    "%s: token %lld is id %llu, but the vocabulary has %llu ids: another tokenizer made this "
                    "shard",
                    s->path, (long long)(at + i), (unsigned long long)id, (unsigned long long)limit);
    }
    return FAIL(STATUS_DATA, "%s: changed while it was read", s->path);
}
