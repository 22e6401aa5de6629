/* Parameter gradients, sums over rows: the rows are cut into a number of chunks that depends on the shape alone, each chunk sums
 * into its own line of a buffer on the op's stack, and the lines are added in chunk order. */
#ifndef INGOT_OPS_CPU_PARTIAL_H
#define INGOT_OPS_CPU_PARTIAL_H
#include <stdint.h>

enum { PARTIAL_FLOATS = 131072, PARTIAL_CHUNKS = 32 }; /* at most: 512 KB; chunks while they fit */

/* Left uninitialised by its owner: a chunk clears its line, and pages that no chunk uses are never touched. */
struct partial_buffer {
    float at[PARTIAL_FLOATS] __attribute__((aligned(64)));
};

struct partial {
    float *at;
    int64_t line;          /* floats per chunk */
    int64_t chunks, grain; /* chunk c has rows chunk_span(c, rows, grain) */
};

/* Columns rounded up to whole registers of any width. */
static inline int64_t partial_pad(int64_t d)
{
    return (d + 15) / 16 * 16;
}

/* A line takes `width` floats, a multiple of 16. */
struct partial partial_init(struct partial_buffer *b, int64_t rows, int64_t width);
/* The line of chunk c, all zero. */
float *partial_line(const struct partial *p, int64_t c);
/* out[j] += sum over the lines of element offset + j, for j in [0, d). */
void partial_merge(const struct partial *p, int64_t offset, float *out, int64_t d);
#endif
