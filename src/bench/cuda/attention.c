/* Attention on a GPU in BF16, forward and backward, with each backend of the op set, compared with the best
 * square GEMM (8192^3) of this GPU in the same run. Rows are packed as in nn/attn.c: the heads of q, k and
 * v in one row. FLOPs count the pairs that are not masked: 2 (hd + hd_v) per pair and head forward, 2.5
 * times that backward. Medians; data are normal random numbers (zeros draw less power and run faster).
 * Operands exceed any L2 cache, so one set of them is enough. */
#include "base/log.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "bench/cuda/attention.h"
#include "bench/lasting.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SQUARE = 8192, TINY_DOCS = 2, TINY_LEN = 512 };
static const int64_t pattern_count = 4194301; /* random numbers; an odd period, so that rows differ */
static const double sample_ms = 4;

/* Typical shapes of training. */
static const struct shape shapes[] = {
    {64, 1024, 12, 12, 64, 0, EQUAL, 0},     {32, 2048, 16, 8, 64, 0, EQUAL, 0},
    {8, 4096, 32, 8, 64, 0, EQUAL, 0},       {4, 4096, 32, 8, 128, 0, EQUAL, 0},
    {2, 8192, 32, 8, 128, 0, EQUAL, 0},      {24, 16384, 32, 8, 128, 0, MIXED, 0},
    {2, 8192, 32, 8, 128, 1024, EQUAL, 0},   {24, 16384, 32, 8, 64, 0, MIXED, 0},
    {4, 4096, 32, 32, 192, 0, EQUAL, 128},   {4, 4096, 16, 16, 192, 0, EQUAL, 128},
    {24, 16384, 32, 32, 192, 0, MIXED, 128}, {100, 16384, 32, 8, 128, 0, MIXED, 0},
    {100, 16384, 32, 8, 64, 0, MIXED, 0},    {100, 155, 32, 8, 128, 0, HALVES, 0},
    {100, 155, 32, 8, 64, 0, HALVES, 0},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static const struct backend {
    const char *flag, *name;
    struct cuda_options options;
} backends[] = {
    {"cudnn", "cudnn", {.attention = CUDA_ATTENTION_CUDNN}},
    {"cudnn", "cudnn atomic", {.attention = CUDA_ATTENTION_CUDNN, .attention_atomic = true}},
    {"own", "own", {.attention = CUDA_ATTENTION_OWN}},
    {"reference", "reference", {.attention = CUDA_ATTENTION_REFERENCE}},
};
enum { BACKENDS = sizeof backends / sizeof *backends };

/* ------------------------------------------------------------------ what is measured */

/* The reference computes row by row: documents are short enough to wait for. */
static struct shape shape_for(const struct backend *b, int i)
{
    struct shape s = shapes[i];
    if (b->options.attention != CUDA_ATTENTION_REFERENCE) return s;
    if (s.window > TINY_LEN / 4) s.window = TINY_LEN / 4;
    if (s.len > TINY_LEN) s.len = TINY_LEN;
    if (s.docs > TINY_DOCS && s.lengths != MIXED) s.docs = TINY_DOCS;
    return s;
}

/* Offsets of documents; the longest one. */
static int64_t documents(const struct shape *s, int32_t cu[DOCS_MAX + 1])
{
    const int64_t parts = s->docs * (s->docs + 1) / 2;
    int64_t before = 0, longest = 0;
    cu[0] = 0;
    for (int64_t i = 0; i < s->docs; i++) {
        before += i * 7 % s->docs + 1;
        const int64_t mixed = s->len * before / parts, halves = cu[i] + s->len * (1 + i % 3) / 2;
        cu[i + 1] = (int32_t)(s->lengths == MIXED ? mixed : s->lengths == HALVES ? halves : s->len * (i + 1));
        if (longest < cu[i + 1] - cu[i]) longest = cu[i + 1] - cu[i];
    }
    return longest;
}

static double pairs_of(const struct shape *s, const int32_t *cu)
{
    double pairs = 0;
    for (int64_t i = 0; i < s->docs; i++) {
        const double len = cu[i + 1] - cu[i], all = s->window && s->window < len ? (double)s->window : len;
        pairs += all * (all + 1) / 2 + (len - all) * all;
    }
    return pairs;
}

/* The backward call that belongs to a forward call. */
static struct attn_bwd_args backward_of(const struct attn_fwd_args *f, const void *grad, bf16 *dqkv,
                                        void *scratch)
{
    const int64_t k_at = f->heads * f->head_dim, v_at = k_at + f->heads_kv * f->head_dim;
    return (struct attn_bwd_args){.q = f->q,
                                  .k = f->k,
                                  .v = f->v,
                                  .o = f->o,
                                  .do_ = grad,
                                  .lse = f->lse,
                                  .dq = dqkv,
                                  .dk = dqkv + k_at,
                                  .dv = dqkv + v_at,
                                  .q_stride = f->q_stride,
                                  .k_stride = f->k_stride,
                                  .v_stride = f->v_stride,
                                  .dq_stride = f->q_stride,
                                  .dk_stride = f->k_stride,
                                  .dv_stride = f->v_stride,
                                  .cu_seqlens = f->cu_seqlens,
                                  .docs = f->docs,
                                  .rows = f->rows,
                                  .heads = f->heads,
                                  .heads_kv = f->heads_kv,
                                  .head_dim = f->head_dim,
                                  .head_dim_v = f->head_dim_v,
                                  .window = f->window,
                                  .len_max = f->len_max,
                                  .scale = f->scale,
                                  .scratch = scratch,
                                  .dt = f->dt};
}

void attention_layout(struct call *k, const struct shape *s, const struct ops *o, size_t scratch_min,
                      struct arena *a)
{
    const int64_t len_max = documents(s, k->cu), rows = k->cu[s->docs];
    const int64_t head_dim_v = s->head_dim_v ? s->head_dim_v : s->head_dim;
    const int64_t k_at = s->heads * s->head_dim, v_at = k_at + s->heads_kv * s->head_dim,
                  row = v_at + s->heads_kv * head_dim_v;
    const struct attn_shape shape = {.rows = rows,
                                     .docs = s->docs,
                                     .len_max = len_max,
                                     .heads = s->heads,
                                     .heads_kv = s->heads_kv,
                                     .head_dim = s->head_dim,
                                     .head_dim_v = head_dim_v,
                                     .window = s->window,
                                     .dt = DTYPE_BF16};
    const size_t backward = o->attn_scratch(&shape, ATTN_BWD);
    k->pairs = pairs_of(s, k->cu);
    k->qkv_bytes = sizeof(bf16) * (size_t)(rows * row);
    k->grad_bytes = sizeof(bf16) * (size_t)(rows * s->heads * head_dim_v);
    int32_t *cu = arena_take(a, sizeof k->cu, "cu_seqlens");
    bf16 *qkv = k->qkv = arena_take(a, k->qkv_bytes, "qkv");
    k->grad = arena_take(a, k->grad_bytes, "output gradient");
    bf16 *o_ = arena_take(a, k->grad_bytes, "output"), *dqkv = arena_take(a, k->qkv_bytes, "dqkv");
    void *lse = arena_take(a, sizeof(float) * (size_t)(rows * s->heads), "lse");
    void *scratch[] = {arena_take(a, o->attn_scratch(&shape, ATTN_FWD), "forward scratch"),
                       arena_take(a, backward > scratch_min ? backward : scratch_min, "backward scratch")};
    if (qkv == NULL) return; /* counting */
    k->fwd = (struct attn_fwd_args){.q = qkv,
                                    .k = qkv + k_at,
                                    .v = qkv + v_at,
                                    .o = o_,
                                    .lse = lse,
                                    .q_stride = row,
                                    .k_stride = row,
                                    .v_stride = row,
                                    .cu_seqlens = cu,
                                    .docs = s->docs,
                                    .rows = rows,
                                    .heads = s->heads,
                                    .heads_kv = s->heads_kv,
                                    .head_dim = s->head_dim,
                                    .head_dim_v = head_dim_v,
                                    .window = s->window,
                                    .len_max = len_max,
                                    .scale = 1 / sqrt((double)s->head_dim),
                                    .scratch = scratch[0],
                                    .dt = DTYPE_BF16};
    k->bwd = backward_of(&k->fwd, k->grad, dqkv, scratch[1]);
    k->bwd.scratch_bytes = backward;
}

static bool chosen(const struct attention_bench *b, const struct backend *e)
{
    if (b->backend) return strcmp(b->backend, e->flag) == 0;
    return e->options.attention != CUDA_ATTENTION_REFERENCE;
}

/* ------------------------------------------------------------------ memory */

static status random_fill(struct gpu *c, void *to, size_t bytes)
{
    size_t done = sizeof(bf16) * (size_t)pattern_count;
    if (done > bytes) done = bytes;
    TRY(dev_copy(&c->s, to, c->pattern, done));
    for (size_t more; done < bytes; done += more) {
        more = done < bytes - done ? done : bytes - done;
        TRY(dev_copy(&c->s, (char *)to + done, to, more));
    }
    return STATUS_OK;
}

status attention_fill(struct gpu *c, const struct call *k, const struct shape *s)
{
    TRY(random_fill(c, k->qkv, k->qkv_bytes));
    TRY(random_fill(c, k->grad, k->grad_bytes));
    TRY(dev_upload(&c->s, (void *)(uintptr_t)k->fwd.cu_seqlens, k->cu,
                   sizeof *k->cu * (size_t)(s->docs + 1)));
    return dev_sync(&c->s);
}

static status pattern_upload(struct gpu *c)
{
    enum { GRAIN = 1 << 16 };
    bf16 *numbers = malloc(sizeof *numbers * (size_t)pattern_count);
    if (numbers == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for random numbers");
    PARALLEL_CHUNKS(i, chunk_count(pattern_count, GRAIN))
    {
        const struct span at = chunk_span(i, pattern_count, GRAIN);
        for (int64_t n = at.begin; n < at.end; n++)
            numbers[n] = bf16_from_f32((float)rng_normal(1, RNG_TEST, (uint64_t)n, 0));
    }
    status st = dev_upload(&c->s, c->pattern, numbers, sizeof *numbers * (size_t)pattern_count);
    if (st == STATUS_OK) st = dev_sync(&c->s);
    free(numbers);
    return st;
}

/* One pool, as large as the largest call or the square GEMM. */
static status memory_open(struct gpu *c, const struct attention_bench *b)
{
    const size_t pattern = sizeof(bf16) * (size_t)pattern_count;
    int64_t rows_max = SQUARE;
    c->pool_bytes = 3 * sizeof(bf16) * SQUARE * SQUARE;
    for (int i = 0; i < BACKENDS * SHAPES && b->ranks == 0; i++) {
        const struct backend *e = &backends[i / SHAPES];
        const struct shape s = shape_for(e, i % SHAPES);
        struct arena count = {.name = "bench attention"};
        struct call k;
        if (!chosen(b, e) || (b->shape >= 0 && b->shape != i % SHAPES)) continue;
        attention_layout(&k, &s, &c->ops, 0, &count);
        if (c->pool_bytes < count.peak) c->pool_bytes = count.peak;
        if (rows_max < k.cu[s.docs]) rows_max = k.cu[s.docs];
    }
    if (b->ranks > 0) {
        const size_t parts = attention_parts_bytes(c, b);
        if (c->pool_bytes < parts) c->pool_bytes = parts;
        if (rows_max < attention_parts_rows()) rows_max = attention_parts_rows();
    }
    c->pool_bytes += ARENA_ALIGN;
    c->workspace_bytes = c->ops.workspace(rows_max);
    TRY(dev_arena_reserve(&c->dev, &c->memory, "bench attention",
                          c->pool_bytes + c->workspace_bytes + pattern + 3 * ARENA_ALIGN));
    c->workspace = arena_take(&c->memory, c->workspace_bytes, "workspace");
    c->pattern = arena_take(&c->memory, pattern, "random numbers");
    c->pool = arena_take(&c->memory, c->pool_bytes, "operands");
    return pattern_upload(c);
}

/* ------------------------------------------------------------------ measuring */

static status run_once(struct gpu *c, const struct call *k, int what)
{
    if (what == FWD) return c->ops.attn_fwd(&k->fwd, &c->s);
    if (what == BWD) return c->ops.attn_bwd(&k->bwd, &c->s);
    bf16 *a = (bf16 *)(void *)c->pool;
    const int64_t n = SQUARE;
    return c->ops.gemm(&(struct gemm_args){.a = operand_at(a, DTYPE_BF16, false),
                                           .b = operand_at(a + n * n, DTYPE_BF16, true),
                                           .c = a + 2 * n * n,
                                           .m = n,
                                           .n = n,
                                           .k = n,
                                           .cdt = DTYPE_BF16},
                       &c->s);
}

struct lasting_run {
    struct gpu *c;
    const struct call *k;
    int what;
};
static status run_lasting(void *context, int64_t i)
{
    const struct lasting_run *r = context;
    (void)i;
    return run_once(r->c, r->k, r->what);
}

static status timed(struct gpu *c, const struct call *k, int what, int repeat, double *ms)
{
    TRY(dev_event_record(&c->s, &c->begin));
    for (int i = 0; i < repeat; i++) TRY(run_once(c, k, what));
    TRY(dev_event_record(&c->s, &c->end));
    TRY(dev_event_ms(&c->dev, &c->begin, &c->end, ms));
    *ms /= repeat;
    return STATUS_OK;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

status attention_sample(struct gpu *c, const struct call *k, int what, int64_t runs, double ms[RUNS_MAX])
{
    TRY(run_once(c, k, what));
    TRY(timed(c, k, what, 2, &ms[0]));
    const int repeat = ms[0] > sample_ms / 3 ? 3 : ms[0] > sample_ms / 50 ? (int)(sample_ms / ms[0]) : 50;
    for (int64_t r = 0; r < runs; r++) TRY(timed(c, k, what, repeat, &ms[r]));
    qsort(ms, (size_t)runs, sizeof *ms, ascending);
    return STATUS_OK;
}

static void print_shape(const struct gpu *c, const struct backend *e, int i, const struct call *k, bool json)
{
    const struct attn_fwd_args *f = &k->fwd;
    if (json)
        printf("{\"bench\":\"attention\",\"set\":\"cuda\",\"device\":\"%s\",\"dtype\":\"bf16\","
               "\"backend\":\"%s\",\"shape\":%d,\"docs\":%lld,\"tokens\":%lld,\"len_max\":%lld,"
               "\"heads\":%lld,\"heads_kv\":%lld,\"hd\":%lld,\"hd_v\":%lld,\"window\":%lld,",
               c->dev.name, e->name, i, (long long)f->docs, (long long)f->rows, (long long)f->len_max,
               (long long)f->heads, (long long)f->heads_kv, (long long)f->head_dim, (long long)f->head_dim_v,
               (long long)f->window);
    else
        printf("%2d  %6lld tokens, %3lld of %4lld%s  %2lld/%-2lld x %3lld/%-3lld  window %4lld  %-12s ", i,
               (long long)f->rows, (long long)f->docs, (long long)f->len_max,
               f->docs * f->len_max == f->rows ? "        " : " at most", (long long)f->heads,
               (long long)f->heads_kv, (long long)f->head_dim, (long long)f->head_dim_v, (long long)f->window,
               e->name);
}

static void print_pass(const struct gpu *c, const struct call *k, int pass, bool json, double ms,
                       const struct lasting *lasting)
{
    const double flops = 2.0 * (double)((k->fwd.head_dim + k->fwd.head_dim_v) * k->fwd.heads) * k->pairs *
                         (pass == BWD ? 2.5 : 1);
    const double rate = 1e3 * flops / ms, percent = 100 * rate / c->square;
    const char *name = pass == BWD ? "bwd" : "fwd";
    if (json)
        printf("\"pass\":\"%s\",\"ms\":%.4f,\"tflops\":%.1f,\"square_tflops\":%.1f,"
               "\"percent_of_square\":%.1f",
               name, ms, rate / 1e12, c->square / 1e12, percent);
    else
        printf("%s %9.3f ms %7.1f TFLOP/s %5.1f %% of square", name, ms, rate / 1e12, percent);
    lasting_print(lasting, &(struct lasting_unit){"TFLOP/s", "FLOP", "tflops", 1e12}, flops, json);
    printf(json ? "}\n" : "\n");
    fflush(stdout);
}

/* Prints why a backend does not support the shape. */
static void print_refusal(int pass, bool json)
{
    const char *name = pass == BWD ? "bwd" : "fwd";
    if (!json) {
        printf("%s refused: %s\n", name, status_message());
        return;
    }
    printf("\"pass\":\"%s\",\"refused\":\"", name);
    for (const char *at = status_message(); *at; at++)
        putchar(*at == '"' || *at == '\\' ? '\'' : (unsigned char)*at < ' ' ? ' ' : *at);
    printf("\"}\n");
}

static status measure(struct gpu *c, const struct backend *e, int i, const struct attention_bench *b)
{
    const struct shape s = shape_for(e, i);
    struct arena pool = {0};
    struct call k;
    double ms[RUNS_MAX];
    arena_attach(&pool, "bench attention", c->pool, c->pool_bytes, NULL);
    attention_layout(&k, &s, &c->ops, 0, &pool);
    TRY(attention_fill(c, &k, &s));
    for (int pass = FWD; pass <= BWD; pass++) {
        const status st = attention_sample(c, &k, pass, b->runs, ms);
        if (st != STATUS_OK && st != STATUS_CONFIG) return st;
        print_shape(c, e, i, &k, b->json);
        if (st == STATUS_CONFIG) {
            print_refusal(pass, b->json);
            return STATUS_OK;
        }
        struct lasting lasting = {0};
        struct lasting_run run = {c, &k, pass};
        if (b->seconds > 0)
            TRY(lasting_measure(&c->s, c->meter, (double)b->seconds,
                                &(struct lasting_work){run_lasting, &run}, &lasting));
        print_pass(c, &k, pass, b->json, ms[b->runs / 2], &lasting);
    }
    return STATUS_OK;
}

/* ------------------------------------------------------------------ the benchmark */

status attention_set_open(struct gpu *c, const struct cuda_options *options)
{
    TRY(ops_cuda(&c->ops, &c->s, options));
    ops_cuda_workspace(&c->s, c->workspace, c->workspace_bytes);
    return STATUS_OK;
}

static status square(struct gpu *c, int64_t runs)
{
    double ms[RUNS_MAX];
    TRY(attention_set_open(c, &(struct cuda_options){.attention = CUDA_ATTENTION_OWN}));
    status st = random_fill(c, c->pool, 2 * sizeof(bf16) * SQUARE * SQUARE);
    if (st == STATUS_OK) st = attention_sample(c, NULL, GEMM, runs, ms);
    ops_cuda_close(&c->s);
    if (st == STATUS_OK) c->square = 1e3 * 2.0 * SQUARE * SQUARE * SQUARE / ms[0];
    return st;
}

static status run_all(struct gpu *c, const struct attention_bench *b)
{
    TRY(dev_stream_open(&c->dev, &c->s));
    TRY(dev_event_open(&c->dev, &c->begin));
    TRY(dev_event_open(&c->dev, &c->end));
    TRY(ops_cuda(&c->ops, NULL, &(struct cuda_options){0})); /* sizes only */
    TRY(memory_open(c, b));
    if (b->ranks > 0) return attention_parts(c, b);
    TRY(square(c, b->runs));
    if (!b->json)
        printf("%s bf16: square GEMM of %d %.1f TFLOP/s; attention, medians of %lld\n", c->dev.name,
               (int)SQUARE, c->square / 1e12, (long long)b->runs);
    for (int i = 0; i < SHAPES * BACKENDS; i++) {
        const struct backend *e = &backends[i % BACKENDS];
        if (!chosen(b, e) || (b->shape >= 0 && b->shape != i / BACKENDS)) continue;
        TRY(attention_set_open(c, &e->options));
        const status st = measure(c, e, i / BACKENDS, b);
        ops_cuda_close(&c->s);
        if (st != STATUS_OK) return st;
    }
    return STATUS_OK;
}

status cuda_bench_attention(const struct attention_bench *b)
{
    struct gpu c = {0};
    if (b->runs < 1 || b->runs > RUNS_MAX)
        return FAIL(STATUS_CONFIG, "--runs=%lld: 1 to %d", (long long)b->runs, RUNS_MAX);
    const int shapes_count = b->ranks > 0 ? attention_parts_shapes() : SHAPES;
    if (b->shape >= shapes_count)
        return FAIL(STATUS_CONFIG, "--shape=%lld: 0 to %d", (long long)b->shape, shapes_count - 1);
    TRY(dev_open(&c.dev, DEV_CUDA));
    if (b->seconds > 0 && power_open(&c.meter, &c.dev) != STATUS_OK) log_warn("%s", status_message());
    status st = run_all(&c, b);
    power_close(c.meter);
    arena_free(&c.memory);
    if (c.s.queue) {
        dev_event_close(&c.dev, &c.begin);
        dev_event_close(&c.dev, &c.end);
        dev_stream_close(&c.s);
    }
    dev_close(&c.dev);
    return st;
}
