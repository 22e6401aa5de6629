/* The encodings of values and levels (apache/parquet-format: its page on encodings). Decoders keep their position
 * and can stop in the middle of a page. Each read is bounded by the available bytes, never by a size in a
 * header. */
#include "data/read/parquet_int.h"

#include "data/text/array.h"

#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 8, FAST_WIDTH_MAX = 56, BLOCK_MAX = 1 << 20 };

static bool varint(const uint8_t **p, const uint8_t *end, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 64 && *p < end; shift += 7) {
        uint8_t b = *(*p)++;
        *value |= (uint64_t)(b & 0x7f) << shift;
        if (b < 0x80) return true;
    }
    return false;
}

static uint64_t zigzag(uint64_t n)
{
    return n >> 1 ^ (0 - (n & 1));
}

/* `width` bits of p from bit `at` on, at most up to `end`. */
static inline uint64_t bits(const uint8_t *p, const uint8_t *end, size_t at, int width)
{
    uint64_t mask = width == 64 ? UINT64_MAX : (1ull << width) - 1, word = 0;
    p += at / 8;
    at %= 8;
    if (width <= FAST_WIDTH_MAX && end - p >= WORD_BYTES) {
        memcpy(&word, p, sizeof word);
        return word >> at & mask;
    }
    size_t bytes = (at + (size_t)width + 7) / 8;
    for (size_t i = 0; i < bytes && i < WORD_BYTES; i++) word |= (uint64_t)p[i] << 8 * i;
    word >>= at;
    if (bytes > WORD_BYTES) word |= (uint64_t)p[WORD_BYTES] << (64 - at);
    return word & mask;
}

void parquet_rle_init(struct parquet_rle *r, const uint8_t *p, size_t bytes, int width)
{
    *r = (struct parquet_rle){.p = p, .end = p + bytes, .width = width};
}

/* The header of the next run. The last group of 8 may be cut off after the values that are needed. */
static bool rle_run(struct parquet_rle *r)
{
    uint64_t head;
    if (r->packed) r->p += (r->bit + 7) / 8;
    if (!varint(&r->p, r->end, &head) || head >> 1 == 0 || head >> 1 > INT32_MAX) return false;
    r->packed = head & 1;
    size_t bytes = (size_t)(r->end - r->p), value_bytes = (size_t)(r->width + 7) / 8;
    if (r->packed) {
        uint64_t count = (head >> 1) * 8, here = r->width ? bytes * 8 / (size_t)r->width : count;
        r->bit = 0;
        if (count > here) count = here;
        if (count > INT32_MAX) count = INT32_MAX / 8 * 8;
        r->left = (uint32_t)count;
        return count > 0;
    }
    if (value_bytes > bytes) return false;
    r->left = (uint32_t)(head >> 1);
    r->value = 0;
    memcpy(&r->value, r->p, value_bytes);
    r->p += value_bytes;
    return r->width == 32 || r->value >> r->width == 0;
}

bool parquet_rle_read(struct parquet_rle *r, uint32_t *out, int64_t count)
{
    while (count > 0) {
        if (r->left == 0 && !rle_run(r)) return false;
        uint32_t n = count < r->left ? (uint32_t)count : r->left;
        if (r->packed) {
            size_t bit = r->bit;
            for (uint32_t i = 0; i < n; i++, bit += (size_t)r->width)
                out[i] = (uint32_t)bits(r->p, r->end, bit, r->width);
            r->bit = bit;
        } else {
            for (uint32_t i = 0; i < n; i++) out[i] = r->value;
        }
        r->left -= n;
        out += n;
        count -= n;
    }
    return true;
}

static bool delta_init(struct parquet_delta *d, const uint8_t *p, size_t bytes, int64_t values_max)
{
    uint64_t block, minis, count, first;
    *d = (struct parquet_delta){.p = p, .end = p + bytes, .first = true};
    if (!varint(&d->p, d->end, &block) || !varint(&d->p, d->end, &minis) || !varint(&d->p, d->end, &count) ||
        !varint(&d->p, d->end, &first))
        return false;
    if (block == 0 || block > BLOCK_MAX || minis == 0 || minis > block || block % minis || block / minis % 8)
        return false;
    if (count > (uint64_t)values_max) return false;
    d->block = (uint32_t)block;
    d->minis = d->mini = (uint32_t)minis;
    d->left = (int64_t)count;
    d->last = zigzag(first);
    return true;
}

