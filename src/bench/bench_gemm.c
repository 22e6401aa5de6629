/* GEMMs of a GPT-2 124M training step on the CPU (on a GPU: bench/cuda/gemm.c): ingot's alternating with
 * oneDNN's (partitioned in the same thread-invariant way), and the rate of ingot's micro-kernel on data in
 * L1. Operands are random, in huge pages, as in a run. In FP8 (bench/cuda/gemm.c says how) the kernels compute
 * in BF16 or F32, and oneDNN is no peer. */
#include "base/arena.h"
#include "base/clock.h"
#include "base/flags.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "bench/bench.h"
#include "bench/lasting.h"
#include "observe/progress.h"
#include "ops/cpu/fast.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS_MAX = 99, HEAD_TOKENS = 1024, WIDEST = 3072 };
static const struct layer {
    const char *name;
    int64_t out, in;
} layers[] = {
    {"qkv", 2304, 768}, {"out", 768, 768}, {"fc", 3072, 768}, {"proj", 768, 3072}, {"head", 50304, 768}};
static const char *const forms[] = {"fwd", "dgrad", "wgrad"};
enum { FWD, DGRAD, WGRAD, FORMS };
enum { GEMMS = FORMS * sizeof layers / sizeof layers[0] };

/* What to measure; NULL: all. */
struct choice {
    int64_t tokens, runs, seconds; /* seconds: only on a GPU */
    const char *isa, *layer, *form, *dt;
    bool json;
};

/* x [n, in], w [out, in], y [n, out], and a buffer for any result. */
struct arrays {
    void *x, *w, *y, *result;
};

/* FLOP/s of ingot and of oneDNN; 0: not measured. */
struct rates {
    const struct layer *layer;
    const char *form;
    int64_t m, n, k;
    double median[2], best[2];
};

/* Operands of training: transposed copies of what is not contiguous along k, gradients in E5M2. */
static void make_fp8(struct gemm_args *g, int form)
{
    static const float one = 1;
    g->a.dt = form == FWD ? DTYPE_F8_E4M3 : DTYPE_F8_E5M2;
    g->a.scales = g->b.scales = SCALES_TENSOR;
    g->a.scale = g->b.scale = &one;
    g->a.trans = false, g->b.trans = true;
    g->cdt = form == WGRAD ? DTYPE_F32 : DTYPE_BF16;
    g->fast_accum = form == FWD;
}

static struct gemm_args args_of(const struct arrays *t, const struct layer *l, int form, int64_t n, dtype dt)
{
    struct gemm_args g = {.c = t->result, .a = {.dt = dt}, .b = {.dt = dt}, .cdt = dt};
    if (form == FWD) {
        g.a.data = t->x, g.b.data = t->w, g.m = n, g.n = l->out, g.k = l->in, g.b.trans = true;
        if (strcmp(l->name, "head") == 0) g.cdt = DTYPE_F32; /* logits */
    } else if (form == DGRAD) {
        g.a.data = t->y, g.b.data = t->w, g.m = n, g.n = l->in, g.k = l->out;
    } else {
        g.a.data = t->y, g.b.data = t->x, g.m = l->out, g.n = l->in, g.k = n, g.a.trans = true;
        g.accum = ACCUM_ADD, g.cdt = DTYPE_F32;
    }
    if (dt == DTYPE_F8_E4M3) make_fp8(&g, form);
    return g;
}

