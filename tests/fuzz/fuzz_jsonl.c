/* Any bytes as text or JSONL: the first two choose format, separator and size of the batches. Records lie
 * in their batch, in order; what reader_text gives is valid UTF-8; a document is the same whatever the size of the
 * batches; and what follows a mark is what follows it in one go. */
#include "data/read/reader.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static uint64_t add_batch(const struct reader_batch *b, int64_t *end, uint64_t sum)
{
    for (int64_t i = 0; i < b->count; i++) {
        const struct reader_record *record = &b->records[i];
        struct reader_document d;
        if (record->at > b->bytes || record->bytes > b->bytes - record->at) abort();
        if (b->offset + (int64_t)record->at < *end || reader_place(b, i) < *end) abort();
        *end = b->offset + (int64_t)(record->at + record->bytes);
        if (reader_text(b, i, "text", &d) != STATUS_OK) {
            sum = sum * 31 + 7;
            continue;
        }
        if (utf8_valid(d.text, d.bytes) != d.bytes) abort();
        sum = sum * 31 + XXH64(d.text, d.bytes, 1);
        reader_document_free(&d);
    }
    return sum;
}

/* All documents from `from` on; *mark is set after the first batch. */
static uint64_t read_all(const uint8_t *data, size_t bytes, const struct reader_config *c,
                         struct reader_mark from, struct reader_mark *mark, uint64_t *behind)
{
    struct reader *r;
    struct reader_batch b;
    bool more;
    uint64_t sum = 0;
    int64_t end = 0;
    if (reader_open_memory(&r, "fuzz", data, bytes, c) != STATUS_OK) return 0;
    if (reader_seek(r, from) != STATUS_OK) abort();
    for (int batch = 0; reader_next(r, &b, &more) == STATUS_OK && more; batch++) {
        sum = add_batch(&b, &end, sum);
        if (batch == 0) {
            *mark = reader_mark(r);
            *behind = 0;
        } else {
            *behind = add_batch(&b, &(int64_t){0}, *behind);
        }
    }
    reader_close(r);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < 2) return 0;
    struct reader_config c = {.format = data[0] % 2 ? READER_JSONL : READER_PLAIN,
                              .separator = (enum reader_separator)(data[0] / 2 % 4),
                              .separator_text = data[0] & 8 ? "--" : "\n#\n",
                              .batch_bytes = data[1],
                              .stream = {STREAM_HERE, 20}};
    struct reader_mark mark = {0, 0}, ignored;
    uint64_t behind = 0, skip;
    data += 2;
    bytes -= 2;
    if (stream_detect(data, bytes) != STREAM_PLAIN) return 0; /* fuzz_stream's */
    uint64_t small = read_all(data, bytes, &c, (struct reader_mark){0, 0}, &mark, &behind);
    c.batch_bytes = 1 << 16;
    if (read_all(data, bytes, &c, (struct reader_mark){0, 0}, &ignored, &skip) != small) abort();
    if (mark.at > 0 && read_all(data, bytes, &c, mark, &ignored, &skip) != behind) abort();
    return 0;
}
