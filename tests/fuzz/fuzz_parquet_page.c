/* Any bytes as the pages of a column. The first three choose its type, its levels and codec, and how many rows it says it has; a footer of
 * our own goes behind. The rows that come out are the same in batches of any size, and as many as the footer says. */
#include "data/read/reader.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
enum { CHUNK_BYTES_MAX = 1 << 16, FOOTER_BYTES_MAX = 256 };

/* A few words of Thrift's compact protocol. */
struct out {
    uint8_t *p;
};

static void put(struct out *o, int byte)
{
    *o->p++ = (uint8_t)byte;
}

static void put_number(struct out *o, int field_head, int64_t value)
{
    uint64_t n = (uint64_t)value << 1;
    put(o, field_head);
    for (; n > 127; n >>= 7) put(o, (int)(n & 127) | 128);
    put(o, (int)n);
}

/* A schema element: type (or -1), repetition (or -1), name, children (or 0). */
static void put_element(struct out *o, int type, int repetition, const char *name, int children)
{
    int last = 0;
    if (type >= 0) put_number(o, 0x15, type), last = 1;
    if (repetition >= 0) put_number(o, (3 - last) << 4 | 5, repetition), last = 3;
    put(o, (4 - last) << 4 | 8);
    put(o, (int)strlen(name));
    while (*name) put(o, *name++);
    if (children > 0) put_number(o, 0x15, children);
    put(o, 0);
}

static size_t put_footer(uint8_t *to, int choice, int64_t rows, int64_t chunk_bytes)
{
    static const int types[] = {6, 1, 2, 6}, codecs[] = {0, 1, 2, 6, 7, 0, 6, 1};
    int type = types[choice & 3], optional = choice >> 2 & 1, codec = codecs[choice >> 3 & 7];
    struct out o = {to};
    put(&o, 0x29); /* 2: the schema */
    put(&o, (type == 6 ? 2 : 4) << 4 | 12);
    put_element(&o, -1, -1, "s", 1);
    if (type == 6) {
        put_element(&o, type, optional, "text", 0);
    } else {
        put_element(&o, -1, optional, "text", 1);
        put_element(&o, -1, 2, "list", 1);
        put_element(&o, type, optional, "e", 0);
    }
    put_number(&o, 0x16, rows); /* 3 */
    put(&o, 0x19);              /* 4: the row groups */
    put(&o, 1 << 4 | 12);
    put(&o, 0x19); /* 1: columns */
    put(&o, 1 << 4 | 12);
    put(&o, 0x3c); /* 3: its metadata */
    put_number(&o, 0x15, type);
    put_number(&o, 0x35, codec);                               /* 4 */
    put_number(&o, 0x16, type == 6 ? rows : rows + (1 << 15)); /* 5 */
    put_number(&o, 0x26, chunk_bytes);                         /* 7 */
    put_number(&o, 0x26, 4);                                   /* 9 */
    put(&o, 0);
    put(&o, 0);
    put_number(&o, 0x26, rows); /* 3 */
    put(&o, 0);
    put(&o, 0);
    return (size_t)(o.p - to);
}

struct outcome {
    int64_t rows;
    uint64_t sum;
    status st;
};

static uint64_t add_document(const struct reader_batch *b, int64_t i, uint64_t sum)
{
    struct reader_document d;
    if (b->records[i].fault && sum % 64) return sum * 31 + 7; /* a few messages are enough */
    if (reader_text(b, i, NULL, &d) != STATUS_OK) return sum * 31 + 7;
    if (d.ids) {
        for (int64_t j = 0; j < d.id_count; j++)
            if (d.ids[j] < 0) abort();
        return sum * 31 + XXH64(d.ids, d.bytes, 2);
    }
    if (utf8_valid(d.text, d.bytes) != d.bytes) abort();
    return sum * 31 + XXH64(d.text, d.bytes, 1);
}

static struct outcome read_all(const uint8_t *file, size_t bytes, size_t batch)
{
    struct reader_config c = {.batch_bytes = batch};
    struct reader *r;
    struct outcome o = {0};
    struct reader_batch b;
    bool more = true;
    if (reader_open_memory(&r, "fuzz", file, bytes, &c) != STATUS_OK) abort();
    while ((o.st = reader_next(r, &b, &more)) == STATUS_OK && more) {
        if (b.line != o.rows) abort();
        for (int64_t i = 0; i < b.count; i++) o.sum = add_document(&b, i, o.sum);
        o.rows += b.count;
    }
    reader_close(r);
    return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static uint8_t file[CHUNK_BYTES_MAX + FOOTER_BYTES_MAX + 16];
    if (bytes < 3 || bytes - 3 > CHUNK_BYTES_MAX) return 0;
    size_t chunk = bytes - 3, at = 4 + chunk;
    int64_t rows = data[1] | (data[2] & 1) << 8;
    memcpy(file, "PAR1", 4);
    memcpy(file + 4, data + 3, chunk);
    uint32_t footer = (uint32_t)put_footer(file + at, data[0], rows, (int64_t)chunk);
    if (footer > FOOTER_BYTES_MAX) abort();
    memcpy(file + at + footer, &footer, 4);
    memcpy(file + at + footer + 4, "PAR1", 4);
    struct outcome a = read_all(file, at + footer + 8, 1 << 16), b = read_all(file, at + footer + 8, 300);
    if (a.st == STATUS_OK && (a.rows != rows || b.rows != rows || a.sum != b.sum || b.st != STATUS_OK))
        abort();
    return 0;
}
