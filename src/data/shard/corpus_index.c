#include "data/shard/corpus_index.h"

#include "base/io.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <sys/mman.h>
#include <xxhash.h>

enum { HEADER_BYTES = 64, ENTRY_BYTES = 4, BUFFER_ENTRIES = 16384, VERSION = 1 };

struct header {
    char magic[8];
    uint32_t version, entry_bytes;
    int64_t tokens, documents;
    uint64_t xxh64;
    uint8_t zero[24];
};
static_assert(sizeof(struct header) == HEADER_BYTES, "the header of an index has 64 bytes");
static const char magic[8] = {'I', 'N', 'G', 'O', 'T', 'I', 'D', 'X'};

void corpus_beside(const char *shard, const char *suffix, char *out, size_t size)
{
    const char *slash = strrchr(shard, '/'), *dot = strrchr(shard, '.');
    const int stem = dot && (!slash || dot > slash) ? (int)(dot - shard) : (int)strlen(shard);
    snprintf(out, size, "%.*s%s", stem, shard, suffix);
}

void corpus_index_name(const char *shard, char *out, size_t size)
{
    corpus_beside(shard, ".idx", out, size);
}

status corpus_index_parse(struct corpus_index *x, const char *path, const void *data, size_t bytes)
{
    *x = (struct corpus_index){0};
    const struct header *h = data;
    if (bytes < HEADER_BYTES || memcmp(h->magic, magic, sizeof magic) != 0)
        return FAIL(STATUS_DATA, "%s: not an index of documents: it does not begin with INGOTIDX", path);
    if (h->version != VERSION || h->entry_bytes != ENTRY_BYTES)
        return FAIL(STATUS_DATA, "%s: version %u with %u bytes per document, expected version %d with %d",
                    path, h->version, h->entry_bytes, VERSION, ENTRY_BYTES);
    static const uint8_t zero[sizeof h->zero];
    if (memcmp(h->zero, zero, sizeof zero) != 0)
        return FAIL(STATUS_DATA, "%s: bytes 40 to 63 are not zero: the file is damaged", path);
    if (h->tokens < 0 || h->documents < 0 || h->documents > h->tokens)
        return FAIL(STATUS_DATA, "%s: %lld documents in %lld tokens cannot be", path, (long long)h->documents,
                    (long long)h->tokens);
    if ((bytes - HEADER_BYTES) / ENTRY_BYTES != (uint64_t)h->documents ||
        (bytes - HEADER_BYTES) % ENTRY_BYTES != 0)
        return FAIL(STATUS_DATA, "%s: %zu bytes, expected 64 + %lld documents * 4", path, bytes,
                    (long long)h->documents);
    const uint32_t *begins = (const uint32_t *)(const void *)((const char *)data + HEADER_BYTES);
    uint64_t sum = XXH64(begins, bytes - HEADER_BYTES, 0);
    if (sum != h->xxh64)
        return FAIL(STATUS_DATA, "%s: checksum %016llx, expected %016llx: the file is damaged", path,
                    (unsigned long long)sum, (unsigned long long)h->xxh64);
    int64_t before = -1;
    for (int64_t i = 0; i < h->documents; before = begins[i++])
        if (begins[i] <= before || begins[i] >= h->tokens)
            return FAIL(STATUS_DATA,
                        "%s: document %lld begins at token %u of %lld, but the one before it at %lld", path,
                        (long long)i, begins[i], (long long)h->tokens, (long long)before);
    x->tokens = h->tokens;
    x->documents = h->documents;
    x->begins = begins;
    x->xxh64 = sum;
    return STATUS_OK;
}

status corpus_index_open(struct corpus_index *x, const char *path)
{
    *x = (struct corpus_index){0};
    int fd;
    int64_t bytes;
    TRY(io_open(path, LINKS_FOLLOW, &fd, &bytes));
    if (bytes < HEADER_BYTES) {
        io_close(&fd);
        return corpus_index_parse(x, path, "", 0);
    }
    void *map = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, 0);
    io_close(&fd);
    if (map == MAP_FAILED)
        return FAIL(status_of_errno(errno), "%s: cannot map %lld bytes: %s", path, (long long)bytes,
                    strerror(errno));
    status st = corpus_index_parse(x, path, map, (size_t)bytes);
    if (st != STATUS_OK) {
        munmap(map, (size_t)bytes);
        return st;
    }
    x->map = map;
    x->map_bytes = (size_t)bytes;
    return st;
}

void corpus_index_close(struct corpus_index *x)
{
    if (x->map) munmap(x->map, x->map_bytes);
    *x = (struct corpus_index){0};
}

