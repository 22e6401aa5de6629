/* A page: its header, a Thrift struct PageHeader, and its body, compressed by one of the codecs. */
#include "data/read/parquet_int.h"

#include "data/read/snappy.h"
#include "data/read/thrift.h"

#include <brotli/decode.h>
#include <lz4.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

static void read_data_header(struct thrift *t, struct thrift_field field, struct parquet_header *h)
{
    struct thrift_field f = {0, THRIFT_STOP};
    if (!thrift_struct(t, field)) return;
    while (thrift_next(t, &f)) switch (f.id) {
        case 1: h->values = thrift_i32(t, f); break;
        case 2: h->encoding = thrift_i32(t, f); break;
        case 3: h->def_encoding = thrift_i32(t, f); break;
        case 4: h->rep_encoding = thrift_i32(t, f); break;
        default: thrift_skip(t, f.type); break;
        }
}

static void read_dictionary_header(struct thrift *t, struct thrift_field field, struct parquet_header *h)
{
    struct thrift_field f = {0, THRIFT_STOP};
    if (!thrift_struct(t, field)) return;
    while (thrift_next(t, &f)) switch (f.id) {
        case 1: h->values = thrift_i32(t, f); break;
        case 2: h->encoding = thrift_i32(t, f); break;
        default: thrift_skip(t, f.type); break;
        }
}

static void read_v2_header(struct thrift *t, struct thrift_field field, struct parquet_header *h)
{
    struct thrift_field f = {0, THRIFT_STOP};
    int64_t def = -1, rep = -1;
    if (!thrift_struct(t, field)) return;
    while (thrift_next(t, &f)) switch (f.id) {
        case 1: h->values = thrift_i32(t, f); break;
        case 3: h->rows = thrift_i32(t, f); break;
        case 4: h->encoding = thrift_i32(t, f); break;
        case 5: def = thrift_i32(t, f); break;
        case 6: rep = thrift_i32(t, f); break;
        case 7: h->compressed = f.type == THRIFT_TRUE; break;
        default: thrift_skip(t, f.type); break;
        }
    if (def < 0 || rep < 0 || h->rows < 0) t->bad = true;
    h->def_bytes = (uint32_t)def;
    h->rep_bytes = (uint32_t)rep;
}

enum parquet_parse parquet_header_read(struct parquet_header *h, const uint8_t *p, size_t bytes)
{
    struct thrift t = {.p = p, .end = p + bytes};
    struct thrift_field f = {0, THRIFT_STOP};
    int64_t unpacked = -1, packed = -1;
    *h = (struct parquet_header){.type = -1, .encoding = -1, .values = -1, .rows = -1, .compressed = true};
    h->def_encoding = h->rep_encoding = PARQUET_RLE;
    while (thrift_next(&t, &f)) switch (f.id) {
        case 1: h->type = thrift_i32(&t, f); break;
        case 2: unpacked = thrift_i32(&t, f); break;
        case 3: packed = thrift_i32(&t, f); break;
        case 4:
            h->crc = (uint32_t)thrift_i32(&t, f);
            h->has_crc = true;
            break;
        case 5: read_data_header(&t, f, h); break;
        case 7: read_dictionary_header(&t, f, h); break;
        case 8: read_v2_header(&t, f, h); break;
        default: thrift_skip(&t, f.type); break;
        }
    if (t.bad) return t.cut ? PARQUET_CUT : PARQUET_BAD;
    bool data = h->type == PARQUET_DATA || h->type == PARQUET_DATA_V2;
    if (unpacked < 0 || packed < 0 || h->type < 0) return PARQUET_BAD;
    if ((data || h->type == PARQUET_DICTIONARY) && h->values < 0) return PARQUET_BAD;
    if (h->type == PARQUET_DATA_V2 && h->rows < 0) return PARQUET_BAD;
    h->unpacked = (uint32_t)unpacked;
    h->packed = (uint32_t)packed;
    h->bytes = (size_t)(t.p - p);
    return PARQUET_GOOD;
}

/* Bytes at the start of the body that are never compressed. */
static uint32_t levels_bytes(const struct parquet_header *h)
{
    return h->type == PARQUET_DATA_V2 ? h->def_bytes + h->rep_bytes : 0;
}

static bool is_packed(const struct parquet_header *h, int codec)
{
    return codec != PARQUET_NONE && h->compressed;
}

/* The largest output of a codec per input byte: a page that claims more gets no memory. */
static uint64_t growth_max(int codec)
{
    switch (codec) {
    case PARQUET_SNAPPY: return 32; /* 64 bytes by a tag of 3 */
    case PARQUET_GZIP: return 1040;
    case PARQUET_LZ4_RAW: return 256;
    case PARQUET_BROTLI: return 1 << 20; /* a meta-block of 16 MiB by some 16 bytes */
    default: return 1 << 16;             /* zstd: a block of 128 KiB by 4 bytes */
    }
}

