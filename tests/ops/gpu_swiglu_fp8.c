/* Goal: SwiGLU as an epilogue of an FP8 GEMM is what GEMM and SwiGLU are apart. Method: gu against sums in f64 of the decoded
 * codes; m, its codes and its amax against swiglu_fwd of the same gu, bit for bit; with and without m; what lies around the
 * results stays. Shapes: less than a tile, cut tiles, more tiles than multiprocessors. */
#include "base/rng.h"
#include "dev/dev.h"
#include "ops/cuda/ops_cuda.h"
#include "ops/ops.h"
#include "tensor/f8.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MARGIN = 4096, MARK = 0x5a };

static struct dev device;
static struct stream stream;
static struct ops ops;
static struct arena memory;

/* Results between guard bytes. */
static void *result_take(size_t bytes)
{
    char *at = arena_take(&memory, bytes + 2 * MARGIN, "result"), *marks = malloc(bytes + 2 * MARGIN);
    assert_non_null(marks);
    memset(marks, MARK, bytes + 2 * MARGIN);
    assert_int_equal(dev_upload(&stream, at, marks, bytes + 2 * MARGIN), STATUS_OK);
    assert_int_equal(dev_sync(&stream), STATUS_OK);
    free(marks);
    return at + MARGIN;
}

/* Caller frees. */
static char *result_read(const void *at, size_t bytes)
{
    char *all = malloc(bytes + 2 * MARGIN);
    assert_non_null(all);
    assert_int_equal(dev_download(&stream, all, (const char *)at - MARGIN, bytes + 2 * MARGIN), STATUS_OK);
    assert_int_equal(dev_sync(&stream), STATUS_OK);
    for (size_t i = 0; i < MARGIN; i++) {
        assert_int_equal(all[i], MARK);
        assert_int_equal(all[MARGIN + bytes + i], MARK);
    }
    memmove(all, all + MARGIN, bytes);
    return all;
}

static void assert_same(const void *a, const void *b, size_t bytes)
{
    char *x = result_read(a, bytes), *y = result_read(b, bytes);
    assert_memory_equal(x, y, bytes);
    free(x);
    free(y);
}

static const void *upload(const void *from, size_t bytes)
{
    void *to = arena_take(&memory, bytes, "operand");
    assert_int_equal(dev_upload(&stream, to, from, bytes), STATUS_OK);
    assert_int_equal(dev_sync(&stream), STATUS_OK);
    return to;
}

static uint8_t *codes(int64_t count, uint64_t seed)
{
    uint8_t *p = malloc((size_t)count);
    assert_non_null(p);
    for (int64_t i = 0; i < count; i++)
        p[i] = f8_encode(f8_e4m3, (float)(8 * rng_normal(seed, RNG_TEST, (uint64_t)i, 0)));
    return p;
}

/* Sums on the tensor core keep 14 bits: 0.12 % of the results' rms at k = 4096; rounding to BF16 0.11 % more. */
static void assert_gemm(const bf16 *gu, const uint8_t *x, const uint8_t *w, int64_t rows, int64_t d,
                        int64_t f, double scale)
{
    const int64_t step = rows > 16 ? rows / 13 : 1;
    double error = 0, size = 0;
    for (int64_t r = 0; r < rows; r += step)
        for (int64_t n = 0; n < 2 * f; n += 3) {
            double sum = 0;
            for (int64_t k = 0; k < d; k++)
                sum += (double)f8_decode(f8_e4m3, x[r * d + k]) * (double)f8_decode(f8_e4m3, w[n * d + k]);
            const double want = sum * scale, e = (double)bf16_to_f32(gu[r * 2 * f + n]) - want;
            error += e * e;
            size += want * want;
        }
    assert_true(size > 0 && sqrt(error) <= 0.004 * sqrt(size));
}

struct outputs {
    void *gu, *m, *codes;
    float *amax;
};

static struct outputs outputs_take(int64_t rows, int64_t f)
{
    const float zero = 0;
    struct outputs o = {result_take((size_t)(rows * 4 * f)), result_take((size_t)(rows * 2 * f)),
                        result_take((size_t)(rows * f)), result_take(sizeof(float))};
    assert_int_equal(dev_upload(&stream, o.amax, &zero, sizeof zero), STATUS_OK);
    assert_int_equal(dev_sync(&stream), STATUS_OK);
    return o;
}

