/* Parameter gradients, sums over rows: the rows are cut into a number of chunks that depends on the shape alone, each chunk sums into its own
 * line of a buffer on the caller's stack (512 KB at most), and the lines are added in chunk order. */
#ifndef INGOT_OPS_CPU_SIMD_PARTIAL_H
#define INGOT_OPS_CPU_SIMD_PARTIAL_H
#include "base/parallel.h"
#include "base/status.h"
#include "ops/cpu/simd/vec.h"

enum { PARTIAL_FLOATS = 131072, PARTIAL_CHUNKS = 32, PARTIAL_MERGE = 1024 };

/* Left uninitialised by its owner: a chunk clears its line, and pages that no chunk uses are never touched. */
struct partial_buffer {
    float at[PARTIAL_FLOATS] __attribute__((aligned(64)));
};

struct partial {
    float *at;
    int64_t line, chunks, grain;
}; /* line: floats per chunk */

/* `width` floats per chunk, a multiple of 16. */
static inline struct partial partial_init(struct partial_buffer *b, int64_t rows, int64_t width)
{
    CHECK(width > 0 && width <= PARTIAL_FLOATS, "%lld columns of parameter gradients", (long long)width);
    int64_t most = PARTIAL_FLOATS / width < PARTIAL_CHUNKS ? PARTIAL_FLOATS / width : PARTIAL_CHUNKS;
    int64_t grain = rows > most ? chunk_count(rows, most) : 1;
    return (struct partial){b->at, width, chunk_count(rows, grain), grain};
}

static inline float *partial_line(const struct partial *p, int64_t c)
{
    return memset(p->at + c * p->line, 0, sizeof(float) * (size_t)p->line);
}

/* out[0, d) += columns [offset, offset + d) of all lines. */
static inline void partial_merge(const struct partial *p, int64_t offset, float *out, int64_t d)
{
    PARALLEL_CHUNKS(b, chunk_count(d, PARTIAL_MERGE))
    {
        struct span cols = chunk_span(b, d, PARTIAL_MERGE);
        for (int64_t j = cols.begin; j < cols.end; j += VEC) {
            int n = vec_n(cols.end - j);
            vf sum = {0};
            for (int64_t c = 0; c < p->chunks; c++)
                sum += vec_load(p->at, c * p->line + offset + j, n, DTYPE_F32);
            vec_store(out, j, n, DTYPE_F32, vec_load(out, j, n, DTYPE_F32) + sum);
        }
    }
}

static inline int64_t partial_pad(int64_t d)
{
    return (d + 15) / 16 * 16;
}
#endif
