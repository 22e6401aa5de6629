/* Private to the Parquet reader: metadata, pages, values. */
#ifndef INGOT_DATA_READ_PARQUET_INT_H
#define INGOT_DATA_READ_PARQUET_INT_H
#include "base/status.h"
#include "data/read/source.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The numbers are those of the format. */
enum { PARQUET_INT32 = 1, PARQUET_INT64 = 2, PARQUET_BYTE_ARRAY = 6 };
enum {
    PARQUET_NONE = 0,
    PARQUET_SNAPPY = 1,
    PARQUET_GZIP = 2,
    PARQUET_BROTLI = 4,
    PARQUET_ZSTD = 6,
    PARQUET_LZ4_RAW = 7
};
enum { PARQUET_DATA = 0, PARQUET_DICTIONARY = 2, PARQUET_DATA_V2 = 3 };
enum {
    PARQUET_PLAIN = 0,
    PARQUET_PLAIN_DICTIONARY = 2,
    PARQUET_RLE = 3,
    PARQUET_DELTA_BINARY_PACKED = 5,
    PARQUET_DELTA_LENGTH_BYTE_ARRAY = 6,
    PARQUET_DELTA_BYTE_ARRAY = 7,
    PARQUET_RLE_DICTIONARY = 8
};
const char *parquet_encoding_name(int encoding);

/* parquet_meta.c: the part of the footer that concerns our column. */
struct parquet_chunk { /* the column in one row group */
    int64_t at, bytes; /* byte range of its pages in the file */
    int64_t values, rows;
    int64_t row;       /* first row of the group, counted in the file */
    int codec;
};
struct parquet_meta {
    int type;
    int def_max, rep_max; /* levels; rep_max 0 or 1 */
    int def_list;         /* rep_max 1: the minimum definition level of a list with an element */
    struct parquet_chunk *chunks;
    int64_t count, rows;
    size_t room;
    bool has_groups;
};
/* Parses `footer`, the metadata without its length and the magic. `name` is the name of the file. */
status parquet_meta_read(struct parquet_meta *m, const char *name, const uint8_t *footer, size_t bytes,
                         int64_t file_bytes,
                         const char *column) WARN_UNUSED;
void parquet_meta_free(struct parquet_meta *m);

/* parquet_page.c */
struct parquet_header {
    int type;
    size_t bytes;                  /* size of the header itself */
    uint32_t unpacked, packed;     /* size of the page: decompressed, compressed */
    uint32_t crc;
    bool has_crc;
    int encoding, def_encoding, rep_encoding;
    int32_t values, rows;          /* rows: only in v2; else -1 */
    uint32_t def_bytes, rep_bytes; /* only in v2 */
    bool compressed;
};
enum parquet_parse { PARQUET_GOOD, PARQUET_CUT, PARQUET_BAD };
enum parquet_parse parquet_header_read(struct parquet_header *h, const uint8_t *p, size_t bytes);

struct parquet_unpacker; /* state of the codec libraries between pages; one per thread */
struct parquet_unpacker *parquet_unpacker_new(void);
void parquet_unpacker_free(struct parquet_unpacker *u);
/* Checks sizes before memory is allocated for a page. Returns NULL, or the fault. */
const char *parquet_sizes_wrong(const struct parquet_header *h, int codec, const uint8_t *body);
/* Decompresses a page to h->unpacked bytes, levels first. Returns NULL, or the fault. */
const char *parquet_unpack(struct parquet_unpacker *u, const struct parquet_header *h, int codec, const uint8_t *body,
                           uint8_t *out);

/* parquet_values.c: decoders over one page. Each returns `false`, or fewer values than requested, when the bytes end
 * or are invalid. */