static void forward(int64_t rows, int64_t d, int64_t f)
{
    const size_t workspace = ops.workspace(rows);
    assert_int_equal(
        dev_arena_reserve(&device, &memory, "test",
                          (size_t)(rows * d + 2 * f * d + 3 * rows * 7 * f) + workspace + (1 << 20)),
        STATUS_OK);
    ops_cuda_workspace(&stream, arena_take(&memory, workspace, "workspace"), workspace);
    uint8_t *x = codes(rows * d, 1), *w = codes(2 * f * d, 2);
    const float scales[] = {0x1p-7f, 0x1p-6f,
                            4}; /* of x, of w: scale_inv; of m: scale. No library reads them */
    const float *at = upload(scales, sizeof scales);
    struct outputs both = outputs_take(rows, f), alone = outputs_take(rows, f), apart = outputs_take(rows, f);
    struct gemm_args a = {.a = operand_codes(upload(x, (size_t)(rows * d)), DTYPE_F8_E4M3, at, false),
                          .b = operand_codes(upload(w, (size_t)(2 * f * d)), DTYPE_F8_E4M3, at + 1, true),
                          .c = both.gu,
                          .epilogue = {.kind = EPILOGUE_SWIGLU_FWD},
                          .m = rows,
                          .n = 2 * f,
                          .k = d,
                          .cdt = DTYPE_BF16,
                          .fast_accum = true};
    a.epilogue.swiglu = (struct epilogue_swiglu){
        .act = both.m, .q = {both.codes, NULL, at + 2, NULL, both.amax, DTYPE_F8_E4M3, false}};
    assert_int_equal(ops.gemm(&a, &stream), STATUS_OK);
    a.c = alone.gu;
    a.epilogue.swiglu = (struct epilogue_swiglu){
        .act = alone.m, .q = {alone.codes, NULL, at + 2, NULL, alone.amax, DTYPE_F8_E4M3, true}};
    assert_int_equal(ops.gemm(&a, &stream), STATUS_OK);
    assert_int_equal(ops.swiglu_fwd(&(struct swiglu_fwd_args){.gu = both.gu,
                                                              .m = apart.m,
                                                              .q = {apart.codes, NULL, at + 2, NULL,
                                                                    apart.amax, DTYPE_F8_E4M3, false},
                                                              .rows = rows,
                                                              .f = f,
                                                              .dt = DTYPE_BF16},
                                    &stream),
                     STATUS_OK);
    bf16 *gu = (bf16 *)result_read(both.gu, (size_t)(rows * 4 * f));
    assert_gemm(gu, x, w, rows, d, f, 0x1p-13);
    assert_same(both.m, apart.m, (size_t)(rows * 2 * f));
    assert_same(both.codes, apart.codes, (size_t)(rows * f));
    assert_same(both.amax, apart.amax, sizeof(float));
    assert_same(both.gu, alone.gu, (size_t)(rows * 4 * f));
    assert_same(both.codes, alone.codes, (size_t)(rows * f));
    assert_same(both.amax, alone.amax, sizeof(float));
    char *untouched = result_read(alone.m, (size_t)(rows * 2 * f));
    for (int64_t i = 0; i < rows * 2 * f; i++) assert_int_equal(untouched[i], MARK);
    free(untouched);
    free(gu);
    free(x);
    free(w);
    arena_free(&memory);
}

static void fused_is_as_apart(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {/* rows, d, f */
                                        {16, 128, 64},     {128, 384, 576},    {144, 256, 64},
                                        {1008, 256, 1600}, {4096, 1024, 2816}, {1296, 4096, 11008}};
    if (device.sm / 10 != 9) skip();
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        forward(shapes[i][0], shapes[i][1], shapes[i][2]);
}

static void supports_what_it_can(void **state)
{
    (void)state;
    const struct operand code = operand_codes(NULL, DTYPE_F8_E4M3, NULL, false);
    struct gemm_args a = {.a = code,
                          .b = operand_trans(code),
                          .epilogue = {.kind = EPILOGUE_SWIGLU_FWD},
                          .m = 4096,
                          .n = 8192,
                          .k = 2048,
                          .cdt = DTYPE_BF16};
    assert_false(ops.gemm_supports(&a, &stream)); /* no place for codes */
    a.epilogue.swiglu.q = (struct quantized){.codes = (char *)0 + 256, .dt = DTYPE_F8_E4M3};
    assert_int_equal(ops.gemm_supports(&a, &stream), device.sm / 10 == 9);
    a.k = 2048 + 64; /* half a step of 128 codes */
    assert_false(ops.gemm_supports(&a, &stream));
    a.k = 2048, a.a.dt = DTYPE_F8_E5M2;
    assert_false(ops.gemm_supports(&a, &stream));
    a.a.dt = DTYPE_F8_E4M3, a.epilogue.kind = EPILOGUE_SWIGLU_BWD;
    assert_false(ops.gemm_supports(&a, &stream));
    a.epilogue.kind = EPILOGUE_ROPE;
    assert_false(ops.gemm_supports(&a, &stream));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fused_is_as_apart),
        cmocka_unit_test(supports_what_it_can),
    };
    if (dev_open(&device, DEV_CUDA) != STATUS_OK || dev_stream_open(&device, &stream) != STATUS_OK ||
        ops_cuda(&ops, &stream, &(struct cuda_options){0}) != STATUS_OK)
        return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ops_cuda_close(&stream);
    dev_stream_close(&stream);
    dev_close(&device);
    return failed;
}