const char *parquet_sizes_wrong(const struct parquet_header *h, int codec, const uint8_t *body)
{
    uint64_t levels = (uint64_t)levels_bytes(h), claimed;
    if (h->type == PARQUET_DATA_V2 &&
        (h->def_bytes > h->packed || h->rep_bytes > h->packed - h->def_bytes || h->def_bytes > h->unpacked ||
         h->rep_bytes > h->unpacked - h->def_bytes))
        return "its levels are longer than the page";
    uint64_t in = h->packed - levels, out = h->unpacked - levels;
    if (!is_packed(h, codec)) return in == out ? NULL : "an uncompressed page with two different sizes";
    if (out == 0 && in == 0) return NULL;
    if (out > in * growth_max(codec) + 64) return "it claims more bytes than its compressed ones can hold";
    if (codec == PARQUET_SNAPPY && (!snappy_bytes(body + levels, in, &claimed) || claimed != out))
        return "its size differs from that of the snappy data";
    if (codec != PARQUET_ZSTD) return NULL;
    claimed = ZSTD_getFrameContentSize(body + levels, in);
    if (claimed == ZSTD_CONTENTSIZE_ERROR) return "the zstd data is damaged";
    return claimed == ZSTD_CONTENTSIZE_UNKNOWN || claimed <= out
               ? NULL
               : "its size differs from that of the zstd data";
}

struct parquet_unpacker {
    ZSTD_DCtx *zstd;
    z_stream gzip;
    bool gzip_open;
};

struct parquet_unpacker *parquet_unpacker_new(void)
{
    struct parquet_unpacker *u = calloc(1, sizeof *u);
    MEMORY_CHECK(u, "no memory for decompression");
    return u;
}

void parquet_unpacker_free(struct parquet_unpacker *u)
{
    if (!u) return;
    ZSTD_freeDCtx(u->zstd);
    if (u->gzip_open) inflateEnd(&u->gzip);
    free(u);
}

static const char *unpack_zstd(struct parquet_unpacker *u, const uint8_t *in, size_t in_bytes, uint8_t *out,
                               size_t bytes)
{
    if (!u->zstd) u->zstd = ZSTD_createDCtx();
    MEMORY_CHECK(u->zstd, "no memory for libzstd");
    size_t made = ZSTD_decompressDCtx(u->zstd, out, bytes, in, in_bytes);
    return made == bytes ? NULL : "the zstd data is damaged";
}

static const char *unpack_gzip(struct parquet_unpacker *u, const uint8_t *in, size_t in_bytes, uint8_t *out,
                               size_t bytes)
{
    enum { WINDOW_GZIP_OR_ZLIB = 15 + 32 };
    z_stream *z = &u->gzip;
    int result = u->gzip_open ? inflateReset(z) : inflateInit2(z, WINDOW_GZIP_OR_ZLIB);
    CHECK(result == Z_OK, "zlib cannot begin");
    u->gzip_open = true;
    z->next_in = (Bytef *)in; /* zlib's interface lacks const */
    z->avail_in = (uInt)in_bytes;
    z->next_out = out;
    z->avail_out = (uInt)bytes;
    while ((result = inflate(z, Z_FINISH)) == Z_STREAM_END &&
           z->avail_in > 0) /* members may follow each other */
        if (inflateReset(z) != Z_OK) break;
    return result == Z_STREAM_END && z->avail_out == 0 ? NULL : "the gzip data is damaged";
}

static const char *unpack_brotli(const uint8_t *in, size_t in_bytes, uint8_t *out, size_t bytes)
{
    size_t made = bytes;
    const bool good = BrotliDecoderDecompress(in_bytes, in, &made, out) == BROTLI_DECODER_RESULT_SUCCESS;
    return good && made == bytes ? NULL : "the brotli data is damaged";
}

const char *parquet_unpack(struct parquet_unpacker *u, const struct parquet_header *h, int codec,
                           const uint8_t *body, uint8_t *out)
{
    if (h->has_crc && h->crc != (uint32_t)crc32_z(0, body, h->packed)) return "its checksum differs";
    uint32_t levels = levels_bytes(h);
    size_t in_bytes = h->packed - levels, bytes = h->unpacked - levels;
    memcpy(out, body, levels);
    out += levels;
    body += levels;
    if (!is_packed(h, codec)) {
        memcpy(out, body, bytes);
        return NULL;
    }
    if (bytes == 0 && in_bytes == 0) return NULL;
    int n;
    switch (codec) {
    case PARQUET_SNAPPY:
        return snappy_decode(body, in_bytes, out, bytes) ? NULL : "the snappy data is damaged";
    case PARQUET_ZSTD: return unpack_zstd(u, body, in_bytes, out, bytes);
    case PARQUET_GZIP: return unpack_gzip(u, body, in_bytes, out, bytes);
    case PARQUET_BROTLI: return unpack_brotli(body, in_bytes, out, bytes);
    default:
        n = LZ4_decompress_safe((const char *)body, (char *)out, (int)in_bytes, (int)bytes);
        return n >= 0 && (size_t)n == bytes ? NULL : "the lz4 data is damaged";
    }
}
