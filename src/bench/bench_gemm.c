/* Matrix products of a GPT-2 124M training step, ours beside oneDNN (cut in the same thread-invariant way), in turn, and beside
 * the rate of our micro-kernel on data in L1. Medians. */
#include "base/clock.h"
#include "base/flags.h"
#include "base/parallel.h"
#include "bench/bench.h"
#include "ops/cpu/fast.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 7, HEAD_TOKENS = 512 };
static const struct layer {
    const char *name;
    int64_t out, in;
} layers[] = {
    {"qkv", 2304, 768}, {"out", 768, 768}, {"fc", 3072, 768}, {"proj", 768, 3072}, {"head", 50304, 768}};
static const char *const forms[] = {"fwd", "dgrad", "wgrad"};

/* x [n, in], w [out, in] (F32 for its gradient), y [n, out] */
struct arrays {
    char *x, *w, *y;
};

static struct gemm_args args_of(const struct arrays *t, const struct layer *l, int form, int64_t n, dtype dt)
{
    if (form == 0)
        return (struct gemm_args){.a = t->x,
                                  .b = t->w,
                                  .c = t->y,
                                  .m = n,
                                  .n = l->out,
                                  .k = l->in,
                                  .trans_b = true,
                                  .dt = dt,
                                  .cdt = dt};
    if (form == 1)
        return (struct gemm_args){
            .a = t->y, .b = t->w, .c = t->x, .m = n, .n = l->in, .k = l->out, .dt = dt, .cdt = dt};
    return (struct gemm_args){.a = t->y,
                              .b = t->x,
                              .c = t->w,
                              .m = l->out,
                              .n = l->in,
                              .k = n,
                              .trans_a = true,
                              .accum = ACCUM_ADD,
                              .dt = dt,
                              .cdt = DTYPE_F32};
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median FLOP/s of both sets for one product; `rate` in the order of `sets`. */
static status measure(const struct ops sets[2], const struct gemm_args *g, double rate[2])
{
    double times[2][RUNS];
    for (int r = -1; r < RUNS; r++) {
        for (int s = 0; s < 2; s++) {
            double begin = clock_s();
            TRY(sets[s].gemm(g, NULL));
            if (r >= 0) times[s][r] = clock_s() - begin;
        }
    }
    for (int s = 0; s < 2; s++) {
        qsort(times[s], RUNS, sizeof times[s][0], by_value);
        rate[s] = 2.0 * (double)g->m * (double)g->n * (double)g->k / times[s][RUNS / 2];
    }
    return STATUS_OK;
}

static status table(const struct ops sets[2], const struct arrays *t, dtype dt, int64_t tokens, bool json)
{
    const double peak = cpu_peak(&sets[0], dt);
    if (!json)
        printf("%s %s, %d threads: micro-kernel in L1 %.0f GFLOP/s\n", sets[0].name, dtype_name(dt),
               parallel_threads(), peak / 1e9);
    for (size_t l = 0; l < sizeof layers / sizeof layers[0]; l++) {
        const int64_t n = strcmp(layers[l].name, "head") == 0 && tokens > HEAD_TOKENS ? HEAD_TOKENS : tokens;
        for (int f = 0; f < 3; f++) {
            struct gemm_args g = args_of(t, &layers[l], f, n, dt);
            double rate[2];
            TRY(measure(sets, &g, rate));
            if (json)
                printf("{\"bench\":\"gemm\",\"set\":\"%s\",\"dtype\":\"%s\",\"layer\":\"%s\",\"form\":\"%s\","
                       "\"m\":%lld,\"n\":%lld,"
                       "\"k\":%lld,\"gflops\":%.1f,\"onednn_gflops\":%.1f,\"peak_gflops\":%.1f,\"threads\":%"
                       "d}\n",
                       sets[0].name, dtype_name(dt), layers[l].name, forms[f], (long long)g.m, (long long)g.n,
                       (long long)g.k, rate[0] / 1e9, rate[1] / 1e9, peak / 1e9, parallel_threads());
            else
                printf("  %-5s %-6s %6lld x %5lld x %5lld  %8.1f GFLOP/s  %3.0f%% of peak   oneDNN %8.1f  "
                       "ratio %.2f\n",
                       layers[l].name, forms[f], (long long)g.m, (long long)g.n, (long long)g.k,
                       rate[0] / 1e9, 100 * rate[0] / peak, rate[1] / 1e9, rate[0] / rate[1]);
        }
    }
    return STATUS_OK;
}

status bench_gemm(int argc, char **argv)
{
    int64_t tokens = 2048;
    bool json = false;
    const char *isa = NULL;
    const struct flag flags[] = {{"tokens", FLAG_INT, &tokens, "rows of the activations"},
                                 {"isa", FLAG_TEXT, &isa, "avx2, avx512 or amx (the best)"},
                                 {"json", FLAG_SWITCH, &json, "one JSON object per line"}};
    int help;
    TRY(flags_parse("bench gemm [--tokens N] [--isa avx2|avx512|amx] [--json]", flags, 3, &argc, argv, 0,
                    &help));
    if (help) return STATUS_OK;
    if (argc > 0) return FAIL(STATUS_CONFIG, "bench gemm takes no argument '%s'", argv[0]);
    if (tokens < 1 || tokens > 1 << 20)
        return FAIL(STATUS_CONFIG, "--tokens=%lld: 1 to 1048576", (long long)tokens);
    struct ops sets[2];
    TRY(ops_cpu(&sets[0], isa));
    sets[1] = sets[0];
    gemm_onednn(&sets[1]);
    const int64_t rows = tokens > HEAD_TOKENS ? tokens : HEAD_TOKENS,
                  y = rows * 3072 > HEAD_TOKENS * 50304 ? rows * 3072 : HEAD_TOKENS * 50304;
    /* Zeros, so that sums of gradients stay finite; whether other numbers run at the same clock was not checked. */
    struct arrays t = {malloc((size_t)rows * 3072 * 4), malloc((size_t)50304 * 768 * 4),
                       malloc((size_t)y * 4)};
    status st = STATUS_OK;
    if (!t.x || !t.w || !t.y) {
        st = FAIL(STATUS_FIT, "no memory for the operands of %lld tokens", (long long)tokens);
        goto out;
    }
    memset(t.x, 0, (size_t)rows * 3072 * 4);
    memset(t.w, 0, (size_t)50304 * 768 * 4);
    memset(t.y, 0, (size_t)y * 4);
    TRY_OUT(table(sets, &t, DTYPE_F32, tokens, json));
    TRY_OUT(table(sets, &t, DTYPE_BF16, tokens, json));
out:
    free(t.x);
    free(t.w);
    free(t.y);
    return st;
}
