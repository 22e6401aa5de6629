#include "data/shard/shard_mask.h"

#include "base/io.h"
#include "data/shard/corpus_index.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { HEADER_BYTES = 64, BUFFER_BYTES = 65536, VERSION = 1 };

struct header {
    char magic[8];
    uint32_t version, token_bits;
    int64_t tokens, targets;
    uint64_t xxh64;
    uint8_t zero[24];
};
static_assert(sizeof(struct header) == HEADER_BYTES, "the header of a mask has 64 bytes");
static const char magic[8] = {'I', 'N', 'G', 'O', 'T', 'M', 'S', 'K'};

void shard_mask_name(const char *shard, char *out, size_t size)
{
    corpus_beside(shard, ".mask", out, size);
}

static int64_t count_ones(const uint8_t *bits, size_t bytes)
{
    int64_t ones = 0;
    for (size_t i = 0; i < bytes; i++) ones += __builtin_popcount(bits[i]);
    return ones;
}

status shard_mask_parse(struct shard_mask *m, const char *path, const void *data, size_t bytes)
{
    struct header h;
    *m = (struct shard_mask){0};
    if (bytes < HEADER_BYTES || memcmp(data, magic, sizeof magic) != 0)
        return FAIL(STATUS_DATA, "%s: not a mask of targets: it does not begin with INGOTMSK", path);
    memcpy(&h, data, sizeof h);
    if (h.version != VERSION || h.token_bits != 1)
        return FAIL(STATUS_DATA, "%s: version %u with %u bits per token, expected version %d with 1", path,
                    h.version, h.token_bits, VERSION);
    static const uint8_t zero[sizeof h.zero];
    if (memcmp(h.zero, zero, sizeof zero) != 0)
        return FAIL(STATUS_DATA, "%s: bytes 40 to 63 are not zero: the file is damaged", path);
    const uint8_t *bits = (const uint8_t *)data + HEADER_BYTES;
    const size_t room = bytes - HEADER_BYTES;
    if (h.tokens < 0 || h.tokens > INT64_MAX - 7 || (uint64_t)(h.tokens + 7) / 8 != room)
        return FAIL(STATUS_DATA, "%s: %zu bytes, expected 64 + %lld tokens / 8", path, bytes,
                    (long long)h.tokens);
    const uint64_t sum = XXH64(bits, room, 0);
    if (sum != h.xxh64)
        return FAIL(STATUS_DATA, "%s: checksum %016llx, expected %016llx: the file is damaged", path,
                    (unsigned long long)sum, (unsigned long long)h.xxh64);
    const int64_t ones = count_ones(bits, room);
    if (ones != h.targets || (h.tokens % 8 && bits[room - 1] >> h.tokens % 8))
        return FAIL(STATUS_DATA, "%s: %lld of its %lld tokens are targets, its header says %lld", path,
                    (long long)ones, (long long)h.tokens, (long long)h.targets);
    *m = (struct shard_mask){h.tokens, ones, bits, sum};
    return STATUS_OK;
}

struct shard_mask_writer {
    struct io_file file;
    XXH64_state_t *hash; /* of the bytes in the file */
    int64_t tokens, targets;
    int64_t written; /* bytes of bits in the file that are complete */
    size_t used;     /* bytes of the buffer, with the incomplete last one */
    uint8_t buffer[BUFFER_BYTES];
};

