/* Any bytes as a Parquet footer: what is taken of it lies inside the file, and the sums are right. The first byte names the column. */
#include "data/read/parquet_int.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const columns[] = {"text", "ids", "n", "ids.list.element"};
    const int64_t file_bytes = 1 << 20;
    if (bytes < 1) return 0;
    struct parquet_meta m;
    status st = parquet_meta_read(&m, "fuzz", data + 1, bytes - 1, file_bytes, columns[data[0] % 4]);
    int64_t rows = 0;
    for (int64_t i = 0; st == STATUS_OK && i < m.count; i++) {
        const struct parquet_chunk *c = &m.chunks[i];
        if (c->at < 0 || c->bytes < 0 || c->at + c->bytes > file_bytes || c->row != rows ||
            c->values < c->rows)
            abort();
        rows += c->rows;
    }
    if (st == STATUS_OK && (rows != m.rows || m.rep_max > 1 || m.def_list > m.def_max)) abort();
    parquet_meta_free(&m);
    return 0;
}