static size_t mini_bytes(const struct parquet_delta *d)
{
    return (size_t)(d->block / d->minis) / 8 * (size_t)d->width;
}

/* To the next miniblock, which starts at the end of the last one. */
static bool delta_mini(struct parquet_delta *d)
{
    d->mini++;
    if (d->mini >= d->minis) {
        uint64_t min;
        if (!varint(&d->p, d->end, &min) || (size_t)(d->end - d->p) < d->minis) return false;
        d->delta_min = zigzag(min);
        d->widths = d->p;
        d->p += d->minis;
        d->mini = 0;
    }
    d->width = d->widths[d->mini];
    d->mini_left = d->block / d->minis;
    d->bit = 0;
    return d->width <= 64 && mini_bytes(d) <= (size_t)(d->end - d->p);
}

static bool delta_read(struct parquet_delta *d, int64_t *out)
{
    if (d->left == 0) return false;
    if (!d->first) {
        if (d->mini_left == 0 && !delta_mini(d)) {
            d->left = 0;
            return false;
        }
        d->last += d->delta_min + bits(d->p, d->end, d->bit, d->width);
        d->bit += (size_t)d->width;
        if (--d->mini_left == 0) d->p += mini_bytes(d);
    }
    d->first = false;
    d->left--;
    *out = (int64_t)d->last;
    return true;
}

/* The byte after the encoding; NULL if it is damaged. */
static const uint8_t *delta_end(struct parquet_delta d)
{
    int64_t left = d.left - d.first; /* the first value is in the header */
    CHECK(d.mini_left == 0, "asked in a miniblock's middle");
    while (left > 0) {
        if (!delta_mini(&d)) return NULL;
        left -= d.mini_left;
        d.p += mini_bytes(&d);
    }
    return d.p;
}

static size_t id_bytes(int type)
{
    return type == PARQUET_INT32 ? 4 : 8;
}

const char *parquet_dictionary_read(struct parquet_dictionary *d, const uint8_t *page, size_t bytes, int type,
                                    int64_t values)
{
    d->count = 0;
    if (type != PARQUET_BYTE_ARRAY) {
        if ((size_t)values > bytes / id_bytes(type)) return "a dictionary that is shorter than it says";
        d->count = values;
        return NULL;
    }
    if ((size_t)values > bytes / 4) return "a dictionary that is shorter than it says";
    size_t room = (size_t)d->room, at = 0;
    if (array_grow(&d->entries, &room, (size_t)values, sizeof *d->entries) != STATUS_OK)
        return "there is no memory for the dictionary";
    d->room = (int64_t)room;
    for (int64_t i = 0; i < values; i++) {
        uint32_t length;
        if (bytes - at < 4) return "a dictionary that is shorter than it says";
        memcpy(&length, page + at, 4);
        if (length > bytes - at - 4) return "a text of the dictionary is longer than its page";
        d->entries[i] = (struct parquet_entry){(uint32_t)at + 4, length};
        at += 4 + (size_t)length;
    }
    d->count = values;
    return NULL;
}

static const char *indices_init(struct parquet_values *v, const struct parquet_dictionary *dictionary)
{
    if (!dictionary) return "it needs a dictionary, and there is none";
    int width = v->p < v->end ? *v->p++ : 0;
    if (width > 32) return "dictionary indices of more than 32 bits";
    parquet_rle_init(&v->indices, v->p, (size_t)(v->end - v->p), width);
    return NULL;
}

bool parquet_values_known(int encoding, int type)
{
    bool text = type == PARQUET_BYTE_ARRAY;
    switch (encoding) {
    case PARQUET_PLAIN:
    case PARQUET_PLAIN_DICTIONARY:
    case PARQUET_RLE_DICTIONARY: return true;
    case PARQUET_DELTA_BINARY_PACKED: return !text;
    case PARQUET_DELTA_LENGTH_BYTE_ARRAY:
    case PARQUET_DELTA_BYTE_ARRAY: return text;
    default: return false;
    }
}

