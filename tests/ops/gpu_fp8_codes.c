/* Goal: a GPU's FP8 codes and scales are the CPU's, bit by bit. Method: all 2^32 floats and all BF16 through the op quantize against
 * f8_encode; squares cut at every edge, any stride and address, against the oracle; scales from maxima of all exponents, beside the
 * significands where they change; bounds; SwiGLU with every choice of results against SwiGLU and then quantize. What lies around the
 * results stays. The cases of cases.h (gpu_ops.c) add graphs and second runs. */
#include "base/parallel.h"
#include "base/rng.h"
#include "dev/dev.h"
#include "gpu.h"
#include "ops/cuda/ops_cuda.h"
#include "ops/ops.h"
#include "tensor/f8.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { FORMATS = 2, GRAIN = 1 << 16, GUARD = 256, MARK = 0x5a };
static const dtype format_dt[FORMATS] = {DTYPE_F8_E4M3, DTYPE_F8_E5M2};

static struct gpu {
    struct dev dev;
    struct stream s;
    struct ops ops, oracle;
} gpu;

static void ok(status st)
{
    if (st != STATUS_OK) fail_msg("%s", status_message());
}
static struct f8_format format_of(dtype dt)
{
    return dt == DTYPE_F8_E4M3 ? f8_e4m3 : f8_e5m2;
}
static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* An array on both sides. On the device it lies between marks. */
struct pair {
    void *host;
    char *device;
    size_t bytes;
};
enum { PAIRS = 16 };
struct work {
    struct arena memory;
    struct pair pairs[PAIRS];
    int count;
};

static void work_open(struct work *w, size_t bytes)
{
    *w = (struct work){0};
    ok(dev_arena_reserve(&gpu.dev, &w->memory, "test", bytes + PAIRS * (size_t)(4 * GUARD + ARENA_ALIGN)));
}
static void work_close(struct work *w)
{
    for (int i = 0; i < w->count; i++) free(w->pairs[i].host);
    arena_free(&w->memory);
}
static void upload(const struct pair *p)
{
    char *all = malloc(p->bytes + 2 * GUARD);
    assert_non_null(all);
    memset(all, MARK, p->bytes + 2 * GUARD);
    memcpy(all + GUARD, p->host, p->bytes);
    ok(dev_upload(&gpu.s, p->device - GUARD, all, p->bytes + 2 * GUARD));
    ok(dev_sync(&gpu.s));
    free(all);
}
/* `shift` bytes off 256; filled with marks. */
static struct pair *take(struct work *w, size_t bytes, size_t shift)
{
    assert_true(w->count < PAIRS);
    struct pair *p = &w->pairs[w->count++];
    *p = (struct pair){malloc(bytes + 1), NULL, bytes};
    assert_non_null(p->host);
    memset(p->host, MARK, bytes);
    p->device = (char *)arena_take(&w->memory, bytes + 2 * GUARD + shift, "array") + GUARD + shift;
    upload(p);
    return p;
}
/* The device's array is `want`, and the marks around it are whole. */
static void expect(const struct pair *p, const void *want, const char *text)
{
    uint8_t *all = malloc(p->bytes + 2 * GUARD);
    assert_non_null(all);
    ok(dev_download(&gpu.s, all, p->device - GUARD, p->bytes + 2 * GUARD));
    ok(dev_sync(&gpu.s));
    for (size_t i = 0; i < GUARD; i++)
        if (all[i] != MARK || all[GUARD + p->bytes + i] != MARK)
            fail_msg("%s: written outside the array", text);
    for (size_t i = 0; i < p->bytes; i++)
        if (all[GUARD + i] != ((const uint8_t *)want)[i])
            fail_msg("%s: byte %zu of %zu is 0x%02x, not 0x%02x", text, i, p->bytes, all[GUARD + i],
                     ((const uint8_t *)want)[i]);
    free(all);
}

/* ------------------------------------------------------------------ all numbers */

enum { SPAN = 1 << 24, WIDTH = 1 << 12 }; /* floats at a time; of a row */

