/* Reads and writes the bulk of a checkpoint. A chunk is 1 MiB of one tensor, or up to 16; each is
 * summed and moved in pieces that stay in the cache between the two, straight from and to the caller's
 * memory. */
#include "base/hash.h"
#include "base/parallel.h"
#include "train/ckpt_int.h"
#include "train/ckpt_pieces.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL /* for the vectors that this file is compiled for: the library has those of the oldest CPU */
#include <xxhash.h>

enum { PIECE = 1 << 20, HASH_BLOCK = 4096, SYNC_BYTES = 32 << 20 };
_Static_assert((int)HASH_BLOCK <= (int)CKPT_CHUNK_BYTES_MIN, "a block lies in one chunk");

/* The checksum covers the chunk's position too, so an intact chunk of another run, step, tensor or position
 * fails. chunk -1: the header of the file. */
static uint32_t place_crc(const struct ckpt_manifest *m, int file, int tensor, int64_t chunk)
{
    char place[128];
    int n = snprintf(place, sizeof place, "%s %lld %d %d %lld\n", m->run_id, (long long)m->step, file, tensor,
                     (long long)chunk);
    return crc32c(0, place, (size_t)n);
}

uint32_t ckpt_chunk_header_crc(const struct ckpt_manifest *m, int file, const void *header, int64_t bytes)
{
    return crc32c(place_crc(m, file, -1, -1), header, (size_t)bytes);
}

/* Sum of the hashes of blocks, each seeded with its number: independent of order, chunks and files. */
static uint64_t hash_blocks(const char *data, int64_t bytes, int64_t at)
{
    uint64_t sum = 0;
    for (int64_t b = 0; b < bytes; b += HASH_BLOCK) {
        int64_t n = bytes - b < HASH_BLOCK ? bytes - b : HASH_BLOCK;
        sum += XXH3_64bits_withSeed(data + b, (size_t)n, (uint64_t)((at + b) / HASH_BLOCK));
    }
    return sum;
}

/* The first failure of a parallel loop. The message of a worker's status is in that thread's record. */
struct failure {
    bool claimed;
    int st;
    char message[1024];
};

static void keep_failure(struct failure *f, status st)
{
    if (__atomic_exchange_n(&f->claimed, true, __ATOMIC_ACQ_REL)) return;
    snprintf(f->message, sizeof f->message, "%s", status_message());
    __atomic_store_n(&f->st, (int)st, __ATOMIC_RELEASE);
}

static bool failed(struct failure *f)
{
    return __atomic_load_n(&f->st, __ATOMIC_ACQUIRE) != STATUS_OK;
}

static status result(const struct failure *f)
{
    return f->st ? FAIL((status)f->st, "%s", f->message) : STATUS_OK;
}

/* Chunk `index` of the list of tensors: which entry of the list, and which chunk of it. */
struct piece_of {
    int entry;
    int64_t chunk;
    int64_t turn; /* of writing: which one of its file */
};

/* The chunks of `which` in one list; malloc'd. */
static struct piece_of *list_chunks(const struct ckpt_manifest *m, const int *which, int count,
                                    int64_t *chunks)
{
    int64_t total = 0;
    for (int i = 0; i < count; i++) total += ckpt_manifest_chunks(m->tensors[which[i]].bytes, m->chunk_bytes);
    struct piece_of *list = malloc(((size_t)total + 1) * sizeof *list);
    int64_t n = 0;
    for (int i = 0; list && i < count; i++)
        for (int64_t c = 0; c < ckpt_manifest_chunks(m->tensors[which[i]].bytes, m->chunk_bytes); c++)
            list[n++] = (struct piece_of){.entry = i, .chunk = c};
    *chunks = total;
    return list;
}

/* The end of a chunk in its tensor. */
static int64_t chunk_end(const struct ckpt_manifest *m, int tensor, int64_t chunk)
{
    const int64_t end = (chunk + 1) * m->chunk_bytes, bytes = m->tensors[tensor].bytes;
    return end < bytes ? end : bytes;
}

