/* Goal: SwiGLU as an epilogue (EPILOGUE_SWIGLU_FWD, _BWD) is what GEMM and SwiGLU are apart. Method: forward's GEMM against
 * sums in f64, its m against swiglu_fwd of the same gu, bit for bit; backward against gemm and swiglu_bwd; in place and again the same bits;
 * what lies around the results stays. Shapes: less than a tile, cut tiles, more tiles than multiprocessors; also what gemm_supports
 * leaves to the ops apart because they are as fast. */
#include "base/rng.h"
#include "dev/dev.h"
#include "ops/cuda/ops_cuda.h"
#include "ops/ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MARGIN = 4096, MARK = 0x5a, BUFFERS = 8 }; /* bytes around results */

struct gpu {
    struct dev dev;
    struct stream s;
    struct ops ops;
    struct arena memory;
};

static bool gpu_open(struct gpu *g)
{
    assert_int_equal(dev_open(&g->dev, DEV_CUDA), STATUS_OK);
    assert_int_equal(dev_stream_open(&g->dev, &g->s), STATUS_OK);
    assert_int_equal(ops_cuda(&g->ops, &g->s, &(struct cuda_options){0}), STATUS_OK);
    return g->dev.sm / 10 == 9;
}

static void gpu_close(struct gpu *g)
{
    ops_cuda_close(&g->s);
    dev_stream_close(&g->s);
    dev_close(&g->dev);
}

static void reserve(struct gpu *g, int64_t rows, int64_t d, int64_t f)
{
    const int64_t elements = rows * (d + 10 * f) + 2 * f * d;
    const size_t workspace = g->ops.workspace(rows);
    assert_int_equal(
        dev_arena_reserve(&g->dev, &g->memory, "test",
                          (size_t)elements * sizeof(bf16) + workspace + BUFFERS * (2 * MARGIN + ARENA_ALIGN)),
        STATUS_OK);
    ops_cuda_workspace(&g->s, arena_take(&g->memory, workspace, "workspace"), workspace);
}

static bf16 *numbers(int64_t count, uint64_t seed, double size)
{
    bf16 *p = malloc((size_t)count * sizeof *p);
    assert_non_null(p);
    for (int64_t i = 0; i < count; i++)
        p[i] = bf16_from_f32((float)(size * rng_normal(seed, RNG_TEST, (uint64_t)i, 0)));
    return p;
}

static void *place(struct gpu *g, const bf16 *from, int64_t count)
{
    void *to = arena_take(&g->memory, (size_t)count * sizeof *from, "operand");
    assert_int_equal(dev_upload(&g->s, to, from, (size_t)count * sizeof *from), STATUS_OK);
    return to;
}

/* A result between guard bytes. */
struct result {
    char *memory;
    int64_t count;
};
static struct result result_take(struct gpu *g, int64_t count)
{
    const size_t bytes = (size_t)count * sizeof(bf16) + 2 * MARGIN;
    struct result r = {arena_take(&g->memory, bytes, "result"), count};
    char *marks = malloc(bytes);
    assert_non_null(marks);
    memset(marks, MARK, bytes);
    assert_int_equal(dev_upload(&g->s, r.memory, marks, bytes), STATUS_OK);
    assert_int_equal(dev_sync(&g->s), STATUS_OK);
    free(marks);
    return r;
}
static void *result_at(struct result r)
{
    return r.memory + MARGIN;
}
/* Caller frees. */
static bf16 *result_read(struct gpu *g, struct result r)
{
    const size_t inner = (size_t)r.count * sizeof(bf16), bytes = inner + 2 * MARGIN;
    char *all = malloc(bytes);
    assert_non_null(all);
    assert_int_equal(dev_download(&g->s, all, r.memory, bytes), STATUS_OK);
    assert_int_equal(dev_sync(&g->s), STATUS_OK);
    for (size_t i = 0; i < MARGIN; i++) {
        assert_int_equal(all[i], MARK);
        assert_int_equal(all[MARGIN + inner + i], MARK);
    }
    memmove(all, all + MARGIN, inner);
    return (bf16 *)all;
}