struct every {
    uint32_t *x;
    uint8_t *codes[FORMATS];
    float *amax;
};

/* The number of wrong codes of floats from `first` on; *at: one of them. */
static int64_t wrong_codes(const struct every *h, uint32_t first, int k, uint32_t *at)
{
    int64_t wrong[SPAN / GRAIN], sum = 0;
    uint32_t where[SPAN / GRAIN];
    const struct f8_format f = format_of(format_dt[k]);
    PARALLEL_CHUNKS(c, SPAN / GRAIN)
    {
        wrong[c] = 0;
        for (uint32_t i = (uint32_t)c * GRAIN; i < ((uint32_t)c + 1) * GRAIN; i++)
            if (h->codes[k][i] != f8_encode(f, float_of(first + i))) wrong[c]++, where[c] = first + i;
    }
    for (int c = SPAN / GRAIN - 1; c >= 0; c--) {
        sum += wrong[c];
        if (wrong[c]) *at = where[c];
    }
    return sum;
}

static void span_of_floats(const struct every *h, const struct every *d, uint32_t first)
{
    const uint32_t zero = 0, last = (first + SPAN - 1) & 0x7fffffffu;
    PARALLEL_CHUNKS(c, SPAN / GRAIN)
    for (uint32_t i = (uint32_t)c * GRAIN; i < ((uint32_t)c + 1) * GRAIN; i++) h->x[i] = first + i;
    ok(dev_upload(&gpu.s, d->x, h->x, sizeof(float) * SPAN));
    ok(dev_upload(&gpu.s, d->amax, &zero, sizeof zero));
    for (int k = 0; k < FORMATS; k++) {
        const struct quantize_args a = {
            .x = d->x,
            .q = {.codes = d->codes[k], .scale = d->amax + 1, .amax = d->amax, .dt = format_dt[k]},
            .rows = SPAN / WIDTH,
            .n = WIDTH,
            .dt = DTYPE_F32};
        ok(gpu.ops.quantize(&a, &gpu.s));
        ok(dev_download(&gpu.s, h->codes[k], d->codes[k], SPAN));
    }
    ok(dev_download(&gpu.s, h->amax, d->amax, sizeof *h->amax));
    ok(dev_sync(&gpu.s));
    if (bits_of(*h->amax) != last) fail_msg("maximum from 0x%08x on: 0x%08x", first, bits_of(*h->amax));
    for (int k = 0; k < FORMATS; k++) {
        uint32_t at = 0;
        const int64_t wrong = wrong_codes(h, first, k, &at);
        if (wrong)
            fail_msg("%s: %lld codes of floats from 0x%08x on are wrong: 0x%08x is 0x%02x, not 0x%02x",
                     dtype_name(format_dt[k]), (long long)wrong, first, at, h->codes[k][at - first],
                     f8_encode(format_of(format_dt[k]), float_of(at)));
    }
}

static void every_float(void **state)
{
    (void)state;
    struct arena host, device;
    struct every h, d;
    const size_t bytes = sizeof(float) * SPAN + FORMATS * (size_t)SPAN + 8 * ARENA_ALIGN;
    ok(dev_pinned_arena(&gpu.dev, &host, "floats", bytes));
    ok(dev_arena_reserve(&gpu.dev, &device, "floats", bytes));
    struct every *both[] = {&h, &d};
    struct arena *arenas[] = {&host, &device};
    for (int i = 0; i < 2; i++) {
        both[i]->x = arena_take(arenas[i], sizeof(float) * SPAN, "x");
        for (int k = 0; k < FORMATS; k++) both[i]->codes[k] = arena_take(arenas[i], SPAN, "codes");
        both[i]->amax = arena_take(arenas[i], 2 * sizeof(float), "amax, scale");
    }
    h.amax[1] = 1;
    ok(dev_upload(&gpu.s, d.amax, h.amax, 2 * sizeof(float)));
    for (uint64_t first = 0; first < (uint64_t)1 << 32; first += SPAN)
        span_of_floats(&h, &d, (uint32_t)first);
    arena_free(&device);
    arena_free(&host);
}

