/* Goal: GEMMs of codes with scales of their own (SCALES_BLOCKS, and SCALES_TENSOR with a current scale) are GEMMs of the values that
 * quantize_blocks says the codes have: so layouts of codes and scales are the library's. Method: the op writes codes and values of the same
 * operands, whose blocks differ by up to 2^12, on the GPU; the product of the values in f64 is the reference. A scale in the wrong place
 * changes a block of the result by a factor of 2 or more.
 *
 * Bound: sums of 128 products in the tensor core's 14 bits are off by 1.3e-4 of a result's deviation (docs/NUMERICS.md, fp8.cu), and
 * rounding c to bf16 by 2^-9 / sqrt(3) = 1.1e-3 of it. Both together stay below 3e-3, root mean square. Formats that this GPU has no GEMMs
 * for are named and left out. */
#include "base/rng.h"
#include "gpu.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops/gpu_set.h"

struct row {
    const char *pass;
    int64_t m, n, k;
    enum block_format a, b;
    bool square; /* blocks of b */
    bool add_to; /* into F32, added to what c holds */
};
static const struct row rows[] = {
    {"tensor forward", 256, 384, 512, BLOCKS_E4M3, BLOCKS_E4M3, false, false},
    {"tensor dgrad", 128, 512, 384, BLOCKS_E5M2, BLOCKS_E4M3, false, false},
    {"tensor wgrad", 384, 256, 640, BLOCKS_E5M2, BLOCKS_E4M3, false, true},
    {"block forward", 256, 384, 512, BLOCKS_B128, BLOCKS_B128, true, false},
    {"block forward, k of 5 blocks", 128, 640, 640, BLOCKS_B128, BLOCKS_B128, true, false},
    {"block wgrad", 384, 256, 640, BLOCKS_B128, BLOCKS_B128, false, true},
    {"mx forward", 256, 384, 512, BLOCKS_MX, BLOCKS_MX, false, false},
    {"mx wgrad", 384, 256, 640, BLOCKS_MX, BLOCKS_MX, false, true},
    {"nv forward", 256, 384, 512, BLOCKS_NV, BLOCKS_NV, true, false},
    {"nv wgrad", 384, 256, 640, BLOCKS_NV, BLOCKS_NV, false, true},
};
enum { ROWS = sizeof rows / sizeof rows[0], COUNT_MAX = 640 * 640 };

static int gpu_open(void **state)
{
    struct gpu *g = *state = gpu_set_open((size_t)64 << 20, 0);
    cuda_blocks_slots(&g->ops);
    printf("%s, sm_%d\n", g->dev.name, g->dev.sm);
    return 0;
}

static int gpu_close(void **state)
{
    gpu_set_close(*state);
    return 0;
}

static float noise(uint64_t seed, int64_t line, int64_t i)
{
    const int64_t block = line / 128 * 3 + i / 128 * 7 + line / 16 + i / 16;
    return ldexpf((float)rng_normal(seed, RNG_TEST, (uint64_t)line, (uint64_t)i), -(int)(block % 13));
}