struct parquet_rle { /* RLE and bit-packed hybrid */
    const uint8_t *p, *end;
    int width;
    uint32_t left;  /* values left in the run */
    bool packed;    /* the values left are bit-packed at p, starting at `bit`; else each is `value` */
    uint32_t value;
    size_t bit;
};
void parquet_rle_init(struct parquet_rle *r, const uint8_t *p, size_t bytes, int width);
bool parquet_rle_read(struct parquet_rle *r, uint32_t *out, int64_t count);

struct parquet_delta { /* DELTA_BINARY_PACKED */
    const uint8_t *p, *end;
    uint64_t last, delta_min;
    int64_t left;             /* remaining values */
    uint32_t block, minis;    /* values per block; miniblocks per block */
    uint32_t mini, mini_left; /* current miniblock; its remaining values */
    const uint8_t *widths;
    int width;
    size_t bit;
    bool first;
};

struct parquet_entry { /* an entry of a dictionary of texts */
    uint32_t at, bytes;
};
struct parquet_dictionary {
    size_t at;                     /* offset of its page in the data */
    size_t bytes;
    struct parquet_entry *entries; /* texts: positions in the page */
    int64_t count, room;
};
const char *parquet_dictionary_read(struct parquet_dictionary *d, const uint8_t *page, size_t bytes, int type,
                                    int64_t values);

struct parquet_values {
    int encoding, type;
    const uint8_t *p, *end;
    struct parquet_rle indices;
    struct parquet_delta prefixes, lengths; /* lengths also decodes the numbers of DELTA_BINARY_PACKED */
};
bool parquet_values_known(int encoding, int type);
/* Starts a decoder. `values` is the maximum number of values. Returns NULL, or the fault. */
const char *parquet_values_init(struct parquet_values *v, int encoding, int type, const uint8_t *p, size_t bytes,
                                int64_t values, const struct parquet_dictionary *dictionary);
/* Decodes `count` numbers. */
bool parquet_values_ids(struct parquet_values *v, const struct parquet_dictionary *dictionary, const uint8_t *data,
                        int64_t *out, int64_t count);
/* The next text. With DELTA_BYTE_ARRAY it is appended to the first `prefix` bytes of the previous text. */
struct parquet_text {
    const uint8_t *text;
    uint32_t prefix, bytes;
};
bool parquet_values_text(struct parquet_values *v, const struct parquet_dictionary *dictionary, const uint8_t *data,
                         struct parquet_text *out);

/* parquet_load.c: loads pages in sets of about the requested number of bytes, decompressed into `data`. */
enum parquet_kind { PARQUET_PAGE, PARQUET_ENTRIES, PARQUET_PASSED, PARQUET_GROUP_END };
struct parquet_page {
    enum parquet_kind kind; /* PASSED: its rows are not wanted, and nothing was read */
    struct parquet_header header;
    int64_t file_at, rows;  /* rows: -1 when not in the header */
    size_t raw_at, at;      /* offsets of the body, compressed and decompressed */
    const char *wrong;      /* NULL: no fault */
};
struct parquet_pages {
    const struct source *source;
    const struct parquet_meta *meta;
    int64_t group, at;      /* next position: row group, byte of its chunk */
    int64_t values;         /* values of the chunk before that position */
    int64_t row, row_wanted; /* first row of the next page in the group, or -1; pages before row_wanted are skipped */
    uint8_t *raw;           /* compressed pages of the set, then bytes of the chunk up to `raw_end` in the file */
    size_t raw_room, raw_next, raw_used;
    int64_t raw_end;
    uint8_t *data;
    size_t data_room, data_used;
    struct parquet_page *list;
    size_t count, room;
    struct parquet_unpacker **unpackers;
    int unpacker_count;
};
/* Loads the next set. Moves `kept` bytes of the data at `keep` to its beginning. count 0: no more pages. */
status parquet_pages_load(struct parquet_pages *p, size_t bytes, size_t keep, size_t kept) WARN_UNUSED;
void parquet_pages_seek(struct parquet_pages *p, int64_t group, int64_t row);
void parquet_pages_free(struct parquet_pages *p);
#endif