/* With scales from end to end, and the transpose. */
static void every_bf16(void **state)
{
    (void)state;
    enum { SIDE = 256, COUNT = SIDE * SIDE };
    static const int exponents[] = {0, 1, -1, 8, -9, 60, -70, 126, -126};
    struct work w;
    work_open(&w, 4 * COUNT);
    struct pair *x = take(&w, 2 * COUNT, 0), *codes = take(&w, COUNT, 0), *codes_t = take(&w, COUNT, 0),
                *scale = take(&w, sizeof(float), 0);
    uint8_t *want = codes->host, *want_t = codes_t->host;
    for (int i = 0; i < COUNT; i++) ((uint16_t *)x->host)[i] = (uint16_t)i;
    upload(x);
    for (int e = 0; e < (int)(sizeof exponents / sizeof *exponents); e++)
        for (int k = 0; k < FORMATS; k++) {
            const float by = ldexpf(1, exponents[e]);
            char text[80];
            snprintf(text, sizeof text, "all bf16 times 2^%d as %s", exponents[e], dtype_name(format_dt[k]));
            for (int i = 0; i < COUNT; i++) {
                want[i] = f8_encode(format_of(format_dt[k]), float_of((uint32_t)i << 16) * by);
                want_t[i % SIDE * SIDE + i / SIDE] = want[i];
            }
            memcpy(scale->host, &by, sizeof by);
            upload(scale);
            const struct quantize_args a = {.x = x->device,
                                            .q = {.codes = codes->device,
                                                  .codes_t = codes_t->device,
                                                  .scale = (float *)scale->device,
                                                  .dt = format_dt[k]},
                                            .rows = SIDE,
                                            .n = SIDE,
                                            .dt = DTYPE_BF16};
            ok(gpu.ops.quantize(&a, &gpu.s));
            expect(codes, want, text);
            expect(codes_t, want_t, text);
        }
    work_close(&w);
}

/* ------------------------------------------------------------------ shapes */

static void noise(void *x, dtype dt, int64_t count, double size, uint64_t seed)
{
    for (int64_t i = 0; i < count; i++)
        dtype_store(x, i, dt, size * rng_normal(seed, RNG_TEST, (uint64_t)i, 0));
}

/* One tensor, with what of its form is wanted; of its rows the first `exist` are there, negative: all. */
static void quantize_some(int64_t rows, int64_t n, int64_t stride, size_t shift, dtype dt, int what,
                          int32_t exist)
{
    const size_t each = dtype_bytes(dt), ld = (size_t)quantized_ld(rows);
    const float before = 0.25f, by = 8;
    char text[160];
    struct work w;
    work_open(&w, (size_t)(rows * stride) * each + (size_t)(rows * n) + (size_t)n * ld);
    struct pair *x = take(&w, (size_t)(rows * stride) * each, shift), *scale = take(&w, sizeof(float), 0),
                *amax = take(&w, sizeof(float), 0), *there = take(&w, sizeof exist, 0),
                *codes = what & 1 ? take(&w, (size_t)(rows * n), 0) : NULL,
                *codes_t = what & 2 ? take(&w, (size_t)n * ld, 0) : NULL;
    noise(x->host, dt, rows * stride, 1, (uint64_t)(rows * 1000 + n));
    for (int64_t i = exist * stride; exist >= 0 && i < rows * stride; i++) dtype_store(x->host, i, dt, NAN);
    memcpy(there->host, &exist, sizeof exist);
    memcpy(scale->host, &by, sizeof by);
    memcpy(amax->host, &before, sizeof before);
    upload(x), upload(scale), upload(amax), upload(there);
    struct quantize_args a = {.x = x->device,
                              .count = exist < 0 ? NULL : (const int32_t *)there->device,
                              .q = {.codes = codes ? codes->device : NULL,
                                    .codes_t = codes_t ? codes_t->device : NULL,
                                    .scale = (float *)scale->device,
                                    .amax = (float *)amax->device,
                                    .dt = format_dt[n / 16 % 2]},
                              .rows = rows,
                              .n = n,
                              .x_stride = stride,
                              .dt = dt};
    ok(gpu.ops.quantize(&a, &gpu.s));
    a.x = x->host, a.q.scale = scale->host, a.q.amax = amax->host;
    a.count = exist < 0 ? NULL : there->host;
    a.q.codes = codes ? codes->host : NULL, a.q.codes_t = codes_t ? codes_t->host : NULL;
    ok(gpu.oracle.quantize(&a, NULL));
    snprintf(text, sizeof text, "%s [%lld, %lld], rows %lld apart, %d exist, %zu bytes off, %s",
             dtype_name(dt), (long long)rows, (long long)n, (long long)stride, (int)exist, shift,
             what == 0   ? "maximum"
             : what == 1 ? "codes"
             : what == 2 ? "transpose"
                         : "both");
    expect(x, x->host, text);
    expect(amax, amax->host, text);
    if (codes) expect(codes, codes->host, text);
    if (codes_t) expect(codes_t, codes_t->host, text);
    work_close(&w);
}

