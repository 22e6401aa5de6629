/* What the measurements of attention on a GPU share: cuda/attention.c, cuda/attention_parts.c. */
#ifndef INGOT_BENCH_CUDA_ATTENTION_H
#define INGOT_BENCH_CUDA_ATTENTION_H
#include "base/arena.h"
#include "bench/bench.h"
#include "dev/dev.h"
#include "ops/cuda/ops_cuda.h"

enum { RUNS_MAX = 99, DOCS_MAX = 128 };
enum { FWD, BWD, GEMM };

/* Documents have `len` rows each; or 1, 2, .. parts, shuffled, `len` in all; or
 * half of `len`, `len` and 1.5 `len`, alternating. */
enum lengths { EQUAL, MIXED, HALVES };
struct shape {
    int64_t docs, len, heads, heads_kv, head_dim, window;
    enum lengths lengths;
    int64_t head_dim_v; /* 0: hd */
};
struct call {
    struct attn_fwd_args fwd;
    struct attn_bwd_args bwd;
    void *qkv, *grad; /* filled with random numbers */
    size_t qkv_bytes, grad_bytes;
    int32_t cu[DOCS_MAX + 1];
    double pairs; /* of a head, without masked ones */
};

struct gpu {
    struct dev dev;
    struct stream s; /* the op set of the current backend */
    struct ops ops;
    struct event begin, end;
    struct power_meter *meter;
    struct arena memory;
    char *pool, *pattern;
    size_t pool_bytes;
    void *workspace;
    size_t workspace_bytes;
    double square; /* FLOP/s */
};

/* Memory of a call, from an arena that may be counting, with `scratch` bytes of backward at least. */
void attention_layout(struct call *k, const struct shape *s, const struct ops *o, size_t scratch, struct arena *a);
/* Fills its operands and uploads its documents. */
status attention_fill(struct gpu *c, const struct call *k, const struct shape *s) WARN_UNUSED;
/* Milliseconds of a pass in ascending order. The first call chooses and builds. */
status attention_sample(struct gpu *c, const struct call *k, int what, int64_t runs, double ms[RUNS_MAX]) WARN_UNUSED;
status attention_set_open(struct gpu *c, const struct cuda_options *options) WARN_UNUSED;

/* Context parallelism on one GPU (attention_parts.c): number of shapes, the largest pool and most rows that one
 * needs. */
int attention_parts_shapes(void);
size_t attention_parts_bytes(const struct gpu *c, const struct attention_bench *b);
int64_t attention_parts_rows(void);
status attention_parts(struct gpu *c, const struct attention_bench *b) WARN_UNUSED;
#endif
