/* Threads. The number of chunks depends on the problem alone, never on the number of threads; each chunk is computed
 * by one thread, and partial sums are added in chunk order. Results are therefore bit-identical for 1, 2 or 64
 * threads.
 *
 *     PARALLEL_CHUNKS(c, chunk_count) { body, using c }      -- an OpenMP loop; the body must not `return` */
#ifndef INGOT_BASE_PARALLEL_H
#define INGOT_BASE_PARALLEL_H
#include <stdint.h>

#define PARALLEL_PRAGMA(x) _Pragma(#x)
#define PARALLEL_CHUNKS(c, count) \
    PARALLEL_PRAGMA(omp parallel for schedule(dynamic, 1)) for (int64_t c = 0; c < (count); c++)

struct span { int64_t begin, end; };

/* Rows [begin, end) of chunk c when `rows` are split into chunks of `grain` rows (the last one may be shorter). */
static inline struct span chunk_span(int64_t c, int64_t rows, int64_t grain)
{
    int64_t begin = c * grain, end = begin + grain;
    return (struct span){begin, end < rows ? end : rows};
}
static inline int64_t chunk_count(int64_t rows, int64_t grain) { return (rows + grain - 1) / grain; }

/* Threads of parallel regions: `threads` > 0, or 0 for one per available core (respects cgroup and affinity). */
void parallel_threads_set(int threads);
int parallel_threads(void);
#endif
