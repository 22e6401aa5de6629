/* `ingot plan --calibrate FILE`: rates of this machine as a file that `ingot plan --machine FILE` reads. All ops are called
 * through the op table, on the CPU and on a GPU; links by `ingot bench collectives` between ranks. Each number is
 * written to FILE.part when it is there, so a killed calibration goes on; FILE appears when all are.
 *
 *   gemm       forward, dgrad and wgrad of n = k = width, the mean rate; FP8 (GPU): forward
 *   attention  causal, heads of 64, 128, and 192 with values of 128 (latent), of two lengths, which give share and half
 *   stream     bytes of RMSNorm and SwiGLU, both passes, as a layer has them
 *   round      elements to MXFP8 and back (CPU)
 *   copy, host copies in the device's memory; from the host (GPU)
 *   link       all-gather between ranks: of 64 MiB, and of 1 KiB
 *
 * On GPUs nothing of it has run yet. */
#include "bench/calibrate.h"
#include "bench/bench.h"
#include "base/clock.h"
#include "base/io.h"
#include "base/parallel.h"
#include "base/process.h"
#include "base/rng.h"
#include "base/text.h"
#include "observe/env.h"
#include "ops/choose.h"
#include "ops/cpu/fast.h"
#include "plan/machine.h"
#include "plan/plan.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/*   name, function, its number, CPU and GPU */
#define WIDTHS(X, name, function, kinds)                                                                     \
    X(name##_256, function, 256, kinds)                                                                      \
    X(name##_512, function, 512, kinds)                                                                      \
    X(name##_1024, function, 1024, kinds)                                                                    \
    X(name##_2048, function, 2048, kinds)                                                                    \
    X(name##_4096, function, 4096, kinds) X(name##_8192, function, 8192, kinds)
#define HEADS(X, name, hd)                                                                                   \
    X(name##_forward_short, attention_forward, hd, BOTH)                                                     \
    X(name##_backward_short, attention_backward, hd, BOTH)                                                   \
    X(name##_forward_long, attention_forward, -(hd), BOTH)                                                   \
    X(name##_backward_long, attention_backward, -(hd), BOTH)
#define ITEMS(X)                                                                                             \
    X(peak_bf16, peak, DTYPE_BF16, HOST)                                                                     \
    X(peak_fp32, peak, DTYPE_F32, HOST)                                                                      \
    WIDTHS(X, gemm_bf16, gemm_bf16, BOTH)                                                                    \
    WIDTHS(X, gemm_fp32, gemm_f32, BOTH)                                                                     \
    WIDTHS(X, gemm_fp8, gemm_f8, GPU)                                                                        \
    X(gemm_fp8_exact_4096, gemm_f8_exact, 4096, GPU)                                                         \
    HEADS(X, narrow, 64)                                                                                     \
    HEADS(X, wide, 128)                                                                                      \
    HEADS(X, latent, 192)                                                                                    \
    X(stream_bf16, stream, DTYPE_BF16, BOTH)                                                                 \
    X(stream_fp32, stream, DTYPE_F32, BOTH)                                                                  \
    X(round, rounding, 0, HOST) X(copy, copy, 0, BOTH) X(host, from_host, 0, GPU) X(link, links, 0, BOTH)
enum item {
#define X(name, function, number, kinds) ITEM_##name,
    ITEMS(X)
#undef X
        ITEM_COUNT
};
enum kinds { HOST = 1, GPU = 2, BOTH = 3 };
enum { RUNS = 7, DATA_COUNT = 1 << 20, TEXT_MAX = 1 << 16, NAME = 400 };

struct bench {
    struct dev dev;
    struct stream stream, *s; /* s: NULL on the host */
    struct ops ops;
    struct cluster like; /* its machine is the row that the file starts from; its devices measure the links */
    struct arena memory;
    struct event begin, end;
    char who[NAME];
    double value[ITEM_COUNT]; /* NaN: not measured yet; 0: this machine cannot */
    double link_latency;      /* seconds of the all-gather of 1 KiB, with `link`; 0: unknown */
    int link_ranks;
};

static bool on_gpu(const struct bench *b)
{
    return b->dev.kind == DEV_CUDA;
}

/* ---- time */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef status (*call)(struct bench *b, void *of);

static status timed(struct bench *b, call f, void *of, double *seconds)
{
    double ms;
    if (!on_gpu(b)) {
        const double begin = clock_s();
        TRY(f(b, of));
        *seconds = clock_s() - begin;
        return STATUS_OK;
    }
    TRY(dev_event_record(b->s, &b->begin));
    TRY(f(b, of));
    TRY(dev_event_record(b->s, &b->end));
    TRY(dev_event_ms(&b->dev, &b->begin, &b->end, &ms));
    *seconds = ms * 1e-3;
    return STATUS_OK;
}

/* The median of some runs, without the first, which pages in and searches algorithms. */
static status median(struct bench *b, call f, void *of, double *seconds)
{
    double all[RUNS];
    TRY(timed(b, f, of, &all[0]));
    for (int i = 0; i < RUNS; i++) TRY(timed(b, f, of, &all[i]));
    qsort(all, RUNS, sizeof *all, by_value);
    *seconds = all[RUNS / 2];
    return STATUS_OK;
}

/* ---- memory */

/* `count` random values of both signs: zeros draw less power and run faster. */
static status take(struct bench *b, int64_t count, dtype dt, void **out)
{
    const size_t each = dtype_bytes(dt), whole = (size_t)count * each;
    char *data = malloc(DATA_COUNT * each);
    MEMORY_CHECK(data != NULL, "no memory for random values");
    for (int64_t i = 0; i < DATA_COUNT; i++)
        dtype_store(data, i, dt, rng_uniform(7, RNG_TEST, 0, (uint64_t)i) - 0.5);
    char *at = arena_take(&b->memory, whole, "values");
    status st = STATUS_OK;
    for (size_t done = 0; st == STATUS_OK && done < whole; done += DATA_COUNT * each) {
        const size_t left = whole - done;
        st = dev_upload(b->s, at + done, data, left < DATA_COUNT * each ? left : DATA_COUNT * each);
    }
    if (st == STATUS_OK && b->s) st = dev_sync(b->s);
    free(data);
    *out = at;
    return st;
}

/* Begins a measurement with all of the memory; of the op set's own workspace first. */
static void begin(struct bench *b, int64_t rows)
{
    const size_t bytes = b->ops.workspace(rows);
    b->memory.used = 0;
    void *workspace = arena_take(&b->memory, bytes, "workspace");
    if (on_gpu(b)) choose_workspace(b->s, workspace, bytes);
}

/* ---- GEMMs */

enum { ROWS_HOST = 2048, ROWS_GPU = 16384, WIDEST_HOST = 4096 };

static int64_t rows_of(const struct bench *b)
{
    return on_gpu(b) ? ROWS_GPU : ROWS_HOST;
}

static status call_gemm(struct bench *b, void *of)
{
    return b->ops.gemm(of, b->s);
}

/* x [n, w], W [w, w], dy [n, w]: forward, dgrad and wgrad; FLOP/s of all three. */
static status gemms(struct bench *b, int64_t w, dtype dt, double *rate)
{
    const int64_t n = rows_of(b);
    void *x, *weight, *dy, *c;
    double seconds[3];
    if (!on_gpu(b) && w > WIDEST_HOST) { /* minutes in fp32; and no faster than that of 4096 */
        *rate = 0;
        return STATUS_OK;
    }
    begin(b, n);
    TRY(take(b, n * w, dt, &x));
    TRY(take(b, w * w, dt, &weight));
    TRY(take(b, n * w, dt, &dy));
    TRY(take(b, n > w ? n * w : w * w, DTYPE_F32, &c));
    struct gemm_args g[3] = {
        {.a = operand_at(x, dt, false), .b = operand_at(weight, dt, true), .m = n, .n = w, .k = w},
        {.a = operand_at(dy, dt, false), .b = operand_at(weight, dt, false), .m = n, .n = w, .k = w},
        {.a = operand_at(dy, dt, true),
         .b = operand_at(x, dt, false),
         .m = w,
         .n = w,
         .k = n,
         .accum = ACCUM_ADD}};
    for (int i = 0; i < 3; i++) {
        g[i].c = c, g[i].cdt = i == 2 ? DTYPE_F32 : dt;
        TRY(median(b, call_gemm, &g[i], &seconds[i]));
    }
    *rate = 3 * 2 * (double)n * (double)w * (double)w / (seconds[0] + seconds[1] + seconds[2]);
    return STATUS_OK;
}

static status gemm_bf16(struct bench *b, int width, double *rate)
{
    return gemms(b, width, DTYPE_BF16, rate);
}

static status gemm_f32(struct bench *b, int width, double *rate)
{
    return gemms(b, width, DTYPE_F32, rate);
}

static status gemm_codes(struct bench *b, int64_t w, bool fast, double *rate)
{
    const int64_t n = rows_of(b);
    void *x, *weight, *c;
    float one = 1, *scale;
    double seconds;
    *rate = 0;
    if (b->dev.sm < 89) return STATUS_OK;
    begin(b, n);
    TRY(take(b, n * w, DTYPE_F8_E4M3, &x));
    TRY(take(b, w * w, DTYPE_F8_E4M3, &weight));
    TRY(take(b, n * w, DTYPE_BF16, &c));
    scale = arena_take(&b->memory, sizeof *scale, "scale");
    TRY(dev_upload(b->s, scale, &one, sizeof one));
    struct gemm_args g = {.a = operand_codes(x, DTYPE_F8_E4M3, scale, false),
                          .b = operand_codes(weight, DTYPE_F8_E4M3, scale, true),
                          .c = c,
                          .m = n,
                          .n = w,
                          .k = w,
                          .cdt = DTYPE_BF16,
                          .fast_accum = fast};
    TRY(median(b, call_gemm, &g, &seconds));
    *rate = 2 * (double)n * (double)w * (double)w / seconds;
    return STATUS_OK;
}

static status gemm_f8(struct bench *b, int width, double *rate)
{
    return gemm_codes(b, width, true, rate);
}

static status gemm_f8_exact(struct bench *b, int width, double *rate)
{
    return gemm_codes(b, width, false, rate);
}

static status peak(struct bench *b, int dt, double *rate)
{
    *rate = cpu_peak(&b->ops, (dtype)dt);
    return STATUS_OK;
}

/* ---- attention */

/* Keys of the two lengths. */
static int64_t length_of(const struct bench *b, bool is_long)
{
    return on_gpu(b) ? is_long ? 16384 : 2048 : is_long ? 2048 : 256;
}

struct attention_calls {
    struct attn_fwd_args forward;
    struct attn_bwd_args backward;
    double flops; /* forward */
};

static status call_forward(struct bench *b, void *of)
{
    return b->ops.attn_fwd(&((struct attention_calls *)of)->forward, b->s);
}

static status call_backward(struct bench *b, void *of)
{
    return b->ops.attn_bwd(&((struct attention_calls *)of)->backward, b->s);
}

/* size: width of a head, below 0 for the long sequences. */
static status attention_open(struct bench *b, int size, struct attention_calls *a)
{
    const int64_t hd = abs(size), hd_v = hd > 128 ? 128 : hd, length = length_of(b, size < 0),
                  rows = length_of(b, true), docs = rows / length, heads = on_gpu(b) ? 16 : 4;
    const struct attn_shape shape = {.rows = rows,
                                     .docs = docs,
                                     .len_max = length,
                                     .heads = heads,
                                     .heads_kv = heads,
                                     .hd = hd,
                                     .hd_v = hd_v,
                                     .dt = DTYPE_BF16};
    const size_t scratch[] = {b->ops.attn_scratch(&shape, ATTN_FWD), b->ops.attn_scratch(&shape, ATTN_BWD)};
    int32_t ends[64];
    void *in[5], *out[3];
    CHECK(docs < 64, "%lld documents", (long long)docs);
    begin(b, rows);
    for (int i = 0; i < 5; i++)
        TRY(take(b, rows * heads * (i < 2 ? hd : hd_v), DTYPE_BF16, &in[i])); /* q k v o do */
    for (int i = 0; i < 3; i++) TRY(take(b, rows * heads * (i < 2 ? hd : hd_v), DTYPE_BF16, &out[i]));
    float *lse = arena_take(&b->memory, (size_t)(heads * rows) * sizeof *lse, "lse");
    int32_t *cu = arena_take(&b->memory, (size_t)(docs + 1) * sizeof *cu, "documents");
    void *place = arena_take(&b->memory, scratch[0] > scratch[1] ? scratch[0] : scratch[1], "scratch");
    for (int i = 0; i <= docs; i++) ends[i] = (int32_t)(i * length);
    TRY(dev_upload(b->s, cu, ends, (size_t)(docs + 1) * sizeof *cu));
    if (b->s) TRY(dev_sync(b->s));
    const int64_t q = heads * hd, v = heads * hd_v;
    a->flops = 2 * (double)(hd + hd_v) * (double)(heads * rows) * (double)(length + 1) / 2;
    a->forward = (struct attn_fwd_args){.q = in[0],
                                        .k = in[1],
                                        .v = in[2],
                                        .o = in[3],
                                        .lse = lse,
                                        .q_stride = q,
                                        .k_stride = q,
                                        .v_stride = v,
                                        .cu_seqlens = cu,
                                        .docs = docs,
                                        .rows = rows,
                                        .heads = heads,
                                        .heads_kv = heads,
                                        .hd = hd,
                                        .hd_v = hd_v,
                                        .len_max = length,
                                        .scale = 1 / sqrt((double)hd),
                                        .scratch = place,
                                        .dt = DTYPE_BF16};
    a->backward = (struct attn_bwd_args){.q = in[0],
                                         .k = in[1],
                                         .v = in[2],
                                         .o = in[3],
                                         .do_ = in[4],
                                         .lse = lse,
                                         .dq = out[0],
                                         .dk = out[1],
                                         .dv = out[2],
                                         .q_stride = q,
                                         .k_stride = q,
                                         .v_stride = v,
                                         .dq_stride = q,
                                         .dk_stride = q,
                                         .dv_stride = v,
                                         .cu_seqlens = cu,
                                         .docs = docs,
                                         .rows = rows,
                                         .heads = heads,
                                         .heads_kv = heads,
                                         .hd = hd,
                                         .hd_v = hd_v,
                                         .len_max = length,
                                         .scale = 1 / sqrt((double)hd),
                                         .scratch = place,
                                         .scratch_bytes = scratch[1],
                                         .dt = DTYPE_BF16};
    return STATUS_OK;
}

static status attention_forward(struct bench *b, int size, double *rate)
{
    struct attention_calls a;
    double seconds;
    TRY(attention_open(b, size, &a));
    TRY(median(b, call_forward, &a, &seconds));
    *rate = a.flops / seconds;
    return STATUS_OK;
}

static status attention_backward(struct bench *b, int size, double *rate)
{
    struct attention_calls a;
    double seconds;
    TRY(attention_open(b, size, &a));
    TRY(call_forward(b, &a)); /* o and lse */
    TRY(median(b, call_backward, &a, &seconds));
    *rate = 2.5 * a.flops / seconds;
    return STATUS_OK;
}

/* ---- memory-bound ops */

struct streamed {
    struct rmsnorm_fwd_args norm;
    struct rmsnorm_bwd_args norm_back;
    struct swiglu_fwd_args act;
    struct swiglu_bwd_args act_back;
};

/* A layer has two norms. */
static status call_stream(struct bench *b, void *of)
{
    const struct streamed *t = of;
    for (int i = 0; i < 2; i++) {
        TRY(b->ops.rmsnorm_fwd(&t->norm, b->s));
        TRY(b->ops.rmsnorm_bwd(&t->norm_back, b->s));
    }
    TRY(b->ops.swiglu_fwd(&t->act, b->s));
    return b->ops.swiglu_bwd(&t->act_back, b->s);
}

static status stream(struct bench *b, int type, double *rate)
{
    const dtype dt = (dtype)type;
    const int64_t rows = on_gpu(b) ? 32768 : 4096, d = 1024, f = 3072;
    void *x, *branch, *sum, *y, *w, *gu, *m, *dgu, *rstd, *dw;
    double seconds;
    begin(b, rows);
    TRY(take(b, rows * d, dt, &x));
    TRY(take(b, rows * d, dt, &branch));
    TRY(take(b, rows * d, dt, &sum));
    TRY(take(b, rows * d, dt, &y));
    TRY(take(b, d, dt, &w));
    TRY(take(b, 2 * rows * f, dt, &gu));
    TRY(take(b, rows * f, dt, &m));
    TRY(take(b, 2 * rows * f, dt, &dgu));
    TRY(take(b, rows, DTYPE_F32, &rstd));
    TRY(take(b, d, DTYPE_F32, &dw));
    struct streamed t = {.norm = {.x = x,
                                  .branch = branch,
                                  .w = w,
                                  .sum = sum,
                                  .y = y,
                                  .rstd = rstd,
                                  .rows = rows,
                                  .d = d,
                                  .eps = 1e-5,
                                  .dt = dt},
                         .norm_back = {.dy = y,
                                       .s = sum,
                                       .w = w,
                                       .rstd = rstd,
                                       .dres = x,
                                       .dx = branch,
                                       .dw = dw,
                                       .rows = rows,
                                       .d = d,
                                       .dt = dt},
                         .act = {.gu = gu, .m = m, .rows = rows, .f = f, .dt = dt},
                         .act_back = {.dm = m, .gu = gu, .dgu = dgu, .rows = rows, .f = f, .dt = dt}};
    TRY(median(b, call_stream, &t, &seconds));
    /* Two norms forward and back move 2 (4 + 4) d elements of a row, SwiGLU 3 f forward and 5 f back. */
    *rate = (double)rows * (double)(16 * d + 8 * f) * (double)dtype_bytes(dt) / seconds;
    return STATUS_OK;
}

static status call_rounding(struct bench *b, void *of)
{
    return b->ops.quantize_blocks(of, b->s);
}

static status rounding(struct bench *b, int unused, double *rate)
{
    const int64_t rows = 2048, n = 2048;
    void *x, *values, *tensor;
    double seconds;
    (void)unused;
    begin(b, rows);
    TRY(take(b, rows * n, DTYPE_BF16, &x));
    TRY(take(b, rows * n, DTYPE_BF16, &values));
    TRY(take(b, 16, DTYPE_F32, &tensor));
    struct quantize_blocks_args a = {.x = x,
                                     .values = values,
                                     .tensor = tensor,
                                     .rows = rows,
                                     .n = n,
                                     .format = BLOCKS_MX,
                                     .dt = DTYPE_BF16};
    TRY(median(b, call_rounding, &a, &seconds));
    *rate = (double)(rows * n) / seconds;
    return STATUS_OK;
}

struct copied {
    void *to;
    const void *from;
    size_t bytes;
    bool host;
};

static status call_copy(struct bench *b, void *of)
{
    const struct copied *c = of;
    return c->host ? dev_upload(b->s, c->to, c->from, c->bytes) : dev_copy(b->s, c->to, c->from, c->bytes);
}

/* Bytes that are read and written. */
static status copy(struct bench *b, int unused, double *rate)
{
    const int64_t count = (int64_t)(b->memory.size / 3 / sizeof(float));
    void *from, *to;
    double seconds;
    (void)unused;
    begin(b, 0);
    TRY(take(b, count, DTYPE_F32, &from));
    TRY(take(b, count, DTYPE_F32, &to));
    struct copied c = {.to = to, .from = from, .bytes = (size_t)count * sizeof(float)};
    TRY(median(b, call_copy, &c, &seconds));
    *rate = 2 * (double)c.bytes / seconds;
    return STATUS_OK;
}

static status from_host(struct bench *b, int unused, double *rate)
{
    const size_t bytes = (size_t)256 << 20;
    void *from, *to;
    double seconds;
    (void)unused;
    begin(b, 0);
    TRY(take(b, (int64_t)(bytes / sizeof(float)), DTYPE_F32, &to));
    TRY(dev_pinned_open(&b->dev, bytes, &from));
    struct copied c = {.to = to, .from = from, .bytes = bytes, .host = true};
    const status st = median(b, call_copy, &c, &seconds);
    dev_pinned_close(&b->dev, from);
    TRY(st);
    *rate = (double)bytes / seconds;
    return STATUS_OK;
}

/* ---- links */

/* The number behind "KEY": in the last line of `text` that has `size` bytes; 0: there is none. */
static double number_of(const char *text, const char *size, const char *key)
{
    double value = 0;
    for (const char *at = text; (at = strstr(at, size)) != NULL; at++) {
        const char *found = strstr(at, key);
        if (found) value = strtod(found + strlen(key), NULL);
    }
    return value;
}

/* One more process for each rank. With one rank there is nothing to measure. */
static status links(struct bench *b, int unused, double *rate)
{
    char ranks[16], text[TEXT_MAX] = "";
    const int count = b->like.devices;
    (void)unused;
    *rate = 0;
    if (count < 2) return STATUS_OK;
    snprintf(ranks, sizeof ranks, "%d", count);
    const char *const argv[] = {"/proc/self/exe",
                                "launch",
                                "-n",
                                ranks,
                                "--",
                                "bench",
                                "collectives",
                                on_gpu(b) ? "--device=cuda" : "--device=cpu",
                                "--op=all_gather",
                                "--min-bytes=1024",
                                "--max-bytes=67108864",
                                "--json",
                                NULL};
    TRY(process_read(argv, 600, text, sizeof text));
    b->link_ranks = count;
    b->link_latency = 1e-6 * number_of(text, "\"bytes\":1024,", "\"us\":");
    *rate = 1e9 * number_of(text, "\"bytes\":67108864,", "\"bus_gbs\":");
    if (*rate > 0 && b->link_latency > 0) return STATUS_OK;
    return FAIL(STATUS_INTERNAL, "ingot bench collectives gave no rate: %.200s", text);
}

/* ---- the table */

static const struct {
    const char *name;
    status (*measure)(struct bench *b, int number, double *value);
    int number;
    enum kinds kinds;
} ROWS[] = {
#define X(name, function, number, kinds) {#name, function, number, kinds},
    ITEMS(X)
#undef X
};

/* ---- files */

struct text {
    char data[TEXT_MAX];
    size_t used;
};

PRINTF_LIKE(2, 3) static void add(struct text *t, const char *fmt, ...)
{
    va_list list;
    va_start(list, fmt);
    const int n = vsnprintf(t->data + t->used, sizeof t->data - t->used, fmt, list);
    va_end(list);
    CHECK(n >= 0 && t->used + (size_t)n < sizeof t->data, "a machine file of more than %zu bytes",
          sizeof t->data);
    t->used += (size_t)n;
}

static void add_measured(struct text *t, const struct bench *b)
{
    for (int i = 0; i < ITEM_COUNT; i++)
        if (!isnan(b->value[i])) add(t, "# measured %s: %.6g\n", ROWS[i].name, b->value[i]);
    if (b->link_latency > 0)
        add(t, "# measured link_latency: %.6g\n# measured link_ranks: %d\n", b->link_latency, b->link_ranks);
}

static status write_part(const struct bench *b, const char *path)
{
    struct text t = {.used = 0};
    add(&t, "# %s\n", b->who);
    add_measured(&t, b);
    return io_write_file(path, t.data, t.used);
}

static void read_measured(struct bench *b, const char *line)
{
    char name[64];
    double value;
    if (sscanf(line, "# measured %63[^:]: %lg", name, &value) != 2) return;
    if (strcmp(name, "link_latency") == 0) b->link_latency = value;
    if (strcmp(name, "link_ranks") == 0) b->link_ranks = (int)value;
    for (int i = 0; i < ITEM_COUNT; i++)
        if (strcmp(name, ROWS[i].name) == 0 && value >= 0) b->value[i] = value;
}

/* What a killed calibration of this machine has measured. */
static status read_part(struct bench *b, const char *path)
{
    char *text, *rest, *line;
    size_t bytes;
    bool there;
    TRY(io_exists(path, &there));
    if (!there) return STATUS_OK;
    TRY(io_read_file(path, TEXT_MAX, &text, &bytes));
    rest = text;
    line = strsep(&rest, "\n");
    const bool mine = line && strncmp(line, "# ", 2) == 0 && strcmp(line + 2, b->who) == 0;
    const status st =
        mine ? STATUS_OK
             : FAIL(STATUS_CONFIG,
                    "plan: %s is of another machine or other threads (%.100s; here %.100s): remove it", path,
                    line ? line : "", b->who);
    while (mine && rest && (line = strsep(&rest, "\n"))) read_measured(b, line);
    free(text);
    return st;
}

/* r(T) = share T / (T + half) through two lengths. */
static struct machine_curve curve_of(const struct bench *b, double rate_short, double rate_long, double roof)
{
    const double t = (double)length_of(b, false), u = (double)length_of(b, true);
    const double half_over_share = (1 / rate_short - 1 / rate_long) / (1 / t - 1 / u),
                 inverse = 1 / rate_long - half_over_share / u;
    if (half_over_share <= 0 || inverse <= 0) return (struct machine_curve){rate_long / roof, 1};
    return (struct machine_curve){1 / inverse / roof, half_over_share / inverse};
}

static void add_shares(struct text *t, const struct bench *b, const char *name, enum item first, double roof)
{
    double last = 0;
    if (!(b->value[first] > 0) || roof <= 0) return;
    add(t, "%s:", name);
    for (int i = 0; i < MACHINE_WIDTHS; i++) {
        if (b->value[first + i] > 0) last = b->value[first + i];
        add(t, " %.4g", last / roof);
    }
    add(t, "\n");
}

static void add_curve(struct text *t, const struct bench *b, const char *name, enum item at, double roof)
{
    const struct machine_curve c = curve_of(b, b->value[at], b->value[at + 2], roof);
    add(t, "%s: %.4g %.4g\n", name, c.share, c.half);
}

static void add_links(struct text *t, const struct bench *b, const struct machine *like)
{
    if (!(b->value[ITEM_link] > 0)) return;
    /* A ring's start and its hops, in the proportion of the row. */
    const double row = like->latency_base + (b->link_ranks - 1) * like->latency_hop,
                 more = b->link_latency / row;
    add(t, "link_rate: %.4g\nlatency_base: %.4g\nlatency_hop: %.4g\n", b->value[ITEM_link],
        more * like->latency_base, more * like->latency_hop);
}

static status write_machine(const struct bench *b, const struct machine *like, const char *path)
{
    struct text t = {.used = 0};
    const bool gpu = on_gpu(b);
    const double peak16 = gpu ? like->peak_bf16 : b->value[ITEM_peak_bf16],
                 peak32 = gpu ? like->peak_fp32 : b->value[ITEM_peak_fp32];
    add(&t,
        "# %s\n# Not measured, and those of `like`: net_rate, latency_net, linear_forward, "
        "linear_backward%s%s.\n",
        b->who, gpu ? ", peaks, memory_rate, gap, rates of codes with scales of blocks" : "",
        b->value[ITEM_link] > 0 ? "" : ", link_rate, latency_base, latency_hop");
    add(&t, "like: %s\n", like->name);
    if (!gpu)
        add(&t, "peak_bf16: %.4g\npeak_fp32: %.4g\nmemory_rate: %.4g\nround_rate: %.4g\nmemory_bytes: %.0f\n",
            peak16, peak32, b->value[ITEM_copy], b->value[ITEM_round], plan_host_bytes());
    if (!gpu) add(&t, "host_rate: %.4g\n", b->value[ITEM_copy] / 2);
    if (gpu) add(&t, "memory_bytes: %zu\nhost_rate: %.4g\n", b->dev.bytes_total, b->value[ITEM_host]);
    /* Of bf16 and fp32 ops, as many bytes of each. */
    add(&t, "stream_rate: %.4g\n", 2 / (1 / b->value[ITEM_stream_bf16] + 1 / b->value[ITEM_stream_fp32]));
    add_shares(&t, b, "share_16", ITEM_gemm_bf16_256, peak16);
    add_shares(&t, b, "share_32", ITEM_gemm_fp32_256, peak32);
    if (gpu) add_shares(&t, b, "share_8", ITEM_gemm_fp8_256, like->peak_fp8);
    if (gpu && b->value[ITEM_gemm_fp8_exact_4096] > 0)
        add(&t, "full_8: %.4g\nmeasured_8: true\n",
            b->value[ITEM_gemm_fp8_exact_4096] / b->value[ITEM_gemm_fp8_4096]);
    add_curve(&t, b, "narrow_forward", ITEM_narrow_forward_short, peak16);
    add_curve(&t, b, "narrow_backward", ITEM_narrow_backward_short, peak16);
    add_curve(&t, b, "wide_forward", ITEM_wide_forward_short, peak16);
    add_curve(&t, b, "wide_backward", ITEM_wide_backward_short, peak16);
    add_curve(&t, b, "latent_forward", ITEM_latent_forward_short, peak16);
    add_curve(&t, b, "latent_backward", ITEM_latent_backward_short, peak16);
    add_links(&t, b, like);
    add_measured(&t, b);
    return io_write_file(path, t.data, t.used);
}

/* ---- the run */

static status measure_all(struct bench *b, const char *part)
{
    int left = 0, done = 0;
    const enum kinds here = on_gpu(b) ? GPU : HOST;
    for (int i = 0; i < ITEM_COUNT; i++) left += (ROWS[i].kinds & here) && isnan(b->value[i]);
    for (int i = 0; i < ITEM_COUNT; i++) {
        char rate[32];
        if (!(ROWS[i].kinds & here) || !isnan(b->value[i])) continue;
        const double start = clock_s();
        double value;
        TRY(ROWS[i].measure(b, ROWS[i].number, &value));
        b->value[i] = value;
        TRY(write_part(b, part));
        printf("%3d of %d  %-24s %10s%s   %.1f s\n", ++done, left, ROWS[i].name,
               value > 0 ? text_count(rate, value) : "none here", value > 0 ? "/s" : "", clock_s() - start);
        fflush(stdout);
    }
    return STATUS_OK;
}

static status bench_open(struct bench *b)
{
    const size_t bytes = on_gpu(b) ? (size_t)6 << 30 : (size_t)512 << 20;
    const struct choose_ops choice = {.sm = b->dev.sm};
    if (on_gpu(b)) {
        TRY(dev_stream_open(&b->dev, &b->stream));
        b->s = &b->stream;
        TRY(dev_event_open(&b->dev, &b->begin));
        TRY(dev_event_open(&b->dev, &b->end));
    }
    TRY(choose_open(&b->ops, b->dev.kind, b->s, &choice));
    return dev_arena_reserve(&b->dev, &b->memory, "calibration", bytes);
}

static void bench_close(struct bench *b)
{
    arena_free(&b->memory);
    choose_close(b->s);
    if (b->s == NULL) return;
    dev_event_close(&b->dev, &b->begin);
    dev_event_close(&b->dev, &b->end);
    dev_stream_close(b->s);
}

static status find_like(struct bench *b, const char *machine)
{
    const struct machine *row = on_gpu(b) ? machine_of_gpu(b->dev.name) : NULL;
    const char *name = machine ? machine : on_gpu(b) ? row ? row->name : NULL : "2xcpu";
    if (name == NULL)
        return FAIL(STATUS_CONFIG,
                    "plan: --calibrate: there are no rates of a %s to start from: name the nearest, such as "
                    "--machine h200",
                    b->dev.name);
    TRY(cluster_parse(name, &b->like));
    if (b->like.machine->kind != b->dev.kind || b->like.machine == &b->like.own)
        return FAIL(
            STATUS_CONFIG,
            "plan: --calibrate: --machine %s: what is measured is %s; name a row of spec/machine.def for it",
            name, b->dev.name);
    if (b->like.devices <= BENCH_RANKS_MAX) return STATUS_OK;
    return FAIL(STATUS_CONFIG,
                "plan: --calibrate: --machine %s: links are measured between %d devices at most", name,
                BENCH_RANKS_MAX);
}

status calibrate_machine(const struct calibrate_machine *a)
{
    struct bench b = {.link_latency = 0};
    char part[SPEC_TEXT + 16], processor[256];
    if (strpbrk(a->path, "./") == NULL)
        return FAIL(STATUS_CONFIG,
                    "plan: --calibrate %s: --machine takes a file whose name has a dot or a slash, such as "
                    "%s.machine",
                    a->path, a->path);
    if (strlen(a->path) >= SPEC_TEXT) return FAIL(STATUS_CONFIG, "plan: --calibrate: the path is too long");
    snprintf(part, sizeof part, "%s.part", a->path);
    for (int i = 0; i < ITEM_COUNT; i++) b.value[i] = NAN;
    TRY(dev_open(&b.dev, a->device));
    snprintf(b.who, sizeof b.who,
             "Measured by ingot plan --calibrate: %s, %d thread%s, which are a device here",
             on_gpu(&b) ? b.dev.name : env_processor(processor), parallel_threads(),
             parallel_threads() > 1 ? "s" : "");
    status st = find_like(&b, a->machine);
    if (st == STATUS_OK) st = read_part(&b, part);
    if (st == STATUS_OK) st = bench_open(&b);
    if (st == STATUS_OK) st = measure_all(&b, part);
    if (st == STATUS_OK) st = write_machine(&b, b.like.machine, a->path);
    bench_close(&b);
    dev_close(&b.dev);
    TRY(st);
    printf("%s: pass it as --machine COUNTx%s\n", a->path, a->path);
    return io_remove_tree(part);
}