/* Elements of the largest y. */
static int64_t y_count(int64_t tokens)
{
    const int64_t head = (int64_t)HEAD_TOKENS * 50304;
    return tokens * WIDEST > head ? tokens * WIDEST : head;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static status measure(const struct ops *sets, int count, const struct gemm_args *g, int64_t runs,
                      struct rates *out)
{
    double times[2][RUNS_MAX];
    const double flops = 2.0 * (double)g->m * (double)g->n * (double)g->k;
    memset(g->c, 0, (size_t)(g->m * g->n) * sizeof(float));
    for (int64_t r = -1; r < runs; r++) {
        for (int s = 0; s < count; s++) {
            double begin = clock_s();
            TRY(sets[s].gemm(g, NULL));
            if (r >= 0) times[s][r] = clock_s() - begin;
        }
    }
    for (int s = 0; s < count; s++) {
        qsort(times[s], (size_t)runs, sizeof times[s][0], by_value);
        out->median[s] = flops / times[s][runs / 2];
        out->best[s] = flops / times[s][0];
    }
    return STATUS_OK;
}

/* Uniform in [-1, 1). */
static void fill(void *p, dtype dt, int64_t count, uint64_t seed)
{
    enum { GRAIN = 1 << 16, PER_BLOCK = 4 };
    PARALLEL_CHUNKS(c, chunk_count(count, GRAIN))
    {
        struct span at = chunk_span(c, count, GRAIN);
        struct rng_block r = {0};
        for (int64_t i = at.begin; i < at.end; i++) {
            if (i % PER_BLOCK == 0) r = rng_at(seed, RNG_TEST, (uint64_t)(i / PER_BLOCK), 0);
            float x = (float)(r.u[i % PER_BLOCK] >> 8) * 0x1p-23f - 1.0f;
            dtype_store(p, i, dt, (double)x);
        }
    }
}

static void print_rates(const struct rates *r, const char *set, dtype dt, double peak, bool json)
{
    char peer[64] = "has none here", best[32] = "null", median[32] = "null";
    if (r->best[1] > 0) {
        snprintf(peer, sizeof peer, "%7.5g, best %7.5g", r->median[1] / 1e9, r->best[1] / 1e9);
        snprintf(median, sizeof median, "%.5g", r->median[1] / 1e9);
        snprintf(best, sizeof best, "%.5g", r->best[1] / 1e9);
    }
    if (json)
        printf(
            "{\"bench\":\"gemm\",\"set\":\"%s\",\"dtype\":\"%s\",\"layer\":\"%s\",\"form\":\"%s\",\"m\":%lld,"
            "\"n\":%lld,\"k\":%lld,\"gflops\":%.5g,\"best_gflops\":%.5g,\"onednn_gflops\":%s,"
            "\"onednn_best_gflops\":%s,\"peak_gflops\":%.1f,\"threads\":%d}\n",
            set, dtype_name(dt), r->layer->name, r->form, (long long)r->m, (long long)r->n, (long long)r->k,
            r->median[0] / 1e9, r->best[0] / 1e9, median, best, peak / 1e9, parallel_threads());
    else
        printf("  %-5s %-6s %6lld x %5lld x %5lld  %7.5g GFLOP/s, best %7.5g: %3.0f%% of peak   "
               "oneDNN %s\n",
               r->layer->name, r->form, (long long)r->m, (long long)r->n, (long long)r->k, r->median[0] / 1e9,
               r->best[0] / 1e9, 100 * r->best[0] / peak, peer);
}

/* The peak is the best of measurements spread over the GEMMs': the clock of a shared machine varies. */
static status table(const struct ops sets[2], const struct arrays *t, dtype dt, const struct choice *choice)
{
    struct rates rates[GEMMS];
    int count = 0;
    double peak = 0;
    const bool fp8 = dt == DTYPE_F8_E4M3;
    char what[32];
    snprintf(what, sizeof what, "%s GEMMs", dtype_name(dt));
    progress_begin(WORK_OTHER, what, GEMMS);
    fill(t->x, dt, choice->tokens * WIDEST, 1);
    fill(t->w, dt, 50304 * 768, 2);
    fill(t->y, fp8 ? DTYPE_F8_E5M2 : dt, y_count(choice->tokens), 3);
    for (int i = 0; i < (int)GEMMS; i++) {
        const struct layer *l = &layers[i / FORMS];
        const int form = i % FORMS;
        const bool head = strcmp(l->name, "head") == 0;
        if (choice->layer ? strcmp(choice->layer, l->name) != 0 : head && fp8) continue;
        if (choice->form && strcmp(choice->form, forms[form]) != 0) continue;
        struct gemm_args g =
            args_of(t, l, form, head && choice->tokens > HEAD_TOKENS ? HEAD_TOKENS : choice->tokens, dt);
        const double now = cpu_peak(&sets[0], fp8 ? DTYPE_BF16 : dt);
        if (now > peak) peak = now;
        struct rates *r = &rates[count++];
        *r = (struct rates){.layer = l, .form = forms[form], .m = g.m, .n = g.n, .k = g.k};
        TRY(measure(sets, !fp8 && gemm_onednn_has(dt) ? 2 : 1, &g, choice->runs, r));
        progress_done(i + 1, GEMMS);
    }
    progress_end();
    if (!choice->json)
        printf("%s %s, %d threads: micro-kernel in L1 %.0f GFLOP/s; GEMMs: median and best of %lld\n",
               sets[0].name, dtype_name(dt), parallel_threads(), peak / 1e9, (long long)choice->runs);
    for (int i = 0; i < count; i++) print_rates(&rates[i], sets[0].name, dt, peak, choice->json);
    fflush(stdout);
    return STATUS_OK;
}

static status arrays_open(struct arena *a, struct arrays *t, int64_t tokens)
{
    const int64_t rows = tokens > HEAD_TOKENS ? tokens : HEAD_TOKENS;
    const size_t x_bytes = (size_t)(rows * WIDEST) * sizeof(float),
                 w_bytes = (size_t)50304 * 768 * sizeof(float),
                 y_bytes = (size_t)y_count(tokens) * sizeof(float);
    TRY(arena_reserve(a, "bench gemm", x_bytes + w_bytes + 2 * y_bytes + 4 * ARENA_ALIGN));
    t->x = arena_take(a, x_bytes, "x");
    t->w = arena_take(a, w_bytes, "w");
    t->y = arena_take(a, y_bytes, "y");
    t->result = arena_take(a, y_bytes, "result");
    return STATUS_OK;
}

#if !INGOT_CUDA
status cuda_bench_gemm(const struct gemm_bench *b)
{
    (void)b;
    return FAIL(STATUS_DEVICE,
                "this ingot was built without CUDA; build it where nvcc is on PATH (cmake --preset cuda)");
}
#endif

static bool is_word(const char *word, const char *is)
{
    return word && strcmp(word, is) == 0;
}

static status on_cpu(const struct choice *choice)
{
    struct ops sets[2];
    const bool f32 = !choice->dt || is_word(choice->dt, "f32"), fp8 = is_word(choice->dt, "fp8"),
               half = !choice->dt || is_word(choice->dt, "bf16");
    if (!f32 && !half && !fp8)
        return FAIL(STATUS_CONFIG, "--dtype=%s: f32, bf16 or fp8 on a CPU", choice->dt);
    if (fp8 && choice->tokens % 16)
        return FAIL(STATUS_CONFIG, "--tokens=%lld: FP8 needs a multiple of 16", (long long)choice->tokens);
    TRY(ops_cpu(&sets[0], choice->isa));
    sets[1] = sets[0];
    gemm_onednn(&sets[1]);
    if (!choice->json && !gemm_onednn_has(DTYPE_F32))
        printf("built without oneDNN, the peer of these rates: scripts/install.sh bench, then configure "
               "again\n");
    struct arena memory;
    struct arrays t;
    TRY(arrays_open(&memory, &t, choice->tokens));
    status st = STATUS_OK;
    progress_start();
    if (f32) TRY_OUT(table(sets, &t, DTYPE_F32, choice));
    if (half) TRY_OUT(table(sets, &t, DTYPE_BF16, choice));
    if (fp8) TRY_OUT(table(sets, &t, DTYPE_F8_E4M3, choice));
out:
    progress_stop();
    arena_free(&memory);
    return st;
}

static status on_gpu(const struct choice *choice, const char *preset)
{
    if (choice->isa) return FAIL(STATUS_CONFIG, "--isa is for the CPU");
    return cuda_bench_gemm(&(struct gemm_bench){.tokens = choice->tokens,
                                                .runs = choice->runs,
                                                .seconds = choice->seconds,
                                                .preset = preset ? preset : "llama-1b",
                                                .layer = choice->layer,
                                                .form = choice->form,
                                                .dt = choice->dt,
                                                .json = choice->json});
}

status bench_gemm(struct args *a)
{
    struct choice choice = {.tokens = 0, .runs = 5};
    const char *device = "cpu", *preset = NULL;
    const struct flag flags[] = {FLAG("device", &device),          FLAG("preset", &preset),
                                 FLAG("tokens", &choice.tokens),   FLAG("runs", &choice.runs),
                                 FLAG("seconds", &choice.seconds), FLAG("isa", &choice.isa),
                                 FLAG("dtype", &choice.dt),        FLAG("layer", &choice.layer),
                                 FLAG("form", &choice.form),       FLAG("json", &choice.json)};
    TRY(args_parse(a, flags, (int)(sizeof flags / sizeof flags[0])));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 0, 0));
    const bool gpu = strcmp(device, "cuda") == 0;
    if (!gpu && strcmp(device, "cpu") != 0) return FAIL(STATUS_CONFIG, "--device=%s: cpu or cuda", device);
    if (!gpu && preset)
        return FAIL(STATUS_CONFIG, "--preset is for --device=cuda: the CPU's GEMMs are GPT-2 124M's");
    if (choice.tokens == 0) choice.tokens = gpu ? 16384 : 4096;
    if (choice.tokens < 1 || choice.tokens > 1 << 20)
        return FAIL(STATUS_CONFIG, "--tokens=%lld: 1 to 1048576", (long long)choice.tokens);
    if (choice.runs < 1 || choice.runs > RUNS_MAX)
        return FAIL(STATUS_CONFIG, "--runs=%lld: 1 to %d", (long long)choice.runs, RUNS_MAX);
    if (!gpu && choice.seconds) return FAIL(STATUS_CONFIG, "--seconds is for --device=cuda");
    TRY(lasting_check(choice.seconds));
    return gpu ? on_gpu(&choice, preset) : on_cpu(&choice);
}
