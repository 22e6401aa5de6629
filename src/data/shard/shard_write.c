/* Writing shards. The ids of every format are the same bytes, preceded by a header or accompanied by an
 * index. */
#include "base/io.h"
#include "data/text/array.h"
#include "data/shard/shard.h"
#include "data/shard/shard_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

enum { BUFFER_BYTES = 1 << 20, BEGIN_SYNC_BYTES = 16 << 20 };

struct shard_writer {
    struct io_file file;
    enum shard_format format;
    int width;
    int64_t count, document; /* tokens: in all, before the open document */
    size_t used;             /* bytes in buffer */
    size_t unsynced;         /* written since the last writeback was started */
    int32_t *lengths;        /* megatron: of finished documents */
    size_t length_count, length_cap;
    XXH64_state_t *hash;
    struct shard_block_sum blocks;
    char buffer[BUFFER_BYTES];
};

/* Bytes before the ids. */
static size_t header_bytes(enum shard_format f)
{
    return f == SHARD_LLMC ? SHARD_LLMC_HEADER : f == SHARD_NPY ? SHARD_NPY_HEADER : 0;
}

int64_t shard_file_bytes(enum shard_format f, int width, int64_t tokens)
{
    return (int64_t)header_bytes(f) + tokens * width;
}

const char *shard_suffix(enum shard_format f, int i)
{
    if (i == 0) return f == SHARD_NPY ? ".npy" : ".bin";
    return i == 1 && f == SHARD_MEGATRON ? ".idx" : NULL;
}

bool shard_file(enum shard_format f, const char *path, int i, char *out, size_t size)
{
    const char *suffix = shard_suffix(f, i), *first = shard_suffix(f, 0), *at = NULL;
    if (!suffix) return false;
    for (const char *p = path; (p = strstr(p, first)); p++) at = p; /* the last element */
    if (!at || strchr(at, '/')) return false;
    return snprintf(out, size, "%.*s%s%s", (int)(at - path), path, suffix, at + strlen(first)) < (int)size;
}

static struct shard_writer *writer_new(enum shard_format format, int width)
{
    CHECK(width == 2 || width == 4, "width %d", width);
    CHECK(format == SHARD_LLMC || format == SHARD_MEGATRON || format == SHARD_NPY, "format %d is not written",
          format);
    struct shard_writer *w = calloc(1, sizeof *w);
    MEMORY_CHECK(w, "no memory for a shard writer");
    w->format = format;
    w->width = width;
    w->file.fd = -1;
    MEMORY_CHECK(w->hash = XXH64_createState(), "no memory for a hash");
    XXH64_reset(w->hash, 0);
    return w;
}

/* A truncated shard has no magic. */
static status write_blank(struct shard_writer *w)
{
    static const char zero[SHARD_LLMC_HEADER];
    return io_write(&w->file, zero, header_bytes(w->format));
}

status shard_create(struct shard_writer **w, const char *path, enum shard_format format, int width)
{
    *w = writer_new(format, width);
    status st = io_create(&(*w)->file, path);
    if (st == STATUS_OK) st = write_blank(*w);
    if (st != STATUS_OK) shard_abandon(w);
    return st;
}

/* Updates the checksums with the first `bytes` of the buffer. */
static status hash_ids(struct shard_writer *w, size_t bytes)
{
    XXH64_update(w->hash, w->buffer, bytes);
    return shard_block_sum_add(&w->blocks, w->buffer, bytes);
}

/* Hashes the ids that the file holds already. */
static status read_back(struct shard_writer *w, int64_t tokens)
{
    int fd;
    int64_t bytes, left = tokens * w->width, at = (int64_t)header_bytes(w->format);
    TRY(io_open(w->file.temp, LINKS_REFUSE, &fd, &bytes));
    status st = STATUS_OK;
    while (st == STATUS_OK && left > 0) {
        size_t n = left < BUFFER_BYTES ? (size_t)left : BUFFER_BYTES;
        st = io_pread(fd, w->file.temp, w->buffer, n, at);
        if (st == STATUS_OK) st = hash_ids(w, n);
        at += (int64_t)n;
        left -= (int64_t)n;
    }
    io_close(&fd);
    w->count = tokens;
    return st;
}

status shard_resume(struct shard_writer **out, const struct shard_resume_config *c)
{
    struct shard_writer *w = *out = writer_new(c->format, c->width);
    int64_t keep = c->tokens > 0 ? (int64_t)header_bytes(c->format) + c->tokens * c->width : 0;
    status st;
    TRY_OUT(io_reopen(&w->file, c->path, c->temp, keep));
    st = c->tokens > 0 ? read_back(w, c->tokens) : write_blank(w);
    for (int64_t i = 0; st == STATUS_OK && c->format == SHARD_MEGATRON && i < c->documents; i++) {
        int64_t end = i + 1 < c->documents ? (int64_t)c->begins[i + 1] : c->tokens;
        TRY_OUT(array_grow(&w->lengths, &w->length_cap, w->length_count + 1, sizeof *w->lengths));
        w->lengths[w->length_count++] = (int32_t)(end - c->begins[i]);
        w->document = end;
    }
out:
    if (st != STATUS_OK) shard_leave(out);
    return st;
}