const char *parquet_values_init(struct parquet_values *v, int encoding, int type, const uint8_t *p,
                                size_t bytes, int64_t values, const struct parquet_dictionary *dictionary)
{
    static const char broken[] = "its delta encoding is damaged";
    *v = (struct parquet_values){.encoding = encoding, .type = type, .p = p, .end = p + bytes};
    switch (encoding) {
    case PARQUET_PLAIN: return NULL;
    case PARQUET_PLAIN_DICTIONARY:
    case PARQUET_RLE_DICTIONARY: v->encoding = PARQUET_RLE_DICTIONARY; return indices_init(v, dictionary);
    case PARQUET_DELTA_BINARY_PACKED: return delta_init(&v->lengths, p, bytes, values) ? NULL : broken;
    case PARQUET_DELTA_BYTE_ARRAY:
        if (!delta_init(&v->prefixes, p, bytes, values)) return broken;
        v->p = delta_end(v->prefixes);
        if (!v->p) return broken;
        /* The suffixes are DELTA_LENGTH_BYTE_ARRAY. */
        /* fall through */
    case PARQUET_DELTA_LENGTH_BYTE_ARRAY:
        if (!delta_init(&v->lengths, v->p, (size_t)(v->end - v->p), values)) return broken;
        v->p = delta_end(v->lengths);
        return v->p ? NULL : broken;
    default: break;
    }
    return "its encoding is not one of this column's type";
}

static bool ids_plain(struct parquet_values *v, int64_t *out, int64_t count)
{
    size_t size = id_bytes(v->type);
    if ((size_t)count > (size_t)(v->end - v->p) / size) return false;
    for (int64_t i = 0; i < count; i++, v->p += size) {
        int32_t small;
        if (size == 8)
            memcpy(&out[i], v->p, 8);
        else {
            memcpy(&small, v->p, 4);
            out[i] = small;
        }
    }
    return true;
}

static bool ids_indexed(struct parquet_values *v, const struct parquet_dictionary *dictionary,
                        const uint8_t *data, int64_t *out, int64_t count)
{
    enum { BLOCK = 256 };
    const uint8_t *page = data + dictionary->at;
    uint32_t indices[BLOCK];
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t n = count - at < BLOCK ? count - at : BLOCK;
        if (!parquet_rle_read(&v->indices, indices, n)) return false;
        for (int64_t i = 0; i < n; i++) {
            int32_t small;
            if (indices[i] >= dictionary->count) return false;
            if (v->type == PARQUET_INT64)
                memcpy(&out[at + i], page + 8 * (size_t)indices[i], 8);
            else {
                memcpy(&small, page + 4 * (size_t)indices[i], 4);
                out[at + i] = small;
            }
        }
    }
    return true;
}

bool parquet_values_ids(struct parquet_values *v, const struct parquet_dictionary *dictionary,
                        const uint8_t *data, int64_t *out, int64_t count)
{
    if (v->encoding == PARQUET_PLAIN) return ids_plain(v, out, count);
    if (v->encoding == PARQUET_RLE_DICTIONARY) return ids_indexed(v, dictionary, data, out, count);
    for (int64_t i = 0; i < count; i++) {
        if (!delta_read(&v->lengths, &out[i])) return false;
        if (v->type == PARQUET_INT32)
            out[i] = (int32_t)(uint32_t)(uint64_t)out[i]; /* sums wrap, as in the encoder */
    }
    return true;
}

static bool text_here(struct parquet_values *v, int64_t length, struct parquet_text *out)
{
    if (length < 0 || length > v->end - v->p) return false;
    out->text = v->p;
    out->bytes = (uint32_t)length;
    v->p += length;
    return true;
}

bool parquet_values_text(struct parquet_values *v, const struct parquet_dictionary *dictionary,
                         const uint8_t *data, struct parquet_text *out)
{
    uint32_t length, index;
    int64_t prefix = 0, rest;
    out->prefix = 0;
    switch (v->encoding) {
    case PARQUET_PLAIN:
        if (v->end - v->p < 4) return false;
        memcpy(&length, v->p, 4);
        v->p += 4;
        return text_here(v, length, out);
    case PARQUET_RLE_DICTIONARY:
        if (!parquet_rle_read(&v->indices, &index, 1) || index >= dictionary->count) return false;
        out->text = data + dictionary->at + dictionary->entries[index].at;
        out->bytes = dictionary->entries[index].bytes;
        return true;
    case PARQUET_DELTA_BYTE_ARRAY:
        if (!delta_read(&v->prefixes, &prefix) || prefix < 0 || prefix > INT32_MAX) return false;
        out->prefix = (uint32_t)prefix;
        /* fall through */
    default: return delta_read(&v->lengths, &rest) && text_here(v, rest, out);
    }
}