static void assert_same(struct gpu *g, struct result a, struct result b)
{
    bf16 *x = result_read(g, a), *y = result_read(g, b);
    assert_memory_equal(x, y, (size_t)a.count * sizeof *x);
    free(x);
    free(y);
}

/* Rows of gu compared with f64 sums: rounded once to BF16; before that d / 16 sums of 17 terms, each of which
 * is cut at 2^-23 of the largest, which is some 4 sqrt(d) at most (tensor cores do not round). */
static void assert_gemm(const bf16 *gu, const bf16 *x, const bf16 *w, int64_t rows, int64_t d, int64_t f)
{
    const int64_t step = rows > 64 ? rows / 61 : 1; /* some of many rows, all columns */
    for (int64_t r = 0; r < rows; r += step)
        for (int64_t n = 0; n < 2 * f; n++) {
            double sum = 0;
            for (int64_t k = 0; k < d; k++)
                sum += (double)bf16_to_f32(x[r * d + k]) * (double)bf16_to_f32(w[n * d + k]);
            assert_true(fabs(bf16_to_f32(gu[r * 2 * f + n]) - sum) <=
                        0x1p-8 * fabs(sum) + (double)d / 16 * 17 * 0x1p-23 * 4 * sqrt((double)d));
        }
}

static void forward(struct gpu *g, int64_t rows, int64_t d, int64_t f)
{
    reserve(g, rows, d, f);
    bf16 *x = numbers(rows * d, 1, 1), *w = numbers(2 * f * d, 2, 1), *got;
    struct result gu = result_take(g, rows * 2 * f), m = result_take(g, rows * f),
                  apart = result_take(g, rows * f);
    struct gemm_args a = {.a = operand_at(place(g, x, rows * d), DTYPE_BF16, false),
                          .b = operand_at(place(g, w, 2 * f * d), DTYPE_BF16, true),
                          .c = result_at(gu),
                          .epilogue = {.kind = EPILOGUE_SWIGLU_FWD, .swiglu.act = result_at(m)},
                          .m = rows,
                          .n = 2 * f,
                          .k = d,
                          .cdt = DTYPE_BF16};
    assert_int_equal(g->ops.gemm(&a, &g->s), STATUS_OK);
    assert_int_equal(g->ops.swiglu_fwd(
                         &(struct swiglu_fwd_args){
                             .gu = a.c, .m = result_at(apart), .rows = rows, .f = f, .dt = DTYPE_BF16},
                         &g->s),
                     STATUS_OK);
    assert_same(g, m, apart);
    got = result_read(g, gu);
    assert_gemm(got, x, w, rows, d, f);
    a.c = result_at(result_take(g, rows * 2 * f));
    a.epilogue.swiglu.act = result_at(apart);
    assert_int_equal(g->ops.gemm(&a, &g->s), STATUS_OK);
    assert_same(g, m, apart);
    free(x);
    free(w);
    free(got);
    arena_free(&g->memory);
}

static void assert_near(const bf16 *got, const bf16 *want, int64_t count)
{
    double error = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        const double y = bf16_to_f32(want[i]), e = bf16_to_f32(got[i]) - y;
        error += e * e;
        size += y * y;
    }
    assert_true(sqrt(error) <= 0x1p-8 * sqrt(size)); /* dm and what comes of it, each rounded once */
}

