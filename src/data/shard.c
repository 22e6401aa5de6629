#include "data/shard.h"

#include "base/io.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

enum { HEADER_BYTES = 1024, BUFFER_BYTES = 1 << 20 };

struct shard_header {
    int32_t magic, version, count, zero[253];
};
static_assert(sizeof(struct shard_header) == HEADER_BYTES, "the header of a shard has 1024 bytes");

struct kind {
    int32_t magic, version;
    int width;
};
static const struct kind kinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};

/* Files that people take for shards: better named than called garbage. */
static const struct {
    const char *bytes, *text;
} strangers[] = {
    {"\x8a\xd8\x34\x01", "an llm.c evaluation file (magic 20240522)"},
    {"BIN.TOK\n", "an LLMQ token file"},
    {"\x93NUMPY", "a numpy array"},
    {"MMIDIDX", "a Megatron index"},
    {"\x1f\x8b", "gzip data"},
    {"\x28\xb5\x2f\xfd", "zstd data"},
};

int shard_width(int64_t vocab_size)
{
    return vocab_size <= 65536 ? 2 : 4;
}

static status header_check(const char *path, const struct shard_header *h, int64_t file_bytes, int *width)
{
    const struct kind *kind = NULL;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (kinds[i].magic == h->magic) kind = &kinds[i];
    for (size_t i = 0; !kind && i < sizeof strangers / sizeof strangers[0]; i++)
        if (memcmp(h, strangers[i].bytes, strlen(strangers[i].bytes)) == 0)
            return FAIL(STATUS_DATA, "%s: not a token shard but %s", path, strangers[i].text);
    if (!kind)
        return FAIL(STATUS_DATA,
                    "%s: not a token shard: magic %d, expected 20240520 (u16 tokens) or 20240801 (u32)", path,
                    h->magic);
    if (h->version != kind->version)
        return FAIL(STATUS_DATA, "%s: shard version %d, expected %d with magic %d", path, h->version,
                    kind->version, h->magic);
    if (h->count < 0)
        return FAIL(STATUS_DATA, "%s: token count %d in the header, expected 0 or more", path, h->count);
    int64_t want = HEADER_BYTES + (int64_t)h->count * kind->width;
    if (file_bytes != want)
        return FAIL(STATUS_DATA, "%s: %lld bytes, expected %lld (1024 + %d tokens * %d): the file is %s",
                    path, (long long)file_bytes, (long long)want, h->count, kind->width,
                    file_bytes < want ? "truncated" : "longer than its header says");
    *width = kind->width;
    return STATUS_OK;
}

status shard_open(struct shard *s, const char *path)
{
    *s = (struct shard){0};
    int fd;
    int64_t bytes;
    TRY(io_open(path, LINKS_FOLLOW, &fd, &bytes));
    status st = STATUS_OK;
    void *map = MAP_FAILED;
    if (bytes < HEADER_BYTES) {
        st = FAIL(STATUS_DATA, "%s: %lld bytes: not a token shard, whose header alone has %d", path,
                  (long long)bytes, HEADER_BYTES);
        goto out;
    }
    map = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        st = FAIL(STATUS_IO, "%s: cannot map %lld bytes: %s", path, (long long)bytes, strerror(errno));
        goto out;
    }
    TRY_OUT(header_check(path, map, bytes, &s->width));
    s->path = strdup(path);
    CHECK(s->path, "no memory for a path");
    s->count = ((const struct shard_header *)map)->count;
    s->tokens = (const char *)map + HEADER_BYTES;
    s->map = map;
    s->map_bytes = (size_t)bytes;
out:
    if (st != STATUS_OK && map != MAP_FAILED) munmap(map, (size_t)bytes);
    io_close(&fd);
    return st;
}

void shard_close(struct shard *s)
{
    if (s->map) munmap(s->map, s->map_bytes);
    free(s->path);
    *s = (struct shard){0};
}

uint64_t shard_hash(const struct shard *s)
{
    return XXH64(s->tokens, s->map_bytes - HEADER_BYTES, 0);
}

/* Both loops vectorise: the range check is one maximum; the position is searched on failure only. */
static uint32_t copy_u16(const uint16_t *in, int64_t n, int32_t *out)
{
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t id = in[i];
        most = id > most ? id : most;
        out[i] = (int32_t)id;
    }
    return most;
}

static uint32_t copy_u32(const uint32_t *in, int64_t n, int32_t *out)
{
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t id = in[i];
        most = id > most ? id : most;
        out[i] = (int32_t)id;
    }
    return most;
}