static void quantize_one(int64_t rows, int64_t n, int64_t stride, size_t shift, dtype dt, int what)
{
    quantize_some(rows, n, stride, shift, dt, what, -1);
}

static void rows_that_do_not_exist(void **state)
{
    (void)state;
    static const int32_t exist[] = {0, 1, 15, 127, 128, 129, 200, 256, 300};
    for (size_t k = 0; k < sizeof exist / sizeof *exist; k++)
        for (int what = 0; what < 2; what++) {
            quantize_some(300, 144, 144, 0, DTYPE_BF16, what, exist[k]);
            quantize_some(300, 144, 152, 0, DTYPE_BF16, what, exist[k]);
            quantize_some(300, 48, 51, 2, DTYPE_BF16, what, exist[k]);
            quantize_some(300, 48, 48, 0, DTYPE_F32, what, exist[k]);
        }
}

static void every_edge(void **state)
{
    (void)state;
    static const int64_t rows[] = {1, 2, 15, 16, 17, 31, 33, 63, 65, 113, 127, 128, 129, 144, 257, 400};
    static const int64_t widths[] = {16, 48, 112, 128, 144, 272};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (size_t c = 0; c < sizeof widths / sizeof *widths; c++)
            for (int what = 0; what < 4; what++) {
                const int64_t n = widths[c];
                quantize_one(rows[r], n, n, 0, DTYPE_BF16, what);
                quantize_one(rows[r], n, n + 8, 16, DTYPE_BF16, what);
                quantize_one(rows[r], n, n + 3, 2, DTYPE_BF16, what);
                quantize_one(rows[r], n, n + 4, 0, DTYPE_F32, what);
                quantize_one(rows[r], n, n, 4, DTYPE_F32, what);
            }
    for (int64_t n = 1; n < 40; n++) quantize_one(n + 2, n, n + n % 3, 0, DTYPE_BF16, 0);
    quantize_one(3, 40000, 40000, 0, DTYPE_BF16, 3);
    quantize_one(70000, 16, 24, 0, DTYPE_BF16, 3);
    quantize_one(3000, 1031, 1031, 0, DTYPE_BF16, 0);
    quantize_one(3001, 1032, 1040, 0, DTYPE_F32, 0);
}

/* ------------------------------------------------------------------ scales */

/* All exponents with significands beside those where a scale changes; what is subnormal; what is not finite. */
enum { LOWS = 8, EXPONENTS = 256, TENSORS = LOWS * EXPONENTS, RANKS = 3 };
static void all_maxima(float *to, int64_t turned)
{
    static const uint32_t lows[LOWS] = {0, 1, 0x5fffff, 0x600000, 0x600001, 0x7fffff, 0x400000, 0x000300};
    for (int64_t i = 0; i < TENSORS; i++) {
        const int64_t at = (i + turned) % TENSORS;
        to[i] = float_of((uint32_t)(at / LOWS) << 23 | lows[at % LOWS]);
    }
}

