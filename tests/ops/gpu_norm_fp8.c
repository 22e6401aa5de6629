/* Goal: rmsnorm_fwd and rmsnorm_bwd with codes are the ops without them and then quantize, bit by bit; of dw only the order of the sum is
 * another. Method: both on the GPU, for tiles of 16, 32 and 64 rows, rows and widths of every remainder, widths whose codes do not fit in
 * shared memory, in place, with every choice of results; numbers that are not finite; again the same bits. What lies around the
 * results stays. */
#include "base/rng.h"
#include "dev/dev.h"
#include "gpu.h"
#include "ops/cuda/ops_cuda.h"
#include "ops/ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { GUARD = 256, MARK = 0x5a, PERIOD = 1000003 }; /* PERIOD: of the numbers, a prime */
enum { CODES = 1, TRANS = 2, AMAX = 4, ALL = 7 };
enum { ADD = 1, ONLY = 2, OVER = 4, OVER_2 = 8, SHIFT = 16, OTHER = 32, ODD = 64, FLAGS = 128 };

static struct gpu {
    struct dev dev;
    struct stream s;
    struct ops ops;
    struct arena fixed, memory;
    bf16 *numbers;
} gpu;

/* A shape and what is asked of the op. ADD: with branch or dres; OVER, OVER_2: sum over x or branch, dx over dy or dres;
 * OTHER: the format that training does not use; ODD: an Inf and a NaN. */
struct task {
    int64_t rows, d;
    int what, flags;
    char text[160];
};

static void ok(status st)
{
    if (st != STATUS_OK) fail_msg("%s", status_message());
}
static void *room(size_t bytes)
{
    return (char *)arena_take(&gpu.memory, bytes + 2 * GUARD, "array") + GUARD;
}
/* An array between marks, full of marks. */
static void *marked(size_t bytes)
{
    char *to = room(bytes), *marks = malloc(bytes + 2 * GUARD);
    assert_non_null(marks);
    memset(marks, MARK, bytes + 2 * GUARD);
    ok(dev_upload(&gpu.s, to - GUARD, marks, bytes + 2 * GUARD));
    ok(dev_sync(&gpu.s));
    free(marks);
    return to;
}
/* Numbers around `mean`, others for each `seed`. With `odd`, an Inf and a NaN among them. */
static void *numbers(int64_t count, int64_t seed, float mean, bool odd)
{
    const size_t bytes = (size_t)count * sizeof(bf16);
    bf16 *from = malloc(bytes);
    void *to = marked(bytes);
    assert_non_null(from);
    for (int64_t i = 0; i < count; i++) from[i] = gpu.numbers[(i + seed * 7919) % PERIOD];
    for (int64_t i = 0; mean != 0 && i < count; i++)
        from[i] = bf16_from_f32(mean + 0.3f * bf16_to_f32(from[i]));
    if (odd) from[count / 3] = 0x7f80, from[count - 1] = 0xffc1;
    ok(dev_upload(&gpu.s, to, from, bytes));
    ok(dev_sync(&gpu.s));
    free(from);
    return to;
}
static void *one(float x)
{
    void *to = marked(sizeof x);
    ok(dev_upload(&gpu.s, to, &x, sizeof x));
    ok(dev_sync(&gpu.s));
    return to;
}
/* Caller frees. Checks the marks around it. */
static uint8_t *read_back(const void *at, size_t bytes, const struct task *t, const char *name)
{
    uint8_t *all = malloc(bytes + 2 * GUARD);
    assert_non_null(all);
    ok(dev_download(&gpu.s, all, (const char *)at - GUARD, bytes + 2 * GUARD));
    ok(dev_sync(&gpu.s));
    for (size_t i = 0; i < GUARD; i++)
        if (all[i] != MARK || all[GUARD + bytes + i] != MARK)
            fail_msg("%s: written outside %s", t->text, name);
    memmove(all, all + GUARD, bytes);
    return all;
}
static void same(const void *a, const void *b, size_t bytes, const struct task *t, const char *name)
{
    uint8_t *want = read_back(a, bytes, t, name), *got = read_back(b, bytes, t, name);
    for (size_t i = 0; i < bytes; i++)
        if (want[i] != got[i])
            fail_msg("%s: byte %zu of %zu of %s is 0x%02x, not 0x%02x", t->text, i, bytes, name, got[i],
                     want[i]);
    free(want);
    free(got);
}