/* The kernel begins to write to the disk at once, not at the end when the file is synced. */
static void written(struct io_file *f, int64_t *since, int64_t bytes)
{
    const int64_t before = __atomic_fetch_add(since, bytes, __ATOMIC_RELAXED);
    if (before / SYNC_BYTES != (before + bytes) / SYNC_BYTES) io_begin_sync(f);
}

/* Files that are being written, and how much of each. */
struct writing {
    struct ckpt_manifest *m;
    struct io_file *files;
    int64_t *since;
};

static status write_chunk(const struct writing *w, int tensor, int64_t chunk)
{
    struct ckpt_manifest *m = w->m;
    struct ckpt_manifest_tensor *t = &m->tensors[tensor];
    struct io_file *f = &w->files[t->file];
    const int64_t begin = chunk * m->chunk_bytes, end = chunk_end(m, tensor, chunk);
    uint32_t crc = place_crc(m, t->file, tensor, chunk);
    uint64_t hash = 0;
    for (int64_t at = begin; at < end; at += PIECE) {
        const char *data = (const char *)t->item.data + at;
        int64_t n = end - at < PIECE ? end - at : PIECE;
        crc = crc32c(crc, data, (size_t)n);
        hash += hash_blocks(data, n, at);
        TRY(io_pwrite(f, data, (size_t)n, t->offset + at));
        written(f, &w->since[t->file], n);
    }
    m->crcs[t->chunk_first + chunk] = crc;
    __atomic_fetch_add(&t->hash, hash, __ATOMIC_RELAXED);
    return STATUS_OK;
}

static int by_turn(const void *a, const void *b)
{
    const struct piece_of *x = a, *y = b;
    if (x->turn != y->turn) return x->turn < y->turn ? -1 : 1;
    return (x->entry > y->entry) - (x->entry < y->entry); /* entries are in file order */
}

/* Deals out chunks, which are in file order, over the files: a file system lets one thread at a time write to a file,
 * so several threads write to several files. */
static void deal(const struct ckpt_manifest *m, const int *which, struct piece_of *list, int64_t chunks)
{
    int file = -1;
    for (int64_t i = 0, turn = 0; i < chunks; i++) {
        const int of = m->tensors[which[list[i].entry]].file;
        if (of != file) turn = 0;
        file = of;
        list[i].turn = turn++;
    }
    qsort(list, (size_t)chunks, sizeof *list, by_turn);
}

/* Writes tensors [first, end), which are in memory. */
static status write_tensors(const struct writing *w, int first, int end)
{
    const struct ckpt_manifest *m = w->m;
    int *all = malloc(((size_t)(end - first) + 1) * sizeof *all);
    for (int i = first; all && i < end; i++) all[i - first] = i;
    int64_t chunks = 0;
    struct piece_of *list = all ? list_chunks(m, all, end - first, &chunks) : NULL;
    if (!list) {
        free(all);
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the list of chunks of %d tensors", end - first);
    }
    deal(m, all, list, chunks);
    struct failure failure = {0};
    PARALLEL_CHUNKS(c, chunks)
    {
        if (!failed(&failure)) {
            status st = write_chunk(w, all[list[c].entry], list[c].chunk);
            if (st != STATUS_OK) keep_failure(&failure, st);
        }
    }
    free(list);
    free(all);
    return result(&failure);
}

/* Writes a tensor that `fill` provides, from a temporary buffer. */
static status write_fetched(const struct writing *w, int tensor)
{
    struct ckpt_manifest_tensor *t = &w->m->tensors[tensor];
    t->item.data = malloc((size_t)t->bytes + 1);
    if (t->item.data == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the %lld bytes of '%s'", (long long)t->bytes,
                    t->item.name);
    status st = t->item.fill(t->item.ctx, &t->item, t->item.data);
    if (st == STATUS_OK) st = write_tensors(w, tensor, tensor + 1);
    free(t->item.data);
    t->item.data = NULL;
    return st;
}

