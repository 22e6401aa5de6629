/* Megatron's indexed data set: NAME.bin holds bare ids, NAME.idx the ends of sequences and documents.
 *
 *   0    'MMIDIDX' 0 0
 *   9    u64 version 1
 *   17   u8  type: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 6 f64, 7 f32, 8 u16
 *   18   u64 S sequences
 *   26   u64 D, one more than the documents
 *   34   S x i32 tokens of each sequence
 *        S x i64 bytes of NAME.bin before it
 *        D x i64 sequences before each document; the last is S
 *        nothing, or S x i8 modes (images among the text)
 *
 * A document may have several sequences (sentences). The sequences must be contiguous in NAME.bin, as every
 * writer leaves them; the ids are then one stream. Opening reads the first and the last entries;
 * shard_megatron_walk reads all. */
#include "data/shard/shard_int.h"

#include "base/io.h"

#include <limits.h>
#include <stdlib.h>

enum { HEADER = 34 };

static status type_of(const struct shard *s, int code, enum shard_type *out)
{
    static const enum shard_type codes[9] = {
        [1] = SHARD_TYPE_U8,  [2] = SHARD_TYPE_I8,  [3] = SHARD_TYPE_I16,
        [4] = SHARD_TYPE_I32, [5] = SHARD_TYPE_I64, [8] = SHARD_TYPE_U16};
    *out = code < 9 ? codes[code] : SHARD_TYPE_UNKNOWN;
    if (*out != SHARD_TYPE_UNKNOWN) return STATUS_OK;
    return FAIL(STATUS_DATA,
                "%s: type %d in its .idx%s: token ids are 1 (u8), 3 (i16), 4 (i32), 5 (i64) or 8 (u16)",
                s->path, code,
                code == 6   ? " (f64)"
                : code == 7 ? " (f32)"
                            : "");
}

struct index {
    int64_t sequences, documents; /* documents: one less than D */
    const uint8_t *lengths, *offsets, *ends;
};

/* Checks that the arrays are inside the index. */
static status layout(const struct shard *s, struct index *x)
{
    int64_t rest = s->index_bytes - HEADER;
    if (rest < 0)
        return FAIL(STATUS_DATA, "%s: its .idx has %lld bytes: truncated in the header", s->path,
                    (long long)s->index_bytes);
    int64_t version = shard_i64(s->index + 9);
    if (version != 1)
        return FAIL(STATUS_DATA, "%s: version %lld in its .idx, expected 1%s", s->path, (long long)version,
                    version == 1ll << 56 ? ": it was written on a big-endian machine" : "");
    int64_t sequences = shard_i64(s->index + 18), ends = shard_i64(s->index + 26);
    if (sequences < 0 || ends < 1 || sequences > rest / 12 || ends > (rest - sequences * 12) / 8)
        return FAIL(STATUS_DATA,
                    "%s: its .idx of %lld bytes cannot hold %lld sequences and %lld document ends: it is "
                    "truncated",
                    s->path, (long long)s->index_bytes, (long long)sequences, (long long)ends);
    int64_t behind = rest - sequences * 12 - ends * 8;
    if (behind != 0 && behind == sequences)
        return FAIL(STATUS_DATA, "%s: its .idx has modes: a multimodal data set is not supported", s->path);
    if (behind != 0)
        return FAIL(STATUS_DATA, "%s: its .idx has %lld bytes too many", s->path, (long long)behind);
    x->sequences = sequences;
    x->documents = ends - 1;
    x->lengths = s->index + HEADER;
    x->offsets = x->lengths + sequences * 4;
    x->ends = x->offsets + sequences * 8;
    return STATUS_OK;
}