static struct quantized form(const struct task *t, const float *scale, bool gradient)
{
    const bool e5m2 = gradient != ((t->flags & OTHER) != 0);
    struct quantized q = {.scale = scale, .dt = e5m2 ? DTYPE_F8_E5M2 : DTYPE_F8_E4M3};
    q.codes = marked((size_t)(t->rows * t->d));
    q.codes_t = marked((size_t)(t->d * quantized_ld(t->rows)));
    q.amax = one(0);
    return q;
}
/* Of what there is memory for, what the task asks for. */
static struct quantized asked(const struct task *t, struct quantized q)
{
    if (!(t->what & CODES)) q.codes = NULL;
    if (!(t->what & TRANS)) q.codes_t = NULL;
    if (!(t->what & AMAX)) q.amax = NULL;
    return q;
}
static void same_form(const struct task *t, const struct quantized *a, const struct quantized *b)
{
    same(a->codes, b->codes, (size_t)(t->rows * t->d), t, "the codes");
    same(a->codes_t, b->codes_t, (size_t)(t->d * quantized_ld(t->rows)), t, "the transposed codes");
    same(a->amax, b->amax, sizeof(float), t, "amax");
}
static void make_codes(const struct task *t, const void *x, struct quantized q)
{
    const struct quantize_args a = {.x = x, .q = asked(t, q), .rows = t->rows, .n = t->d, .dt = DTYPE_BF16};
    ok(gpu.ops.quantize(&a, &gpu.s));
}

static void begin(struct task *t, const char *op)
{
    const size_t count = (size_t)(t->rows * t->d), marks = 64 * (4 * GUARD + ARENA_ALIGN);
    snprintf(t->text, sizeof t->text, "%s [%lld, %lld], results %d, flags %d", op, (long long)t->rows,
             (long long)t->d, t->what, t->flags);
    ok(dev_arena_reserve(&gpu.dev, &gpu.memory, "test",
                         24 * count + 40 * (size_t)t->d + 64 * (size_t)t->rows + marks));
}

static void forward(int64_t rows, int64_t d, int what, int flags)
{
    struct task t = {.rows = rows, .d = d, .what = what, .flags = flags};
    const int64_t count = rows * d;
    const size_t bytes = sizeof(bf16) * (size_t)count, stats = sizeof(float) * (size_t)rows;
    begin(&t, "rmsnorm_fwd");
    const bool add = flags & ADD;
    void *x = numbers(count, 1, 0, flags & ODD), *branch = add ? numbers(count, 2, 0, false) : NULL;
    struct rmsnorm_fwd_args a = {.x = x,
                                 .branch = branch,
                                 .w = numbers(d, 3, flags & SHIFT ? 0.1f : 1, false),
                                 .sum = add ? marked(bytes) : NULL,
                                 .y = marked(bytes),
                                 .rstd = marked(stats),
                                 .rows = rows,
                                 .d = d,
                                 .eps = 1e-5,
                                 .shift = flags & SHIFT ? 1 : 0,
                                 .dt = DTYPE_BF16};
    struct rmsnorm_fwd_args b = a;
    b.sum = !add ? NULL : flags & OVER ? x : flags & OVER_2 ? branch : marked(bytes);
    b.y = marked(bytes), b.rstd = marked(stats);
    const float *scale = one(16);
    const struct quantized apart = form(&t, scale, false), joined = form(&t, scale, false);
    b.q = asked(&t, joined);
    b.q.only = flags & ONLY;
    ok(gpu.ops.rmsnorm_fwd(&a, &gpu.s));
    make_codes(&t, a.y, apart);
    ok(gpu.ops.rmsnorm_fwd(&b, &gpu.s));
    same(a.rstd, b.rstd, stats, &t, "rstd");
    if (add) same(a.sum, b.sum, bytes, &t, "sum");
    if (!(flags & ONLY)) same(a.y, b.y, bytes, &t, "y");
    same_form(&t, &apart, &joined);
    arena_free(&gpu.memory);
}

/* Two sums of `rows` terms around 1, in two orders. */
static void close_sums(const struct task *t, const float *a, const float *b)
{
    const size_t bytes = sizeof(float) * (size_t)t->d;
    const double most = 16 * 0x1p-24 * (double)t->rows;
    void *want = read_back(a, bytes, t, "dw"), *got = read_back(b, bytes, t, "dw");
    for (int64_t j = 0; j < t->d && !(t->flags & ODD); j++) {
        const double x = (double)((float *)want)[j], y = (double)((float *)got)[j];
        if (!(fabs(x - y) <= most + 0x1p-22 * fabs(x)))
            fail_msg("%s: dw[%lld] is %g, not %g", t->text, (long long)j, y, x);
    }
    free(want);
    free(got);
}