struct corpus_index_writer {
    struct io_file file;
    XXH64_state_t *hash;
    int64_t count; /* including those in the buffer */
    size_t used;
    uint32_t buffer[BUFFER_ENTRIES];
};

/* Updates the checksum with the buffered entries. */
static status read_back(struct corpus_index_writer *w, int64_t documents)
{
    int fd;
    int64_t bytes;
    TRY(io_open(w->file.temp, LINKS_REFUSE, &fd, &bytes));
    status st = STATUS_OK;
    for (int64_t at = 0; st == STATUS_OK && at < documents; at += BUFFER_ENTRIES) {
        int64_t n = documents - at < BUFFER_ENTRIES ? documents - at : BUFFER_ENTRIES;
        st = io_pread(fd, w->file.temp, w->buffer, (size_t)n * ENTRY_BYTES, HEADER_BYTES + at * ENTRY_BYTES);
        if (st == STATUS_OK) XXH64_update(w->hash, w->buffer, (size_t)n * ENTRY_BYTES);
    }
    io_close(&fd);
    return st;
}

status corpus_index_create(struct corpus_index_writer **out, const char *path, const char *temp,
                           int64_t documents)
{
    static const char zero[HEADER_BYTES]; /* a truncated index has no magic */
    struct corpus_index_writer *w = *out = calloc(1, sizeof *w);
    MEMORY_CHECK(w && (w->hash = XXH64_createState()), "no memory for an index");
    XXH64_reset(w->hash, 0);
    w->count = documents;
    w->file.fd = -1;
    status st;
    TRY_OUT(io_reopen(&w->file, path, temp, documents ? HEADER_BYTES + documents * ENTRY_BYTES : 0));
    if (documents > 0)
        TRY_OUT(read_back(w, documents));
    else
        TRY_OUT(io_write(&w->file, zero, sizeof zero));
out:
    if (st != STATUS_OK) corpus_index_leave(out);
    return st;
}

static status flush(struct corpus_index_writer *w)
{
    XXH64_update(w->hash, w->buffer, w->used * ENTRY_BYTES);
    TRY(io_write(&w->file, w->buffer, w->used * ENTRY_BYTES));
    w->used = 0;
    return STATUS_OK;
}

status corpus_index_add(struct corpus_index_writer *w, uint32_t begin)
{
    w->buffer[w->used++] = begin;
    w->count++;
    return w->used == BUFFER_ENTRIES ? flush(w) : STATUS_OK;
}

status corpus_index_sync(struct corpus_index_writer *w)
{
    TRY(flush(w));
    return io_sync(&w->file);
}

status corpus_index_commit(struct corpus_index_writer **out, int64_t tokens, uint64_t *xxh64)
{
    struct corpus_index_writer *w = *out;
    struct header h = {
        .version = VERSION, .entry_bytes = ENTRY_BYTES, .tokens = tokens, .documents = w->count};
    status st;
    memcpy(h.magic, magic, sizeof magic);
    TRY_OUT(flush(w));
    *xxh64 = h.xxh64 = XXH64_digest(w->hash);
    TRY_OUT(io_pwrite(&w->file, &h, sizeof h, 0));
    TRY_OUT(io_commit(&w->file));
out:
    corpus_index_leave(out);
    return st;
}

status corpus_index_load(const char *temp, int64_t documents, uint32_t **begins)
{
    *begins = NULL;
    if (documents == 0) return STATUS_OK;
    int fd;
    int64_t bytes;
    TRY(io_open(temp, LINKS_REFUSE, &fd, &bytes));
    status st = STATUS_OK;
    if ((bytes - HEADER_BYTES) / ENTRY_BYTES < documents)
        st = FAIL(STATUS_DATA, "'%s' has %lld bytes, expected at least %lld entries", temp, (long long)bytes,
                  (long long)documents);
    if (st == STATUS_OK) {
        *begins = malloc((size_t)documents * ENTRY_BYTES);
        MEMORY_CHECK(*begins, "no memory for %lld documents", (long long)documents);
        st = io_pread(fd, temp, *begins, (size_t)documents * ENTRY_BYTES, HEADER_BYTES);
    }
    io_close(&fd);
    if (st == STATUS_OK) return st;
    free(*begins);
    *begins = NULL;
    return st;
}

void corpus_index_leave(struct corpus_index_writer **out)
{
    if (!*out) return;
    io_leave(&(*out)->file);
    XXH64_freeState((*out)->hash);
    free(*out);
    *out = NULL;
}