status shard_read(const struct shard *s, int64_t at, int64_t n, int64_t vocab_size, int32_t *out)
{
    CHECK(at >= 0 && n >= 0 && at <= s->count - n, "tokens [%lld, +%lld) of %lld", (long long)at,
          (long long)n, (long long)s->count);
    int64_t limit = vocab_size > 0 && vocab_size <= INT32_MAX ? vocab_size : (int64_t)INT32_MAX + 1;
    const char *from = (const char *)s->tokens + at * s->width;
    uint32_t most = s->width == 2 ? copy_u16((const uint16_t *)(const void *)from, n, out)
                                  : copy_u32((const uint32_t *)(const void *)from, n, out);
    if (n == 0 || most < limit) return STATUS_OK;
    for (int64_t i = 0; i < n; i++)
        if ((uint32_t)out[i] >= limit)
            return FAIL(STATUS_DATA,
                        "%s: token %lld is id %u, but the vocabulary has %lld ids: another "
                        "tokenizer made this shard",
                        s->path, (long long)(at + i), (uint32_t)out[i], (long long)limit);
    return FAIL(STATUS_DATA, "%s: changed while it was read", s->path);
}

struct shard_writer {
    struct io_file file;
    const struct kind *kind;
    int64_t count;
    size_t used; /* bytes in buffer */
    XXH64_state_t *hash;
    char buffer[BUFFER_BYTES];
};

status shard_create(struct shard_writer **w, const char *path, int width)
{
    CHECK(width == 2 || width == 4, "width %d", width);
    *w = calloc(1, sizeof **w);
    CHECK(*w, "no memory for a shard writer");
    (*w)->kind = &kinds[width == 2 ? 0 : 1];
    CHECK((*w)->hash = XXH64_createState(), "no memory for a hash");
    XXH64_reset((*w)->hash, 0);
    static const char zero[HEADER_BYTES]; /* a shard that is cut short has no magic */
    status st = io_create(&(*w)->file, path);
    if (st == STATUS_OK) st = io_write(&(*w)->file, zero, sizeof zero);
    if (st != STATUS_OK) shard_abandon(w);
    return st;
}

static status flush(struct shard_writer *w)
{
    XXH64_update(w->hash, w->buffer, w->used);
    TRY(io_write(&w->file, w->buffer, w->used));
    w->used = 0;
    return STATUS_OK;
}

status shard_append(struct shard_writer *w, const int32_t *ids, int64_t count)
{
    if (count > INT32_MAX - w->count)
        return FAIL(STATUS_DATA,
                    "%s: more than %d tokens do not fit in one shard; make --shard-tokens smaller",
                    w->file.path, INT32_MAX);
    int64_t room = BUFFER_BYTES / w->kind->width;
    for (int64_t i = 0; i < count;) {
        int64_t used = (int64_t)w->used / w->kind->width,
                n = count - i < room - used ? count - i : room - used;
        if (w->kind->width == 2) {
            uint16_t *to = (uint16_t *)(void *)w->buffer + used;
            for (int64_t k = 0; k < n; k++) {
                CHECK(ids[i + k] >= 0 && ids[i + k] <= UINT16_MAX, "id %d in a u16 shard", ids[i + k]);
                to[k] = (uint16_t)ids[i + k];
            }
        } else {
            for (int64_t k = 0; k < n; k++) CHECK(ids[i + k] >= 0, "id %d in a shard", ids[i + k]);
            memcpy(w->buffer + w->used, ids + i, (size_t)n * 4);
        }
        w->used += (size_t)(n * w->kind->width);
        i += n;
        if (w->used == BUFFER_BYTES) TRY(flush(w));
    }
    w->count += count;
    return STATUS_OK;
}

status shard_commit(struct shard_writer **w, uint64_t *xxh64)
{
    status st = STATUS_OK;
    struct shard_writer *o = *w;
    const struct shard_header header = {
        .magic = o->kind->magic, .version = o->kind->version, .count = (int32_t)o->count};
    TRY_OUT(flush(o));
    TRY_OUT(io_pwrite(&o->file, &header, sizeof header, 0));
    TRY_OUT(io_commit(&o->file));
    if (xxh64) *xxh64 = XXH64_digest(o->hash);
out:
    shard_abandon(w);
    return st;
}

void shard_abandon(struct shard_writer **w)
{
    if (!*w) return;
    io_abandon(&(*w)->file);
    XXH64_freeState((*w)->hash);
    free(*w);
    *w = NULL;
}
