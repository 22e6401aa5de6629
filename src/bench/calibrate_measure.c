/* The measurements of calibrate.c. */
#include "base/clock.h"
#include "base/process.h"
#include "base/rng.h"
#include "bench/calibrate_int.h"
#include "ops/cpu/fast.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 7, DATA_COUNT = 1 << 20 };

/* ---- time */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef status (*call)(struct calibration *b, void *of);

/* Seconds of one call, of `times` calls in a row. */
static status timed(struct calibration *b, call f, void *of, int times, double *seconds)
{
    double ms;
    if (!calibrate_on_gpu(b)) {
        const double begin = clock_s();
        for (int i = 0; i < times; i++) TRY(f(b, of));
        *seconds = (clock_s() - begin) / times;
        return STATUS_OK;
    }
    TRY(dev_event_record(b->s, &b->begin));
    for (int i = 0; i < times; i++) TRY(f(b, of));
    TRY(dev_event_record(b->s, &b->end));
    TRY(dev_event_ms(&b->dev, &b->begin, &b->end, &ms));
    *seconds = ms * 1e-3 / times;
    return STATUS_OK;
}

/* The median of some runs, without the first, which pages in and searches algorithms. A step's kernels follow each other
 * without a gap and at the clock that the power limit leaves. So a run on a GPU is many calls, 40 ms of them: one call of
 * 30 us measured its launch as well, and at width 1024 a fifth less than a step reaches. */
static status median(struct calibration *b, call f, void *of, double *seconds)
{
    static const double RUN_S = 0.04;
    double all[RUNS];
    TRY(timed(b, f, of, 1, &all[0]));
    TRY(timed(b, f, of, 1, &all[0]));
    const int times = calibrate_on_gpu(b) ? 1 + (int)fmin(5000, RUN_S / fmax(all[0], 1e-7)) : 1;
    for (int i = 0; i < RUNS; i++) TRY(timed(b, f, of, times, &all[i]));
    qsort(all, RUNS, sizeof *all, by_value);
    *seconds = all[RUNS / 2];
    return STATUS_OK;
}

/* ---- memory */

/* `count` random values of both signs: zeros draw less power and run faster. */
static status take(struct calibration *b, int64_t count, dtype dt, void **out)
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
static void begin(struct calibration *b, int64_t rows)
{
    const size_t bytes = b->ops.workspace(rows);
    b->memory.used = 0;
    void *workspace = arena_take(&b->memory, bytes, "workspace");
    if (calibrate_on_gpu(b)) choose_workspace(b->s, workspace, bytes);
}

/* ---- GEMMs */

enum { ROWS_HOST = 2048, ROWS_GPU = 16384, WIDEST_HOST = 4096 };

static int64_t rows_of(const struct calibration *b)
{
    return calibrate_on_gpu(b) ? ROWS_GPU : ROWS_HOST;
}

static status call_gemm(struct calibration *b, void *of)
{
    return b->ops.gemm(of, b->s);
}