static status write_each(const struct writing *w, struct ckpt_span span)
{
    const struct ckpt_manifest *m = w->m;
    for (int i = span.first, end; i < span.end; i = end) {
        for (end = i; end < span.end && !m->tensors[end].item.fill; end++) {}
        if (end > i) {
            TRY(write_tensors(w, i, end));
            continue;
        }
        TRY(write_fetched(w, i));
        end = i + 1;
    }
    return STATUS_OK;
}

status ckpt_chunk_write(struct ckpt_manifest *m, struct io_file *files, struct ckpt_span span)
{
    const struct writing w = {m, files, calloc((size_t)m->file_count, sizeof *w.since)};
    if (w.since == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %d files", m->file_count);
    for (int i = span.first; i < span.end; i++) m->tensors[i].hash = 0; /* of a write that failed */
    const status st = write_each(&w, span);
    free(w.since);
    return st;
}

/* An item that is read from a piece: `data` begin at element `first` of the piece. */
struct scattering {
    const struct ckpt_item *to;
    const char *data;
    int64_t first, element;
};

/* ckpt_stretch_fn: copies a stretch to its place in the tensor. */
static bool scatter(void *ctx, int64_t at, int64_t to, int64_t count)
{
    const struct scattering *s = ctx;
    const char *from = s->data + (at - s->first) * s->element;
    const int64_t begin = to * s->element, bytes = count * s->element;
    if (s->to->take)
        s->to->take(s->to->ctx, s->to, from, begin, begin + bytes);
    else
        memcpy((char *)s->to->data + begin, from, (size_t)bytes);
    return false;
}

/* The same: whether the item needs anything of it. */
static bool needs(void *ctx, int64_t at, int64_t to, int64_t count)
{
    const struct scattering *s = ctx;
    (void)at;
    return s->to->take(s->to->ctx, s->to, NULL, to * s->element, (to + count) * s->element);
}

/* Whether an item needs anything of the bytes [begin, end) of a stored tensor. */
static bool wanted(const struct ckpt_manifest_tensor *t, const struct ckpt_item *item, int64_t begin,
                   int64_t end)
{
    struct scattering s = {.to = item, .element = (int64_t)dtype_bytes(t->item.dt)};
    if (item->take == NULL) return true;
    if (t->item.piece == NULL) return item->take(item->ctx, item, NULL, begin, end);
    return ckpt_piece_walk(t->item.piece, begin / s.element, end / s.element, needs, &s);
}

/* Hands bytes [begin, end) of a stored tensor to the item. */
static void hand_over(const struct ckpt_manifest_tensor *t, const struct ckpt_item *item, const char *data,
                      int64_t begin, int64_t end)
{
    const int64_t element = (int64_t)dtype_bytes(t->item.dt);
    struct scattering s = {item, data, begin / element, element};
    if (t->item.piece)
        (void)ckpt_piece_walk(t->item.piece, begin / element, end / element, scatter, &s);
    else if (item->take)
        item->take(item->ctx, item, data, begin, end);
}

/* Removes chunks that no item needs from the list; returns how many are left. */
static int64_t keep_wanted(const struct ckpt_manifest *m, const int *which, const struct ckpt_item *const *to,
                           struct piece_of *list, int64_t chunks)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < chunks; i++) {
        const int tensor = which[list[i].entry];
        const int64_t begin = list[i].chunk * m->chunk_bytes;
        const int64_t end = chunk_end(m, tensor, list[i].chunk);
        if (wanted(&m->tensors[tensor], to[list[i].entry], begin, end)) list[kept++] = list[i];
    }
    return kept;
}

