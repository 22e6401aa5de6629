/* The expert GEMMs of a layer in FP8, forward and backward, with the passes that make their codes (nn/moe_fp8.h). */
#ifndef INGOT_BENCH_CUDA_MOE_FP8_H
#define INGOT_BENCH_CUDA_MOE_FP8_H
#include "base/arena.h"
#include "bench/bench.h"
#include "ops/ops.h"

/* Codes with memory, and those of the transpose. */
struct fp8_bench_codes { uint8_t *rows, *trans; };
struct fp8_bench {
    struct moe_bench shape;
    int64_t align, sorted;
    const bf16 *x, *dy, *up_w, *down_w;             /* as in the layer */
    bf16 *up, *dup, *m, *dm, *y_rows;
    const float *weight;
    float *dweight, *dup_w, *ddown_w;
    const int32_t *source, *offsets, *counts;
    struct fp8_bench_codes cx, cdy, cm, cdup, cup_w, cdown_w;
    float *scales;                                  /* one, its inverse and an amax */
};
void fp8_bench_layout(struct fp8_bench *f, struct arena *a);
/* Scales, and codes of the weights. */
status fp8_bench_open(const struct fp8_bench *f, const struct ops *o, struct stream *s) WARN_UNUSED;
enum { FP8_BENCH_FORWARD = 4, FP8_BENCH_PARTS = 11 };
const char *fp8_bench_name(int i);
status fp8_bench_run(const struct fp8_bench *f, int i, const struct ops *o, struct stream *s) WARN_UNUSED;
/* Of the FLOPs of all expert GEMMs, in ninths; 0: a pass, which moves fp8_bench_bytes. */
double fp8_bench_ninths(int i);
double fp8_bench_bytes(const struct fp8_bench *f, int i);
#endif