status shard_megatron_parse(struct shard *s, const uint8_t *data, int64_t bytes)
{
    struct index x;
    enum shard_type type;
    TRY(layout(s, &x));
    TRY(type_of(s, s->index[17], &type));
    shard_set_type(s, type);
    int64_t end = 0, last = x.sequences - 1;
    if (x.sequences > 0) {
        int64_t offset = shard_i64(x.offsets + last * 8), length = shard_i32(x.lengths + last * 4);
        if (shard_i64(x.offsets) != 0 || length < 0 || offset < 0 ||
            __builtin_add_overflow(offset, length * s->width, &end))
            return FAIL(
                STATUS_DATA,
                "%s: its .idx is damaged: sequence 0 at byte %lld, sequence %lld at %lld with %lld tokens",
                s->path, (long long)shard_i64(x.offsets), (long long)last, (long long)offset,
                (long long)length);
    }
    if (end != bytes)
        return FAIL(STATUS_DATA, "%s: %lld bytes, but its .idx lists tokens up to byte %lld: %s", s->path,
                    (long long)bytes, (long long)end,
                    bytes < end ? "the file is truncated" : "the two files are not of one data set");
    int64_t first = shard_i64(x.ends), stop = shard_i64(x.ends + x.documents * 8);
    if (first != 0 || stop != x.sequences)
        return FAIL(STATUS_DATA,
                    "%s: the documents in its .idx go from sequence %lld to %lld, expected 0 to %lld",
                    s->path, (long long)first, (long long)stop, (long long)x.sequences);
    s->format = SHARD_MEGATRON;
    s->count = bytes / s->width;
    s->documents = x.documents;
    s->tokens = data;
    return STATUS_OK;
}

status shard_megatron_walk(const struct shard *s, shard_length_fn *each, void *ctx)
{
    struct index x;
    TRY(layout(s, &x));
    int64_t sequence = 0, at = 0; /* tokens before `sequence` */
    for (int64_t d = 1; d <= x.documents; d++) {
        int64_t end = shard_i64(x.ends + d * 8), begin = at;
        if (end < sequence || end > x.sequences)
            return FAIL(STATUS_DATA, "%s: document %lld in its .idx ends before sequence %lld of %lld",
                        s->path, (long long)d - 1, (long long)end, (long long)x.sequences);
        for (; sequence < end; sequence++) {
            int64_t length = shard_i32(x.lengths + sequence * 4),
                    offset = shard_i64(x.offsets + sequence * 8);
            if (length < 0 || offset != at * s->width || length > s->count - at)
                return FAIL(STATUS_DATA,
                            "%s: sequence %lld in its .idx has %lld tokens at byte %lld; expected at byte "
                            "%lld of %lld",
                            s->path, (long long)sequence, (long long)length, (long long)offset,
                            (long long)(at * s->width), (long long)(s->count * s->width));
            at += length;
        }
        TRY(each(ctx, at - begin));
    }
    if (at == s->count) return STATUS_OK;
    return FAIL(STATUS_DATA, "%s: its .idx lists %lld tokens, the file has %lld", s->path, (long long)at,
                (long long)s->count);
}

/* Into the buffer of an index being written, at offset `at`. */
static void put(uint8_t *to, int64_t value, int bytes)
{
    memcpy(to, &value, (size_t)bytes); /* little-endian */
}

status shard_megatron_index(const char *path, int width, const int32_t *lengths, int64_t count)
{
    struct io_file f;
    uint8_t header[HEADER] = "MMIDIDX";
    put(header + 9, 1, 8);
    put(header + 17, width == 2 ? 8 : 4, 1);
    put(header + 18, count, 8);
    put(header + 26, count + 1, 8);
    TRY(io_create(&f, path));
    enum { CHUNK = 8192 };
    uint8_t *chunk = malloc(CHUNK * 8);
    MEMORY_CHECK(chunk, "no memory for a chunk");
    status st;
    TRY_OUT(io_write(&f, header, sizeof header));
    TRY_OUT(io_write(&f, lengths, (size_t)count * 4));
    int64_t offset = 0;
    for (int64_t i = 0; i < count;) { /* the start of each sequence */
        int n = 0;
        for (; n < CHUNK && i < count; n++, i++) {
            put(chunk + n * 8, offset, 8);
            offset += (int64_t)lengths[i] * width;
        }
        TRY_OUT(io_write(&f, chunk, (size_t)n * 8));
    }
    for (int64_t i = 0; i <= count;) { /* one sequence per document */
        int n = 0;
        for (; n < CHUNK && i <= count; n++, i++) put(chunk + n * 8, i, 8);
        TRY_OUT(io_write(&f, chunk, (size_t)n * 8));
    }
    st = io_commit(&f);
out:
    free(chunk);
    if (st != STATUS_OK) io_abandon(&f);
    return st;
}