/* `to`: the tensor's item, or NULL; `spare`: PIECE bytes to read into if the tensor has no memory of its own. */
static status read_chunk(const struct checkpoint *c, int fd, int tensor, int64_t chunk,
                         const struct ckpt_item *to, char *spare, uint64_t *hash)
{
    const struct ckpt_manifest *m = &c->manifest;
    const struct ckpt_manifest_tensor *t = &m->tensors[tensor];
    const char *file = m->files[t->file].name;
    const int64_t begin = chunk * m->chunk_bytes, end = chunk_end(m, tensor, chunk);
    const bool direct = to && !to->take && !t->item.piece;
    uint32_t crc = place_crc(m, t->file, tensor, chunk);
    for (int64_t at = begin; at < end; at += PIECE) {
        int64_t n = end - at < PIECE ? end - at : PIECE;
        char *data = direct ? (char *)to->data + at : spare;
        TRY(io_pread(fd, file, data, (size_t)n, t->offset + at));
        crc = crc32c(crc, data, (size_t)n);
        if (to && !direct) hand_over(t, to, data, at, at + n);
        if (hash) __atomic_fetch_add(hash, hash_blocks(data, n, at), __ATOMIC_RELAXED);
    }
    if (crc != m->crcs[t->chunk_first + chunk])
        return FAIL(STATUS_CKPT,
                    "%s/%s: tensor '%s' is damaged: checksum of bytes %lld to %lld is %08x, not %08x",
                    c->path, file, t->item.name, (long long)(t->offset + begin), (long long)(t->offset + end),
                    crc, m->crcs[t->chunk_first + chunk]);
    return STATUS_OK;
}

/* Descriptors of the files that contain the listed tensors, -1 for the others; malloc'd. */
static status open_files(const struct checkpoint *c, const int *which, int count, int **fds)
{
    const struct ckpt_manifest *m = &c->manifest;
    *fds = malloc((size_t)m->file_count * sizeof **fds);
    if (!*fds) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %d files", m->file_count);
    for (int i = 0; i < m->file_count; i++) (*fds)[i] = -1;
    for (int i = 0; i < count; i++) {
        int file = m->tensors[which[i]].file;
        char path[CKPT_PATH_MAX + 64];
        int64_t bytes;
        snprintf(path, sizeof path, "%s/%s", c->path, m->files[file].name);
        if ((*fds)[file] < 0) TRY(io_open(path, LINKS_REFUSE, &(*fds)[file], &bytes));
    }
    return STATUS_OK;
}

static status check_hashes(const struct checkpoint *c, const int *which, const uint64_t *hashes, int count)
{
    for (int i = 0; i < count; i++) {
        const struct ckpt_manifest_tensor *t = &c->manifest.tensors[which[i]];
        if (hashes[i] != t->hash)
            return FAIL(STATUS_CKPT, "%s: tensor '%s' has the hash %016llx, not %016llx", c->path,
                        t->item.name, (unsigned long long)hashes[i], (unsigned long long)t->hash);
    }
    return STATUS_OK;
}

status ckpt_chunk_read(const struct checkpoint *c, const int *which, const struct ckpt_item *const *to,
                       int count)
{
    const struct ckpt_manifest *m = &c->manifest;
    int *fds = NULL;
    int64_t chunks = 0;
    uint64_t *hashes = calloc((size_t)count + 1, sizeof *hashes);
    struct piece_of *list = list_chunks(m, which, count, &chunks);
    struct failure failure = {0};
    status st =
        hashes && list ? STATUS_OK : FAIL(STATUS_OUT_OF_MEMORY, "no memory to read %d tensors", count);
    if (st == STATUS_OK) st = open_files(c, which, count, &fds);
    if (st != STATUS_OK) goto out;
    if (to) chunks = keep_wanted(m, which, to, list, chunks);
#pragma omp parallel
    {
        char *spare = malloc(PIECE);
        if (!spare) keep_failure(&failure, FAIL(STATUS_OUT_OF_MEMORY, "no memory to read '%s'", c->path));
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < chunks; i++) {
            if (failed(&failure)) continue;
            int e = list[i].entry, tensor = which[e];
            status s = read_chunk(c, fds[m->tensors[tensor].file], tensor, list[i].chunk, to ? to[e] : NULL,
                                  spare, to ? NULL : &hashes[e]);
            if (s != STATUS_OK) keep_failure(&failure, s);
        }
        free(spare);
    }
    st = result(&failure);
    if (st == STATUS_OK && !to) st = check_hashes(c, which, hashes, count);
out:
    for (int i = 0; fds && i < m->file_count; i++) io_close(&fds[i]);
    free(fds);
    free(list);
    free(hashes);
    return st;
}