/* Takes the bits of `tokens` tokens from the file at `temp`. */
static status read_back(struct shard_mask_writer *w, const char *temp, int64_t tokens)
{
    int fd;
    int64_t bytes;
    const int64_t want = (tokens + 7) / 8;
    TRY(io_open(temp, LINKS_REFUSE, &fd, &bytes));
    status st = bytes < HEADER_BYTES + want ? FAIL(STATUS_DATA, "'%s' has %lld bytes, expected at least %lld",
                                                   temp, (long long)bytes, (long long)(HEADER_BYTES + want))
                                            : STATUS_OK;
    while (st == STATUS_OK && w->written + (int64_t)w->used < want) {
        const int64_t left = want - w->written, n = left < BUFFER_BYTES ? left : BUFFER_BYTES;
        st = io_pread(fd, temp, w->buffer, (size_t)n, HEADER_BYTES + w->written);
        const int64_t whole = n == left ? tokens / 8 - w->written : n;
        XXH64_update(w->hash, w->buffer, (size_t)whole);
        w->targets += count_ones(w->buffer, (size_t)whole);
        w->written += whole;
        w->used = (size_t)(n - whole);
        if (w->used) w->buffer[0] = (uint8_t)(w->buffer[whole] & ((1u << tokens % 8) - 1));
    }
    if (w->used) w->targets += count_ones(w->buffer, 1);
    w->tokens = tokens;
    io_close(&fd);
    return st;
}

status shard_mask_create(struct shard_mask_writer **out, const char *path, const char *temp, int64_t tokens)
{
    static const char zero[HEADER_BYTES]; /* a truncated mask has no magic */
    struct shard_mask_writer *w = *out = calloc(1, sizeof *w);
    MEMORY_CHECK(w && (w->hash = XXH64_createState()), "no memory for a mask");
    XXH64_reset(w->hash, 0);
    w->file.fd = -1;
    status st;
    if (tokens > 0) TRY_OUT(read_back(w, temp, tokens));
    TRY_OUT(io_reopen(&w->file, path, temp, tokens ? HEADER_BYTES + tokens / 8 : 0));
    if (tokens == 0) TRY_OUT(io_write(&w->file, zero, sizeof zero));
out:
    if (st != STATUS_OK) shard_mask_leave(out);
    return st;
}

/* Writes the complete bytes of the buffer. */
static status flush(struct shard_mask_writer *w)
{
    const size_t whole = (size_t)(w->tokens / 8 - w->written);
    XXH64_update(w->hash, w->buffer, whole);
    TRY(io_write(&w->file, w->buffer, whole));
    w->written += (int64_t)whole;
    if (whole < w->used) w->buffer[0] = w->buffer[whole];
    w->used -= whole;
    return STATUS_OK;
}

status shard_mask_add(struct shard_mask_writer *w, const uint8_t *targets, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const int bit = (int)(w->tokens % 8);
        if (bit == 0 && w->used == BUFFER_BYTES) TRY(flush(w));
        if (bit == 0) w->buffer[w->used++] = 0;
        w->buffer[w->used - 1] = (uint8_t)(w->buffer[w->used - 1] | (targets[i] & 1) << bit);
        w->targets += targets[i] & 1;
        w->tokens++;
    }
    return STATUS_OK;
}

/* The incomplete last byte goes to its place, and again when it is complete. */
static status write_rest(struct shard_mask_writer *w)
{
    TRY(flush(w));
    return w->used ? io_pwrite(&w->file, w->buffer, 1, HEADER_BYTES + w->written) : STATUS_OK;
}

status shard_mask_sync(struct shard_mask_writer *w)
{
    TRY(write_rest(w));
    return io_sync(&w->file);
}

status shard_mask_commit(struct shard_mask_writer **out, uint64_t *xxh64)
{
    struct shard_mask_writer *w = *out;
    struct header h = {.version = VERSION, .token_bits = 1, .tokens = w->tokens, .targets = w->targets};
    status st;
    memcpy(h.magic, magic, sizeof magic);
    TRY_OUT(write_rest(w));
    if (w->used) XXH64_update(w->hash, w->buffer, 1);
    *xxh64 = h.xxh64 = XXH64_digest(w->hash);
    TRY_OUT(io_pwrite(&w->file, &h, sizeof h, 0));
    TRY_OUT(io_commit(&w->file));
out:
    shard_mask_leave(out);
    return st;
}

void shard_mask_leave(struct shard_mask_writer **out)
{
    if (!*out) return;
    io_leave(&(*out)->file);
    XXH64_freeState((*out)->hash);
    free(*out);
    *out = NULL;
}
