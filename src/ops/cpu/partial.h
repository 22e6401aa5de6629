/* Sums over rows, for parameter gradients. The rows are cut into chunks, and the number of chunks depends on the
 * shape alone. Each chunk sums into its own line of a buffer on the op's stack. The lines are then added in chunk
 * order. */
#ifndef INGOT_OPS_CPU_PARTIAL_H
#define INGOT_OPS_CPU_PARTIAL_H
#include <stdint.h>

enum { PARTIAL_FLOATS = 131072, PARTIAL_CHUNKS = 32 }; /* maxima: 512 KB; as many chunks as fit in it */

/* The owner leaves it uninitialised: a chunk clears its own line, and pages of unused chunks are never touched. */
struct partial_buffer {
    float at[PARTIAL_FLOATS] __attribute__((aligned(64)));
};

struct partial {
    float *at;
    int64_t line;          /* floats per chunk */
    int64_t chunks, grain; /* chunk c has rows chunk_span(c, rows, grain) */
};

/* Rounds columns up to a multiple of the widest register. */
static inline int64_t partial_pad(int64_t d)
{
    return (d + 15) / 16 * 16;
}

/* `width`: floats per line, a multiple of 16. */
struct partial partial_init(struct partial_buffer *b, int64_t rows, int64_t width);
/* The line of chunk c, set to zero. */
float *partial_line(const struct partial *p, int64_t c);
/* out[j] += the sum over all lines of element offset + j, for j in [0, d). */
void partial_merge(const struct partial *p, int64_t offset, float *out, int64_t d);
#endif