/* x [n, w], W [w, w], dy [n, w]: forward, dgrad and wgrad; FLOP/s of all three. */
static status gemms(struct calibration *b, int64_t w, dtype dt, double *rate)
{
    const int64_t n = rows_of(b);
    void *x, *weight, *dy, *c;
    double seconds[3];
    if (!calibrate_on_gpu(b) && w > WIDEST_HOST) { /* minutes in fp32; and no faster than that of 4096 */
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

static status gemm_bf16(struct calibration *b, int width, double *rate)
{
    return gemms(b, width, DTYPE_BF16, rate);
}

static status gemm_f32(struct calibration *b, int width, double *rate)
{
    return gemms(b, width, DTYPE_F32, rate);
}

static status gemm_codes(struct calibration *b, int64_t w, bool fast, double *rate)
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

static status gemm_f8(struct calibration *b, int width, double *rate)
{
    return gemm_codes(b, width, true, rate);
}

static status gemm_f8_exact(struct calibration *b, int width, double *rate)
{
    return gemm_codes(b, width, false, rate);
}

static status peak(struct calibration *b, int dt, double *rate)
{
    *rate = cpu_peak(&b->ops, (dtype)dt);
    return STATUS_OK;
}

/* ---- attention */

int64_t calibrate_length(const struct calibration *b, bool is_long)
{
    return calibrate_on_gpu(b) ? is_long ? 16384 : 2048 : is_long ? 2048 : 256;
}

struct attention_calls {
    struct attn_fwd_args forward;
    struct attn_bwd_args backward;
    double flops; /* forward */
};

static status call_forward(struct calibration *b, void *of)
{
    return b->ops.attn_fwd(&((struct attention_calls *)of)->forward, b->s);
}

static status call_backward(struct calibration *b, void *of)
{
    return b->ops.attn_bwd(&((struct attention_calls *)of)->backward, b->s);
}

/* The same attention backward, from the gradient of its output. */
static struct attn_bwd_args backward_of(const struct attn_fwd_args *f, const void *dout, void *const out[3],
                                        size_t scratch)
{
    struct attn_bwd_args b = {.q = f->q, .k = f->k, .v = f->v, .o = f->o, .do_ = dout, .lse = f->lse};
    b.dq = out[0], b.dk = out[1], b.dv = out[2];
    b.q_stride = b.dq_stride = f->q_stride;
    b.k_stride = b.dk_stride = f->k_stride;
    b.v_stride = b.dv_stride = f->v_stride;
    b.cu_seqlens = f->cu_seqlens, b.docs = f->docs, b.rows = f->rows, b.len_max = f->len_max;
    b.heads = f->heads, b.heads_kv = f->heads_kv, b.head_dim = f->head_dim, b.head_dim_v = f->head_dim_v;
    b.scale = f->scale, b.scratch = f->scratch, b.scratch_bytes = scratch, b.dt = f->dt;
    return b;
}

/* size: width of a head, below 0 for the long sequences. */
static status attention_open(struct calibration *b, int size, struct attention_calls *a)
{
    const int64_t head_dim = abs(size), head_dim_v = head_dim > 128 ? 128 : head_dim,
                  length = calibrate_length(b, size < 0), rows = calibrate_length(b, true),
                  docs = rows / length, heads = calibrate_on_gpu(b) ? 16 : 4;
    const struct attn_shape shape = {.rows = rows,
                                     .docs = docs,
                                     .len_max = length,
                                     .heads = heads,
                                     .heads_kv = heads,
                                     .head_dim = head_dim,
                                     .head_dim_v = head_dim_v,
                                     .dt = DTYPE_BF16};
    const size_t scratch[] = {b->ops.attn_scratch(&shape, ATTN_FWD), b->ops.attn_scratch(&shape, ATTN_BWD)};
    int32_t ends[64];
    void *in[5], *out[3];
    CHECK(docs < 64, "%lld documents", (long long)docs);
    begin(b, rows);
    for (int i = 0; i < 5; i++)
        TRY(take(b, rows * heads * (i < 2 ? head_dim : head_dim_v), DTYPE_BF16, &in[i])); /* q k v o do */
    for (int i = 0; i < 3; i++)
        TRY(take(b, rows * heads * (i < 2 ? head_dim : head_dim_v), DTYPE_BF16, &out[i]));
    float *lse = arena_take(&b->memory, (size_t)(heads * rows) * sizeof *lse, "lse");
    int32_t *cu = arena_take(&b->memory, (size_t)(docs + 1) * sizeof *cu, "documents");
    void *place = arena_take(&b->memory, scratch[0] > scratch[1] ? scratch[0] : scratch[1], "scratch");
    for (int i = 0; i <= docs; i++) ends[i] = (int32_t)(i * length);
    TRY(dev_upload(b->s, cu, ends, (size_t)(docs + 1) * sizeof *cu));
    if (b->s) TRY(dev_sync(b->s));
    const int64_t q = heads * head_dim, v = heads * head_dim_v;
    a->flops = 2 * (double)(head_dim + head_dim_v) * (double)(heads * rows) * (double)(length + 1) / 2;
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
                                        .head_dim = head_dim,
                                        .head_dim_v = head_dim_v,
                                        .len_max = length,
                                        .scale = 1 / sqrt((double)head_dim),
                                        .scratch = place,
                                        .dt = DTYPE_BF16};
    a->backward = backward_of(&a->forward, in[4], out, scratch[1]);
    return STATUS_OK;
}

static status attention_forward(struct calibration *b, int size, double *rate)
{
    struct attention_calls a;
    double seconds;
    TRY(attention_open(b, size, &a));
    TRY(median(b, call_forward, &a, &seconds));
    *rate = a.flops / seconds;
    return STATUS_OK;
}

static status attention_backward(struct calibration *b, int size, double *rate)
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
static status call_stream(struct calibration *b, void *of)
{
    const struct streamed *t = of;
    for (int i = 0; i < 2; i++) {
        TRY(b->ops.rmsnorm_fwd(&t->norm, b->s));
        TRY(b->ops.rmsnorm_bwd(&t->norm_back, b->s));
    }
    TRY(b->ops.swiglu_fwd(&t->act, b->s));
    return b->ops.swiglu_bwd(&t->act_back, b->s);
}

static status stream(struct calibration *b, int type, double *rate)
{
    const dtype dt = (dtype)type;
    const int64_t rows = calibrate_on_gpu(b) ? 32768 : 4096, d = 1024, f = 3072;
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

static status call_rounding(struct calibration *b, void *of)
{
    return b->ops.quantize_blocks(of, b->s);
}

static status rounding(struct calibration *b, int unused, double *rate)
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

static status call_copy(struct calibration *b, void *of)
{
    const struct copied *c = of;
    return c->host ? dev_upload(b->s, c->to, c->from, c->bytes) : dev_copy(b->s, c->to, c->from, c->bytes);
}

/* Bytes that are read and written. */
static status copy(struct calibration *b, int unused, double *rate)
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

static status from_host(struct calibration *b, int unused, double *rate)
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
static status links(struct calibration *b, int unused, double *rate)
{
    char ranks[16], text[CALIBRATE_TEXT_MAX] = "";
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
                                calibrate_on_gpu(b) ? "--device=cuda" : "--device=cpu",
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

const struct calibrate_row calibrate_rows[ITEM_COUNT] = {
#define X(name, function, number, kinds) {#name, function, number, kinds},
    ITEMS(X)
#undef X
};
