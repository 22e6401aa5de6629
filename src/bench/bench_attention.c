/* Attention of GPT-2 124M on the CPU (on a GPU: cuda/attention.c), forward and backward. Prints FLOP/s of
 * the causal half, as papers count: 4 H hd T (T + 1) / 2 forward and 2.5 times that backward. Medians. */
#include "base/arena.h"
#include "base/clock.h"
#include "base/flags.h"
#include "base/parallel.h"
#include "bench/bench.h"
#include "bench/lasting.h"
#include "ops/ops.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 7, HEADS = 12, HD = 64, D = HEADS * HD };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median seconds of forward and backward on one document of `rows`. mem holds qkv, o, do, dqkv (4 + 4 x D),
 * lse, scratch. */
static status measure(const struct ops *o, char *mem, int64_t rows, dtype dt, double time[2])
{
    const int64_t es = (int64_t)dtype_bytes(dt), d = D * es;
    const int32_t cu[2] = {0, (int32_t)rows};
    char *out = mem + rows * 3 * d, *grad = out + rows * d, *dqkv = grad + rows * d,
         *lse = dqkv + rows * 3 * d;
    char *scratch = lse + rows * HEADS * (int64_t)sizeof(float);
    const struct attn_fwd_args f = {.q = mem,
                                    .k = mem + d,
                                    .v = mem + 2 * d,
                                    .o = out,
                                    .lse = lse,
                                    .q_stride = 3 * D,
                                    .k_stride = 3 * D,
                                    .v_stride = 3 * D,
                                    .cu_seqlens = cu,
                                    .docs = 1,
                                    .rows = rows,
                                    .heads = HEADS,
                                    .heads_kv = HEADS,
                                    .head_dim = HD,
                                    .head_dim_v = HD,
                                    .scale = 0.125,
                                    .dt = dt};
    const struct attn_bwd_args b = {.q = f.q,
                                    .k = f.k,
                                    .v = f.v,
                                    .o = out,
                                    .do_ = grad,
                                    .lse = lse,
                                    .dq = dqkv,
                                    .dk = dqkv + d,
                                    .dv = dqkv + 2 * d,
                                    .q_stride = 3 * D,
                                    .k_stride = 3 * D,
                                    .v_stride = 3 * D,
                                    .dq_stride = 3 * D,
                                    .dk_stride = 3 * D,
                                    .dv_stride = 3 * D,
                                    .cu_seqlens = cu,
                                    .docs = 1,
                                    .rows = rows,
                                    .heads = HEADS,
                                    .heads_kv = HEADS,
                                    .head_dim = HD,
                                    .head_dim_v = HD,
                                    .scale = 0.125,
                                    .scratch = scratch,
                                    .dt = dt};
    double fwd[RUNS], bwd[RUNS];
    for (int r = -1; r < RUNS; r++) {
        const double begin = clock_s();
        TRY(o->attn_fwd(&f, NULL));
        const double middle = clock_s();
        TRY(o->attn_bwd(&b, NULL));
        if (r >= 0) fwd[r] = middle - begin, bwd[r] = clock_s() - middle;
    }
    qsort(fwd, RUNS, sizeof fwd[0], by_value);
    qsort(bwd, RUNS, sizeof bwd[0], by_value);
    time[0] = fwd[RUNS / 2];
    time[1] = bwd[RUNS / 2];
    return STATUS_OK;
}

static status report(const struct ops *o, char *mem, int64_t rows, dtype dt, bool json)
{
    double time[2];
    TRY(measure(o, mem, rows, dt, time));
    const double flops = 2.0 * D * (double)rows * (double)(rows + 1);
    for (int i = 0; i < 2; i++) {
        const double rate = flops * (i ? 2.5 : 1.0) / time[i];
        if (json)
            printf("{\"bench\":\"attention\",\"set\":\"%s\",\"dtype\":\"%s\",\"pass\":\"%s\",\"tokens\":%lld,"
                   "\"heads\":%d,"
                   "\"hd\":%d,\"ms\":%.3f,\"gflops\":%.1f,\"threads\":%d}\n",
                   o->name, dtype_name(dt), i ? "bwd" : "fwd", (long long)rows, HEADS, HD, time[i] * 1e3,
                   rate / 1e9, parallel_threads());
        else
            printf("%s %-4s %s  T %lld  %8.2f ms  %8.1f GFLOP/s\n", o->name, dtype_name(dt),
                   i ? "bwd" : "fwd", (long long)rows, time[i] * 1e3, rate / 1e9);
    }
    return STATUS_OK;
}