static void backward(struct gpu *g, int64_t rows, int64_t d, int64_t f)
{
    reserve(g, rows, d, f);
    bf16 *dy = numbers(rows * d, 3, 1), *w = numbers(d * f, 4, 1), *gates = numbers(rows * 2 * f, 5, 3), *got,
         *want;
    for (int64_t i = 0; i < rows * 2 * f; i += 101) /* where a careless exp overflows */
        gates[i] = bf16_from_f32(i % 2 ? 100 : -100);
    struct result dgu = result_take(g, rows * 2 * f), m = result_take(g, rows * f),
                  dgu_apart = result_take(g, rows * 2 * f), m_apart = result_take(g, rows * f);
    struct gemm_args a = {.a = operand_at(place(g, dy, rows * d), DTYPE_BF16, false),
                          .b = operand_at(place(g, w, d * f), DTYPE_BF16, false),
                          .epilogue = {.kind = EPILOGUE_SWIGLU_BWD},
                          .m = rows,
                          .n = f,
                          .k = d,
                          .cdt = DTYPE_BF16};
    a.epilogue.swiglu = (struct epilogue_swiglu){
        .gu = place(g, gates, rows * 2 * f), .dgu = result_at(dgu), .act = result_at(m)};
    const void *gu = a.epilogue.swiglu.gu;
    assert_int_equal(g->ops.gemm(&a, &g->s), STATUS_OK);
    struct gemm_args down = a;
    down.epilogue = (struct epilogue){.kind = EPILOGUE_NONE};
    down.c = result_at(m_apart);
    assert_int_equal(g->ops.gemm(&down, &g->s), STATUS_OK);
    assert_int_equal(g->ops.swiglu_bwd(&(struct swiglu_bwd_args){.dm = down.c,
                                                                 .gu = gu,
                                                                 .dgu = result_at(dgu_apart),
                                                                 .m = down.c,
                                                                 .rows = rows,
                                                                 .f = f,
                                                                 .dt = DTYPE_BF16},
                                       &g->s),
                     STATUS_OK);
    assert_same(g, m, m_apart);
    got = result_read(g, dgu);
    want = result_read(g, dgu_apart);
    assert_near(got, want, rows * 2 * f);
    void *place_of_both = result_at(dgu_apart);
    a.epilogue.swiglu =
        (struct epilogue_swiglu){.gu = place_of_both, .dgu = place_of_both, .act = result_at(m_apart)};
    assert_int_equal(dev_upload(&g->s, place_of_both, gates, (size_t)(rows * 2 * f) * sizeof *gates),
                     STATUS_OK);
    assert_int_equal(g->ops.gemm(&a, &g->s), STATUS_OK);
    assert_same(g, m, m_apart);
    assert_same(g, dgu, dgu_apart);
    bf16 *const all[] = {dy, w, gates, got, want};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
    arena_free(&g->memory);
}

static void fused_is_as_apart(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {/* rows, d, f */
                                        {1, 64, 64},        {127, 320, 576},   {129, 64, 128},
                                        {130, 192, 64},     {1000, 192, 1600}, {2049, 128, 320},
                                        {4096, 1024, 2816}, {1300, 2048, 8192}};
    struct gpu g = {0};
    if (gpu_open(&g))
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            forward(&g, shapes[i][0], shapes[i][1], shapes[i][2]);
            backward(&g, shapes[i][0], shapes[i][1], shapes[i][2]);
        }
    gpu_close(&g);
}

static void supports_what_it_can(void **state)
{
    (void)state;
    struct gpu g = {0};
    const bool hopper = gpu_open(&g);
    const struct gemm_args large = {.a = {.dt = DTYPE_BF16},
                                    .b = {.dt = DTYPE_BF16},
                                    .epilogue = {.kind = EPILOGUE_SWIGLU_BWD},
                                    .m = 4096,
                                    .n = 8192,
                                    .k = 2048,
                                    .cdt = DTYPE_BF16};
    struct gemm_args a = large;
    assert_int_equal(g.ops.gemm_supports(&a, &g.s), hopper);
    a.n = 8200; /* columns beyond a slab */
    assert_false(g.ops.gemm_supports(&a, &g.s));
    a = large, a.a.dt = a.b.dt = DTYPE_F32;
    assert_false(g.ops.gemm_supports(&a, &g.s));
    a = large, a.m = 1; /* generation */
    assert_false(g.ops.gemm_supports(&a, &g.s));
    a = large, a.epilogue.swiglu.gu = (char *)0 + 2;
    assert_false(g.ops.gemm_supports(&a, &g.s));
    gpu_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fused_is_as_apart),
        cmocka_unit_test(supports_what_it_can),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