static void scales_once(enum fp8_scaling scaling, dtype dt, int margin, bool ranks)
{
    struct work w;
    char text[120];
    work_open(&w, (size_t)TENSORS * sizeof(float) * (FP8_HISTORY + RANKS + 4 + FP8_SCALE_STRIDE));
    struct pair *amax = take(&w, sizeof(float) * TENSORS, 0), *scale = take(&w, sizeof(float) * TENSORS, 0),
                *scale_inv = take(&w, sizeof(float) * TENSORS * FP8_SCALE_STRIDE, 0),
                *history = take(&w, sizeof(float) * TENSORS * FP8_HISTORY, 0),
                *all = take(&w, sizeof(float) * TENSORS * RANKS, 0),
                *scalars = take(&w, sizeof(struct step_scalars), 0);
    all_maxima(amax->host, 0);
    for (int r = 0; r < RANKS; r++) all_maxima((float *)all->host + r * TENSORS, r == 1 ? 0 : 40);
    for (int64_t i = 0; i < TENSORS * FP8_HISTORY; i++) /* finite, and small for most tensors */
        ((float *)history->host)[i] = float_of((uint32_t)(i * 2654435761u) >> (i / FP8_HISTORY % 2 ? 8 : 2));
    *(struct step_scalars *)scalars->host =
        (struct step_scalars){.fp8_overflow = 3, .step = 5 * FP8_HISTORY + 9};
    for (int i = 0; i < w.count; i++) upload(&w.pairs[i]);
    struct fp8_scales_args a = {.scaling = scaling,
                                .amax = (float *)amax->device,
                                .all = ranks ? (float *)all->device : NULL,
                                .history = (float *)history->device,
                                .scale = (float *)scale->device,
                                .scale_inv = (float *)scale_inv->device,
                                .count = TENSORS,
                                .ranks = RANKS,
                                .all_stride = TENSORS,
                                .margin = margin,
                                .scalars = (struct step_scalars *)scalars->device,
                                .dt = dt};
    ok(gpu.ops.fp8_scales(&a, &gpu.s));
    a.amax = amax->host, a.history = history->host, a.scale = scale->host, a.scale_inv = scale_inv->host;
    a.all = ranks ? all->host : NULL, a.scalars = scalars->host;
    ok(gpu.oracle.fp8_scales(&a, NULL));
    snprintf(text, sizeof text, "%s scaling of %s, margin %d%s",
             scaling == FP8_DELAYED ? "delayed" : "current", dtype_name(dt), margin, ranks ? ", ranks" : "");
    for (int i = 0; i < w.count; i++) expect(&w.pairs[i], w.pairs[i].host, text);
    work_close(&w);
}

static void scales_of_all_maxima(void **state)
{
    (void)state;
    for (int k = 0; k < FORMATS; k++)
        for (int ranks = 0; ranks < 2; ranks++)
            for (int margin = 0; margin <= 6; margin += 3) {
                scales_once(FP8_DELAYED, format_dt[k], margin, ranks);
                scales_once(FP8_CURRENT, format_dt[k], margin, ranks);
            }
}

static void bound_once(int64_t d, double size, double shift, bool with_b, dtype dt, double odd)
{
    struct work w;
    char text[120];
    work_open(&w, 2 * (size_t)d * dtype_bytes(dt));
    struct pair *x = take(&w, (size_t)d * dtype_bytes(dt), 0), *b = take(&w, (size_t)d * dtype_bytes(dt), 0),
                *scale = take(&w, sizeof(float), 0), *scale_inv = take(&w, sizeof(float), 0);
    noise(x->host, dt, d, size, (uint64_t)d);
    noise(b->host, dt, d, size / 3, (uint64_t)d + 1);
    if (odd != 0) dtype_store(with_b ? b->host : x->host, d / 2, dt, odd);
    upload(x), upload(b);
    for (int k = 0; k < FORMATS; k++) {
        struct fp8_bound_args a = {.w = x->device,
                                   .b = with_b ? b->device : NULL,
                                   .scale = (float *)scale->device,
                                   .scale_inv = (float *)scale_inv->device,
                                   .d = d,
                                   .shift = shift,
                                   .dt = dt,
                                   .codes = format_dt[k]};
        ok(gpu.ops.fp8_bound(&a, &gpu.s));
        a.w = x->host, a.b = with_b ? b->host : NULL, a.scale = scale->host, a.scale_inv = scale_inv->host;
        ok(gpu.oracle.fp8_bound(&a, NULL));
        snprintf(text, sizeof text, "bound of %lld %s of %g, shift %g, %s%s", (long long)d, dtype_name(dt),
                 size, shift, dtype_name(format_dt[k]), with_b ? ", b" : "");
        expect(scale, scale->host, text);
        expect(scale_inv, scale_inv->host, text);
    }
    work_close(&w);
}