#if !INGOT_CUDA
status cuda_bench_attention(const struct attention_bench *b)
{
    (void)b;
    return FAIL(STATUS_DEVICE,
                "this ingot was built without CUDA; build it where nvcc is on PATH (cmake --preset cuda)");
}
#endif

static status on_cpu(int64_t rows, const char *isa, bool json)
{
    struct ops o;
    TRY(ops_cpu(&o, isa));
    const struct attn_shape shape = {.rows = rows,
                                     .docs = 1,
                                     .len_max = rows,
                                     .heads = HEADS,
                                     .heads_kv = HEADS,
                                     .head_dim = D / HEADS,
                                     .head_dim_v = D / HEADS,
                                     .dt = DTYPE_F32};
    const size_t bytes = (size_t)rows * (8 * D + HEADS) * sizeof(float) + o.attn_scratch(&shape, ATTN_BWD);
    struct arena arena; /* huge pages, as in training: rows of one head are a page apart */
    TRY(arena_reserve(&arena, "bench", bytes));
    char *mem = arena_take(&arena, bytes, "attention");
    status st = STATUS_OK;
    TRY_OUT(report(&o, mem, rows, DTYPE_F32, json));
    TRY_OUT(report(&o, mem, rows, DTYPE_BF16, json));
out:
    arena_free(&arena);
    return st;
}

status bench_attention(struct args *a)
{
    enum { UNSET = -1, ROWS_DEFAULT = 1024 };
    struct attention_bench b = {.shape = UNSET, .runs = UNSET};
    int64_t rows = UNSET;
    const char *isa = NULL, *device = "cpu";
    const struct flag flags[] = {FLAG("device", &device),     FLAG("tokens", &rows),   FLAG("isa", &isa),
                                 FLAG("backend", &b.backend), FLAG("shape", &b.shape), FLAG("runs", &b.runs),
                                 FLAG("seconds", &b.seconds), FLAG("ranks", &b.ranks), FLAG("json", &b.json)};
    TRY(args_parse(a, flags, (int)(sizeof flags / sizeof flags[0])));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 0, 0));
    const bool gpu = strcmp(device, "cuda") == 0;
    if (!gpu && strcmp(device, "cpu") != 0) return FAIL(STATUS_CONFIG, "--device=%s: cpu or cuda", device);
    if (gpu && (isa || rows != UNSET)) return FAIL(STATUS_CONFIG, "--isa and --tokens are for the CPU");
    if (!gpu && (b.backend || b.shape != UNSET || b.runs != UNSET || b.seconds || b.ranks))
        return FAIL(STATUS_CONFIG, "--backend, --shape, --runs, --seconds and --ranks are for --device=cuda");
    if (b.ranks != 0 && (b.ranks < 2 || b.ranks > BENCH_RANKS_MAX))
        return FAIL(STATUS_CONFIG, "--ranks=%lld: 2 to %d", (long long)b.ranks, BENCH_RANKS_MAX);
    if (b.ranks && (b.backend || b.seconds))
        return FAIL(STATUS_CONFIG,
                    "--ranks measures the own kernels once: leave out --backend and --seconds");
    TRY(lasting_check(b.seconds));
    if (b.backend && strcmp(b.backend, "cudnn") != 0 && strcmp(b.backend, "own") != 0 &&
        strcmp(b.backend, "reference") != 0)
        return FAIL(STATUS_CONFIG, "--backend=%s: cudnn, own or reference", b.backend);
    if (rows == UNSET) rows = ROWS_DEFAULT;
    if (rows < 1 || rows > 1 << 20)
        return FAIL(STATUS_CONFIG, "--tokens=%lld: 1 to 1048576", (long long)rows);
    if (b.runs == UNSET) b.runs = RUNS;
    return gpu ? cuda_bench_attention(&b) : on_cpu(rows, isa, b.json);
}
