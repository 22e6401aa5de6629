/* What expert parallelism adds to a layer of experts, on one GPU that stands for rank 0 of several: all of them have
 * its choices. Rows come from its own memory, where other ranks' would come over the link. */
#ifndef INGOT_BENCH_CUDA_MOE_DISPATCH_H
#define INGOT_BENCH_CUDA_MOE_DISPATCH_H
#include "base/arena.h"
#include "bench/bench.h"
#include "ops/ops.h"

enum { DISPATCH_PARTS = 5 };
struct dispatch_bench {
    struct moe_bench shape;         /* .ranks: of them */
    int64_t align, sorted;          /* slots and padding of this rank's own sorted rows */
    const bf16 *x;                  /* [N, D] */
    const int32_t *slots, *counts;  /* of route_fwd */
    bf16 *sent, *arrived, *outputs; /* [sorted, D]; [S, D]; [S with padding, D] */
    int32_t *every, *tokens, *source, *place, *offsets, *own;
    int64_t *pairs;
};
void dispatch_bench_layout(struct dispatch_bench *d, const struct ops *o, struct arena *a);
/* After slots and counts were made. */
status dispatch_bench_fill(const struct dispatch_bench *d, struct stream *s) WARN_UNUSED;
/* Part `i` of DISPATCH_PARTS; the last is a copy of the bytes that are moved. */
const char *dispatch_bench_name(int i);
status dispatch_bench_run(const struct dispatch_bench *d, int i, const struct ops *o, struct stream *s) WARN_UNUSED;
/* Bytes that it reads and writes; 0: few. */
double dispatch_bench_bytes(const struct dispatch_bench *d, int i);
#endif