static void backward(int64_t rows, int64_t d, int what, int flags)
{
    struct task t = {.rows = rows, .d = d, .what = what, .flags = flags};
    const int64_t count = rows * d;
    const size_t bytes = sizeof(bf16) * (size_t)count, sums = sizeof(float) * (size_t)d;
    begin(&t, "rmsnorm_bwd");
    void *x = numbers(count, 1, 0, false), *w = numbers(d, 3, 1, false),
         *dy = numbers(count, 4, 0, flags & ODD), *rstd = marked(sizeof(float) * (size_t)rows),
         *dres = flags & ADD ? numbers(count, 5, 0, false) : NULL, *dx = marked(bytes);
    ok(gpu.ops.rmsnorm_fwd(
        &(struct rmsnorm_fwd_args){
            .x = x, .w = w, .y = dx, .rstd = rstd, .rows = rows, .d = d, .eps = 1e-5, .dt = DTYPE_BF16},
        &gpu.s));
    struct rmsnorm_bwd_args a = {.dy = dy,
                                 .s = x,
                                 .w = w,
                                 .rstd = rstd,
                                 .dres = dres,
                                 .dx = dx,
                                 .dw = marked(sums),
                                 .rows = rows,
                                 .d = d,
                                 .shift = flags & SHIFT ? 1 : 0,
                                 .dt = DTYPE_BF16};
    const float *scale = one(4096);
    const struct quantized apart = form(&t, scale, true);
    ok(dev_zero(&gpu.s, a.dw, sums));
    ok(gpu.ops.rmsnorm_bwd(&a, &gpu.s));
    make_codes(&t, dx, apart);
    struct rmsnorm_bwd_args b = a;
    float *dw[2];
    for (int again = 0; again < 2; again++) {
        const bool last = again == 1;
        const struct quantized joined = form(&t, scale, true);
        b.q = asked(&t, joined);
        b.dx = last && flags & OVER ? dy : last && flags & OVER_2 && dres ? dres : marked(bytes);
        b.dw = dw[again] = marked(sums);
        ok(dev_zero(&gpu.s, b.dw, sums));
        ok(gpu.ops.rmsnorm_bwd(&b, &gpu.s));
        same(dx, b.dx, bytes, &t, "dx");
        same_form(&t, &apart, &joined);
    }
    same(dw[0], dw[1], sums, &t, "dw again");
    close_sums(&t, a.dw, dw[0]);
    arena_free(&gpu.memory);
}

/* Few rows: tiles of 16. */
static void small(void **state)
{
    (void)state;
    static const int64_t rows[] = {1, 15, 16, 17, 129}, widths[] = {16, 48, 272, 1536, 2560};
    for (int r = 0; r < 5; r++)
        for (int i = 0; i < 5; i++)
            for (int flags = ADD; flags <= (ADD | ONLY); flags++) {
                forward(rows[r], widths[i], ALL, flags);
                backward(rows[r], widths[i], ALL, flags & ADD);
            }
}

static void every_choice(void **state)
{
    (void)state;
    for (int flags = 0; flags < FLAGS; flags++) {
        if ((flags & OVER && flags & OVER_2) || (flags & (OVER | OVER_2) && !(flags & ADD))) continue;
        const int what = flags % ALL + 1;
        forward(50, 144, ALL, flags);
        forward(50, 144, what, flags);
        if (flags & ONLY) continue;
        backward(50, 144, ALL, flags);
        backward(50, 144, what, flags);
    }
    for (int what = 1; what <= ALL; what++) forward(33, 768, what, ADD), backward(33, 768, what, ADD);
    forward(40, 17, AMAX, ADD);
    backward(40, 17, AMAX, ADD);
}

/* Enough rows for tiles of 32 and 64 on any GPU, with remainders; widths of real models. */
static void tiles(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{6001, 48},   {8700, 272},  {13000, 16},  {8711, 768},
                                        {9000, 1024}, {9000, 2048}, {8800, 2560}, {6007, 4096}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        forward(shapes[i][0], shapes[i][1], ALL, ADD | ONLY);
        forward(shapes[i][0], shapes[i][1], CODES | AMAX, SHIFT);
        backward(shapes[i][0], shapes[i][1], ALL, ADD | OVER_2);
    }
}

/* Wide rows: up to those whose codes are made in a second pass. */
static void wide(void **state)
{
    (void)state;
    for (int64_t d = 6144; d <= 16384; d += 2048) {
        forward(700, d, ALL, ADD);
        forward(50, d, CODES | AMAX, ONLY);
        backward(700, d, ALL, ADD);
    }
}

static void pattern(void)
{
    gpu.numbers = malloc(PERIOD * sizeof *gpu.numbers);
    CHECK(gpu.numbers, "no memory for a test");
    for (int i = 0; i < PERIOD; i++)
        gpu.numbers[i] = bf16_from_f32((float)rng_normal(1, RNG_TEST, (uint64_t)i, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small),
        cmocka_unit_test(every_choice),
        cmocka_unit_test(tiles),
        cmocka_unit_test(wide),
    };
    if (dev_open(&gpu.dev, DEV_CUDA) != STATUS_OK) {
        printf("%s\n", status_message());
        return gpu_missing();
    }
    enum { TOKENS = 32768 };
    if (dev_stream_open(&gpu.dev, &gpu.s) != STATUS_OK ||
        ops_cuda(&gpu.ops, &gpu.s, &(struct cuda_options){0}) != STATUS_OK ||
        dev_arena_reserve(&gpu.dev, &gpu.fixed, "workspace", gpu.ops.workspace(TOKENS) + ARENA_ALIGN) !=
            STATUS_OK) {
        printf("%s\n", status_message());
        return 1;
    }
    const size_t workspace = gpu.ops.workspace(TOKENS);
    ops_cuda_workspace(&gpu.s, arena_take(&gpu.fixed, workspace, "workspace"), workspace);
    pattern();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(gpu.numbers);
    arena_free(&gpu.fixed);
    ops_cuda_close(&gpu.s);
    dev_stream_close(&gpu.s);
    dev_close(&gpu.dev);
    return failed;
}
