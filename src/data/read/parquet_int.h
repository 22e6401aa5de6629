/* Inside the Parquet reader: metadata, pages, values. */
#ifndef INGOT_DATA_READ_PARQUET_INT_H
#define INGOT_DATA_READ_PARQUET_INT_H
#include "base/status.h"
#include "data/read/source.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Numbers are the format's. */
enum { PARQUET_INT32 = 1, PARQUET_INT64 = 2, PARQUET_BYTE_ARRAY = 6 };
enum { PARQUET_NONE = 0, PARQUET_SNAPPY = 1, PARQUET_GZIP = 2, PARQUET_ZSTD = 6, PARQUET_LZ4_RAW = 7 };
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

/* parquet_meta.c: the footer, as far as it is about our column. */
struct parquet_chunk { /* the column in one row group */
    int64_t at, bytes; /* of its pages in the file */
    int64_t values, rows;
    int64_t row;       /* of the file: the group's first */
    int codec;
};
struct parquet_meta {
    int type;
    int def_max, rep_max; /* levels; rep_max 0 or 1 */
    int def_list;         /* rep_max 1: the definition level from which a list has an element */
    struct parquet_chunk *chunks;
    int64_t count, rows;
    size_t room;
    bool has_groups;
};
/* `footer`: the metadata without its length and the magic. `name`: of the file. */
status parquet_meta_read(struct parquet_meta *m, const char *name, const uint8_t *footer, size_t bytes, int64_t file_bytes,
                         const char *column) WARN_UNUSED;
void parquet_meta_free(struct parquet_meta *m);

/* parquet_page.c */
struct parquet_header {
    int type;
    size_t bytes;                  /* of the header itself */
    uint32_t unpacked, packed;     /* bytes of the page */
    uint32_t crc;
    bool has_crc;
    int encoding, def_encoding, rep_encoding;
    int32_t values, rows;          /* rows: of v2; else -1 */
    uint32_t def_bytes, rep_bytes; /* of v2 */
    bool compressed;
};
enum parquet_parse { PARQUET_GOOD, PARQUET_CUT, PARQUET_BAD };
enum parquet_parse parquet_header_read(struct parquet_header *h, const uint8_t *p, size_t bytes);

struct parquet_unpacker; /* what libraries keep between pages; one per thread */
struct parquet_unpacker *parquet_unpacker_new(void);
void parquet_unpacker_free(struct parquet_unpacker *u);
/* NULL, or what is wrong with sizes: asked before memory is got for a page. */
const char *parquet_sizes_wrong(const struct parquet_header *h, int codec, const uint8_t *body);
/* The page's h->unpacked bytes, levels in front. NULL, or what is wrong. */
const char *parquet_unpack(struct parquet_unpacker *u, const struct parquet_header *h, int codec, const uint8_t *body,
                           uint8_t *out);

/* parquet_values.c: decoders over one page. Each gives `false` or less than was asked for when the bytes end or are wrong. */
struct parquet_rle { /* RLE and bit-packed hybrid */
    const uint8_t *p, *end;
    int width;
    uint32_t left;  /* of the run */
    bool packed;    /* left values lie at p from `bit` on; else each is `value` */
    uint32_t value;
    size_t bit;
};
void parquet_rle_init(struct parquet_rle *r, const uint8_t *p, size_t bytes, int width);
bool parquet_rle_read(struct parquet_rle *r, uint32_t *out, int64_t count);

struct parquet_delta { /* DELTA_BINARY_PACKED */
    const uint8_t *p, *end;
    uint64_t last, delta_min;
    int64_t left;             /* values that are still to come */
    uint32_t block, minis;    /* values of a block; its miniblocks */
    uint32_t mini, mini_left; /* miniblock; values of it still to come */
    const uint8_t *widths;
    int width;
    size_t bit;
    bool first;
};

struct parquet_entry { /* of a dictionary of texts */
    uint32_t at, bytes;
};
struct parquet_dictionary {
    size_t at;                     /* of its page in the data */
    size_t bytes;
    struct parquet_entry *entries; /* texts: in the page */
    int64_t count, room;
};
const char *parquet_dictionary_read(struct parquet_dictionary *d, const uint8_t *page, size_t bytes, int type,
                                    int64_t values);

struct parquet_values {
    int encoding, type;
    const uint8_t *p, *end;
    struct parquet_rle indices;
    struct parquet_delta prefixes, lengths; /* lengths: also the numbers of DELTA_BINARY_PACKED */
};
bool parquet_values_known(int encoding, int type);
/* NULL, or what is wrong. `values`: how many there can be at most. */
const char *parquet_values_init(struct parquet_values *v, int encoding, int type, const uint8_t *p, size_t bytes,
                                int64_t values, const struct parquet_dictionary *dictionary);
/* `count` numbers. */
bool parquet_values_ids(struct parquet_values *v, const struct parquet_dictionary *dictionary, const uint8_t *data,
                        int64_t *out, int64_t count);
/* The next text; of DELTA_BYTE_ARRAY it stands behind the first `prefix` bytes of the last one. */
struct parquet_text {
    const uint8_t *text;
    uint32_t prefix, bytes;
};
bool parquet_values_text(struct parquet_values *v, const struct parquet_dictionary *dictionary, const uint8_t *data,
                         struct parquet_text *out);

/* parquet_load.c: pages, a set of about as many bytes as asked for at a time, unpacked into `data`. */
enum parquet_kind { PARQUET_PAGE, PARQUET_ENTRIES, PARQUET_PASSED, PARQUET_GROUP_END };
struct parquet_page {
    enum parquet_kind kind; /* PASSED: its rows are not wanted, nothing of it was read */
    struct parquet_header header;
    int64_t file_at, rows;  /* rows: -1 when the header does not say */
    size_t raw_at, at;      /* of the body, packed and unpacked */
    const char *wrong;      /* NULL: good */
};
struct parquet_pages {
    const struct source *source;
    const struct parquet_meta *meta;
    int64_t group, at;      /* what comes next: row group, byte of its chunk */
    int64_t values;         /* of the chunk, in front of that */
    int64_t row, row_wanted; /* of the group: of the next page, or -1; pages in front of row_wanted are passed over */
    uint8_t *raw;           /* packed pages of the set, then bytes of the chunk up to `raw_end` in the file */
    size_t raw_room, raw_next, raw_used;
    int64_t raw_end;
    uint8_t *data;
    size_t data_room, data_used;
    struct parquet_page *list;
    size_t count, room;
    struct parquet_unpacker **unpackers;
    int unpacker_count;
};
/* The first `kept` bytes of the data at `keep` stay, at its beginning. count 0: there are no more. */
status parquet_pages_load(struct parquet_pages *p, size_t bytes, size_t keep, size_t kept) WARN_UNUSED;
void parquet_pages_seek(struct parquet_pages *p, int64_t group, int64_t row);
void parquet_pages_free(struct parquet_pages *p);
#endif
