#include "ops/cpu/partial.h"
#include "base/parallel.h"
#include "base/status.h"
#include <string.h>

enum { MERGE = 512 }; /* columns per chunk */

struct partial partial_init(struct partial_buffer *b, int64_t rows, int64_t width)
{
    CHECK(width > 0 && width <= PARTIAL_FLOATS, "%lld columns of parameter gradients, at most %d",
          (long long)width, PARTIAL_FLOATS);
    int64_t most = PARTIAL_FLOATS / width < PARTIAL_CHUNKS ? PARTIAL_FLOATS / width : PARTIAL_CHUNKS;
    int64_t grain = rows > most ? chunk_count(rows, most) : 1;
    return (struct partial){b->at, width, chunk_count(rows, grain), grain};
}

float *partial_line(const struct partial *p, int64_t c)
{
    return memset(p->at + c * p->line, 0, sizeof(float) * (size_t)p->line);
}

static void merge_columns(const struct partial *p, int64_t offset, float *out, struct span cols)
{
    float sum[MERGE] = {0};
    int64_t count = cols.end - cols.begin;
    for (int64_t c = 0; c < p->chunks; c++) {
        const float *line = p->at + c * p->line + offset + cols.begin;
        for (int64_t j = 0; j < count; j++) sum[j] += line[j];
    }
    for (int64_t j = 0; j < count; j++) out[cols.begin + j] += sum[j];
}

void partial_merge(const struct partial *p, int64_t offset, float *out, int64_t d)
{
    PARALLEL_CHUNKS(b, chunk_count(d, MERGE))
    {
        merge_columns(p, offset, out, chunk_span(b, d, MERGE));
    }
}