static void bounds(void **state)
{
    (void)state;
    static const double sizes[] = {0, 1e-42, 1e-38, 1e-9, 0.02, 1, 300, 1e30, 1e38};
    static const double odd[] = {0, INFINITY, -NAN};
    for (int i = 0; i < (int)(sizeof sizes / sizeof *sizes); i++)
        for (int o = 0; o < 3; o++)
            for (int flags = 0; flags < 8; flags++)
                for (int64_t d = 1; d < 9000; d = 3 * d + 14)
                    bound_once(d, sizes[i], flags & 1, flags & 2, flags & 4 ? DTYPE_F32 : DTYPE_BF16, odd[o]);
}

/* ------------------------------------------------------------------ SwiGLU */

/* Memory of one tensor's form. */
struct form {
    struct pair *codes, *codes_t, *amax;
};
static struct form form_take(struct work *w, int64_t rows, int64_t n)
{
    struct form f = {take(w, (size_t)(rows * n), 0), take(w, (size_t)(n * quantized_ld(rows)), 0),
                     take(w, sizeof(float), 0)};
    memset(f.amax->host, 0, sizeof(float));
    return f;
}
/* what & 1: codes, 2: transpose, 4: maximum. */
static struct quantized form_on(const struct form *f, bool device, const void *scale, dtype dt, int what)
{
    struct quantized q = {.scale = scale, .dt = dt};
    if (what & 1) q.codes = device ? f->codes->device : f->codes->host;
    if (what & 2) q.codes_t = device ? f->codes_t->device : f->codes_t->host;
    if (what & 4) q.amax = device ? (float *)f->amax->device : f->amax->host;
    return q;
}
static void form_reset(const struct form *f)
{
    memset(f->codes->host, MARK, f->codes->bytes);
    memset(f->codes_t->host, MARK, f->codes_t->bytes);
    memset(f->amax->host, 0, sizeof(float));
    upload(f->codes), upload(f->codes_t), upload(f->amax);
}
/* The form on the device is the oracle's of x, and no more than what was asked for was written. */
static void form_expect(const struct form *f, const struct pair *x, int64_t rows, int64_t n, float scale,
                        dtype dt, int what, const char *text)
{
    void *values = malloc(x->bytes);
    assert_non_null(values);
    ok(dev_download(&gpu.s, values, x->device, x->bytes));
    ok(dev_sync(&gpu.s));
    const struct quantize_args a = {
        .x = values, .q = form_on(f, false, &scale, dt, what), .rows = rows, .n = n, .dt = DTYPE_BF16};
    if (what) ok(gpu.oracle.quantize(&a, NULL));
    expect(f->codes, f->codes->host, text);
    expect(f->codes_t, f->codes_t->host, text);
    expect(f->amax, f->amax->host, text);
    free(values);
}

