/* Any bytes as text or JSONL: the first two choose format, separator and size of the batches. Records lie
 * in their batch, in order; what reader_text gives is valid UTF-8; and a document is the same whatever the
 * size of the batches. */
#include "data/reader.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static uint64_t read_all(const char *path, const struct reader_config *c)
{
    struct reader *r;
    struct reader_batch b;
    struct reader_document d;
    bool more;
    uint64_t sum = 0;
    if (reader_open(&r, path, c) != STATUS_OK) return 0;
    int64_t end = 0;
    while (reader_next(r, &b, &more) == STATUS_OK && more)
        for (int64_t i = 0; i < b.count; i++) {
            const struct reader_record *record = &b.records[i];
            if (record->at > b.bytes || record->bytes > b.bytes - record->at) abort();
            if (b.offset + (int64_t)record->at < end) abort();
            end = b.offset + (int64_t)(record->at + record->bytes);
            if (reader_text(&b, i, "text", &d) != STATUS_OK) {
                sum = sum * 31 + 7;
                continue;
            }
            if (utf8_valid(d.text, d.bytes) != d.bytes) abort();
            sum = sum * 31 + XXH64(d.text, d.bytes, 1);
            reader_document_free(&d);
        }
    reader_close(r);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64];
    if (bytes < 2) return 0;
    int fd = memfd_create("text", 0);
    if (fd < 0 || write(fd, data + 2, bytes - 2) != (ssize_t)bytes - 2) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct reader_config c = {.format = data[0] % 2 ? READER_JSONL : READER_PLAIN,
                              .separator = (enum reader_separator)(data[0] / 2 % 4),
                              .separator_text = data[0] & 8 ? "--" : "\n#\n",
                              .batch_bytes = data[1]};
    uint64_t small = read_all(path, &c);
    c.batch_bytes = 0;
    if (read_all(path, &c) != small) abort();
    close(fd);
    return 0;
}