/* Codes of lines x length numbers on the GPU, and their values on the host. */
static struct operand operand(struct gpu *g, enum block_format f, bool square, int64_t lines, int64_t length,
                              uint64_t seed, double *values)
{
    static bf16 x[COUNT_MAX];
    const size_t bytes = (size_t)(lines * length) * sizeof *x;
    for (int64_t i = 0; i < lines * length; i++) x[i] = bf16_from_f32(noise(seed, i / length, i % length));
    void *at = arena_take(&g->memory, bytes, "x"), *decoded = arena_take(&g->memory, bytes, "values");
    uint8_t *codes = arena_take(&g->memory, bytes, "codes");
    void *scales = arena_take(&g->memory, block_scale_bytes(f, square, lines, length) + 256, "scales");
    float *tensor = (float *)arena_take(&g->memory, 256, "scale") + 3;
    assert_int_equal(dev_upload(&g->s, at, x, bytes), STATUS_OK);
    const struct quantize_blocks_args a = {.x = at,
                                           .values = decoded,
                                           .codes = codes,
                                           .scales = scales,
                                           .tensor = tensor,
                                           .rows = lines,
                                           .n = length,
                                           .format = f,
                                           .square = square,
                                           .dt = DTYPE_BF16};
    assert_int_equal(g->ops.quantize_blocks(&a, &g->s), STATUS_OK);
    assert_int_equal(dev_download(&g->s, x, decoded, bytes), STATUS_OK);
    assert_int_equal(dev_sync(&g->s), STATUS_OK);
    for (int64_t i = 0; i < lines * length; i++) values[i] = (double)bf16_to_f32(x[i]);
    return (struct operand){.data = codes,
                            .dt = f == BLOCKS_NV     ? DTYPE_U8
                                  : f == BLOCKS_E5M2 ? DTYPE_F8_E5M2
                                                     : DTYPE_F8_E4M3,
                            .scales = block_length(f) ? SCALES_BLOCKS : SCALES_TENSOR,
                            .scale = block_tensor_scale(f) ? tensor + 1 : NULL,
                            .blocks = scales,
                            .format = f,
                            .square = square};
}

static void check(struct gpu *g, const struct row *r)
{
    static double a[COUNT_MAX], b[COUNT_MAX];
    static float c[COUNT_MAX];
    const dtype cdt = r->add_to ? DTYPE_F32 : DTYPE_BF16;
    const size_t bytes = (size_t)(r->m * r->n) * dtype_bytes(cdt), mark = arena_mark(&g->memory);
    struct gemm_args gemm = {.m = r->m, .n = r->n, .k = r->k, .cdt = cdt};
    gemm.accum = r->add_to ? ACCUM_ADD : ACCUM_STORE;
    gemm.a = operand(g, r->a, false, r->m, r->k, 1, a);
    gemm.b = operand(g, r->b, r->square, r->n, r->k, 2, b);
    gemm.b.trans = true;
    gemm.c = arena_take(&g->memory, bytes, "c");
    for (int64_t i = 0; i < r->m * r->n; i++) dtype_store(c, i, cdt, 0.5);
    assert_int_equal(dev_upload(&g->s, gemm.c, c, bytes), STATUS_OK);
    if (g->ops.gemm(&gemm, &g->s) != STATUS_OK) fail_msg("%s: %s", r->pass, status_message());
    assert_int_equal(dev_download(&g->s, c, gemm.c, bytes), STATUS_OK);
    assert_int_equal(dev_sync(&g->s), STATUS_OK);
    arena_release(&g->memory, mark);
    double error = 0, size = 0;
    for (int64_t i = 0; i < r->m; i++)
        for (int64_t j = 0; j < r->n; j++) {
            double want = 0;
            for (int64_t k = 0; k < r->k; k++) want += a[i * r->k + k] * b[j * r->k + k];
            const double got = dtype_load(c, i * r->n + j, cdt) - (r->add_to ? 0.5 : 0);
            error += (got - want) * (got - want), size += want * want;
        }
    printf("%-30s %lld x %lld x %lld: error %.2g of the result, root mean square\n", r->pass, (long long)r->m,
           (long long)r->n, (long long)r->k, sqrt(error / size));
    if (!(size > 0 && sqrt(error / size) < 3e-3)) fail_msg("%s: error %g", r->pass, sqrt(error / size));
}

static void codes_and_scales_lie_where_the_library_reads_them(void **state)
{
    struct gpu *g = *state;
    for (int i = 0; i < ROWS; i++)
        if (g->ops.reads_blocks(rows[i].a, rows[i].m, rows[i].n, rows[i].k, &g->s))
            check(g, &rows[i]);
        else
            printf("%-30s not on sm_%d\n", rows[i].pass, g->dev.sm);
}

int main(void)
{
    struct dev d;
    if (dev_open(&d, DEV_CUDA) != STATUS_OK) {
        puts(status_message());
        return gpu_missing();
    }
    dev_close(&d);
    const struct CMUnitTest tests[] = {cmocka_unit_test(codes_and_scales_lie_where_the_library_reads_them)};
    return cmocka_run_group_tests(tests, gpu_open, gpu_close);
}