static void swiglu_once(int64_t rows, int64_t f, int what, int m_what, bool swap, bool only)
{
    const size_t bytes = sizeof(bf16) * (size_t)(rows * f);
    const dtype dt = format_dt[!swap], m_dt = format_dt[swap];
    const float by[2] = {64, 16};
    char text[160];
    struct work w;
    work_open(&w, 10 * bytes + 6 * (size_t)((rows + 16) * f));
    struct pair *gu = take(&w, 2 * bytes, 0), *dm = take(&w, bytes, 0), *dgu = take(&w, 2 * bytes, 0),
                *m = take(&w, bytes, 0), *to_dgu = take(&w, 2 * bytes, 0), *to_m = take(&w, bytes, 0),
                *scales = take(&w, sizeof by, 0);
    const struct form form = form_take(&w, rows, 2 * f), m_form = form_take(&w, rows, f);
    noise(gu->host, DTYPE_BF16, 2 * rows * f, 2, 1);
    noise(dm->host, DTYPE_BF16, rows * f, 1, 2);
    memcpy(scales->host, by, sizeof by);
    upload(gu), upload(dm), upload(scales), form_reset(&form), form_reset(&m_form);
    const float *scale = (float *)scales->device;
    struct swiglu_bwd_args b = {.dm = dm->device,
                                .gu = gu->device,
                                .dgu = dgu->device,
                                .m = m->device,
                                .rows = rows,
                                .f = f,
                                .dt = DTYPE_BF16};
    ok(gpu.ops.swiglu_bwd(&b, &gpu.s));
    b.dgu = to_dgu->device, b.m = to_m->device;
    b.q = form_on(&form, true, scale, dt, what), b.mq = form_on(&m_form, true, scale + 1, m_dt, m_what);
    b.q.only = only && what, b.mq.only = only && m_what;
    ok(gpu.ops.swiglu_bwd(&b, &gpu.s));
    snprintf(text, sizeof text, "swiglu_bwd [%lld, %lld], forms %d of dgu, %d of m%s", (long long)rows,
             (long long)f, what, m_what, swap ? ", formats swapped" : "");
    form_expect(&form, dgu, rows, 2 * f, by[0], dt, what, text);
    form_expect(&m_form, m, rows, f, by[1], m_dt, m_what, text);
    if (!only) {
        ok(dev_download(&gpu.s, dgu->host, dgu->device, 2 * bytes));
        ok(dev_download(&gpu.s, m->host, m->device, bytes));
        ok(dev_sync(&gpu.s));
        expect(to_dgu, dgu->host, text);
        expect(to_m, m->host, text);
    }
    form_reset(&m_form);
    struct swiglu_fwd_args a = {.gu = gu->device, .m = to_m->device, .rows = rows, .f = f, .dt = DTYPE_BF16};
    a.q = form_on(&m_form, true, scale + 1, m_dt, m_what);
    a.q.only = only && m_what;
    ok(gpu.ops.swiglu_fwd(&a, &gpu.s));
    form_expect(&m_form, m, rows, f, by[1], m_dt, m_what, "swiglu_fwd");
    work_close(&w);
}

static void swiglu_with_every_form(void **state)
{
    (void)state;
    for (int what = 0; what < 8; what++)
        for (int m_what = 0; m_what < 8; m_what++)
            for (int flags = 0; flags < 4; flags++) swiglu_once(130, 144, what, m_what, flags & 1, flags & 2);
    swiglu_once(1, 16, 7, 7, false, false);
    swiglu_once(257, 400, 7, 6, false, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bf16),
        cmocka_unit_test(every_edge),
        cmocka_unit_test(rows_that_do_not_exist),
        cmocka_unit_test(scales_of_all_maxima),
        cmocka_unit_test(bounds),
        cmocka_unit_test(swiglu_with_every_form),
        cmocka_unit_test(every_float),
    };
    if (dev_open(&gpu.dev, DEV_CUDA) != STATUS_OK) {
        printf("%s\n", status_message());
        return gpu_missing();
    }
    if (dev_stream_open(&gpu.dev, &gpu.s) != STATUS_OK ||
        ops_cuda(&gpu.ops, &gpu.s, &(struct cuda_options){0}) != STATUS_OK) {
        printf("%s\n", status_message());
        return 1;
    }
    ops_oracle(&gpu.oracle);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ops_cuda_close(&gpu.s);
    dev_stream_close(&gpu.s);
    dev_close(&gpu.dev);
    return failed;
}