static status flush(struct shard_writer *w)
{
    TRY(hash_ids(w, w->used));
    TRY(io_write(&w->file, w->buffer, w->used));
    w->unsynced += w->used;
    w->used = 0;
    if (w->file.stays && w->unsynced >= BEGIN_SYNC_BYTES) {
        io_begin_sync(&w->file);
        w->unsynced = 0;
    }
    return STATUS_OK;
}

status shard_append(struct shard_writer *w, const int32_t *ids, int64_t count)
{
    if (w->format == SHARD_LLMC && count > INT32_MAX - w->count)
        return FAIL(STATUS_DATA,
                    "%s: more than %d tokens do not fit in one shard; make --shard-tokens smaller",
                    w->file.path, INT32_MAX);
    int64_t room = BUFFER_BYTES / w->width;
    for (int64_t i = 0; i < count;) {
        int64_t used = (int64_t)w->used / w->width, n = count - i < room - used ? count - i : room - used;
        if (w->width == 2) {
            uint16_t *to = (uint16_t *)(void *)w->buffer + used;
            for (int64_t k = 0; k < n; k++) {
                CHECK(ids[i + k] >= 0 && ids[i + k] <= UINT16_MAX, "id %d in a u16 shard", ids[i + k]);
                to[k] = (uint16_t)ids[i + k];
            }
        } else {
            for (int64_t k = 0; k < n; k++) CHECK(ids[i + k] >= 0, "id %d in a shard", ids[i + k]);
            memcpy(w->buffer + w->used, ids + i, (size_t)n * 4);
        }
        w->used += (size_t)(n * w->width);
        i += n;
        if (w->used == BUFFER_BYTES) TRY(flush(w));
    }
    w->count += count;
    return STATUS_OK;
}

status shard_document_end(struct shard_writer *w)
{
    int64_t length = w->count - w->document;
    w->document = w->count;
    if (length == 0 || w->format != SHARD_MEGATRON) return STATUS_OK;
    if (length > INT32_MAX)
        return FAIL(STATUS_DATA, "%s: a document of %lld tokens; Megatron's index holds at most %d",
                    w->file.path, (long long)length, INT32_MAX);
    TRY(array_grow(&w->lengths, &w->length_cap, w->length_count + 1, sizeof *w->lengths));
    w->lengths[w->length_count++] = (int32_t)length;
    return STATUS_OK;
}

status shard_sync(struct shard_writer *w)
{
    TRY(flush(w));
    return io_sync(&w->file);
}

static status write_header(struct shard_writer *w)
{
    if (w->format == SHARD_NPY) {
        char header[SHARD_NPY_HEADER];
        shard_npy_header(w->count, w->width, header);
        return io_pwrite(&w->file, header, sizeof header, 0);
    }
    if (w->format != SHARD_LLMC) return STATUS_OK;
    const int32_t v1[3] = {20240520, 1, (int32_t)w->count}, v7[3] = {20240801, 7, (int32_t)w->count};
    return io_pwrite(&w->file, w->width == 2 ? v1 : v7, sizeof v1, 0);
}

status shard_commit(struct shard_writer **w, struct shard_sums *sums)
{
    status st;
    struct shard_writer *o = *w;
    char index[sizeof o->file.path];
    TRY_OUT(shard_document_end(o));
    TRY_OUT(flush(o));
    TRY_OUT(write_header(o));
    TRY_OUT(io_commit(&o->file));
    if (o->format == SHARD_MEGATRON) {
        CHECK(shard_file(o->format, o->file.path, 1, index, sizeof index), "%s has no .bin", o->file.path);
        st = shard_megatron_index(index, o->width, o->lengths, (int64_t)o->length_count);
        if (st != STATUS_OK && !o->file.stays) (void)remove(o->file.path); /* ids alone are useless */
    }
    if (st == STATUS_OK && sums) {
        sums->xxh64 = XXH64_digest(o->hash);
        st = shard_block_sum_end(&o->blocks, &sums->blocks);
    }
out:
    if (st != STATUS_OK && o->file.stays)
        shard_leave(w);
    else
        shard_abandon(w);
    return st;
}

void shard_leave(struct shard_writer **w)
{
    if (*w) io_leave(&(*w)->file);
    shard_abandon(w);
}

void shard_abandon(struct shard_writer **w)
{
    if (!*w) return;
    io_abandon(&(*w)->file);
    XXH64_freeState((*w)->hash);
    shard_block_sum_free(&(*w)->blocks);
    free((*w)->lengths);
    free(*w);
    *w = NULL;
}
