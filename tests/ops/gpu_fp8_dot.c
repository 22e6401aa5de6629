/* Goal: how far the sums of a GPU's FP8 GEMMs are those of the model of Hopper's tensor core (f8_dot.h). Method: `gemm` of normal numbers
 * into F32, whose elements are compared with f8_dot, all k in one 14-bit accumulator and 128 of k at a time. Printed: which share of
 * them has the bits of either. The library's order of sums is its own choice, so that equality is reported, not asserted.
 *
 * Asserted is what follows from the model for every order: the error's rms is at most twice that of the simulated sums, of k products with
 * fast_accum, else of 128; and it has no bias, because signs are random. */
#include "base/rng.h"
#include "f8_dot.h"
#include "gpu.h"
#include "ops/cuda/set.h"
#include "ops/ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { M = 256, N = 384, K_MAX = 4096, STRIDE = 61 /* every 61st element is compared */ };
static const int64_t depths[] = {128, 256, 512, 1024, 2048, 4096};
enum { DEPTHS = sizeof depths / sizeof depths[0] };

struct gpu {
    struct dev dev;
    struct stream s;
    struct cuda_set set;
    struct ops ops;
    struct arena memory;
    uint8_t *codes_a, *codes_b; /* on the host: [M, k], [N, k] */
    void *a, *b, *c;
    float *scale, *got;
};

static int gpu_open(void **state)
{
    struct gpu *g = *state = calloc(1, sizeof *g);
    const float one = 1;
    assert_non_null(g);
    assert_int_equal(dev_open(&g->dev, DEV_CUDA), STATUS_OK);
    assert_int_equal(dev_stream_open(&g->dev, &g->s), STATUS_OK);
    assert_int_equal(dev_arena_reserve(&g->dev, &g->memory, "test", CUDA_WORKSPACE + ((size_t)16 << 20)),
                     STATUS_OK);
    g->set = (struct cuda_set){.sm = g->dev.sm,
                               .multiprocessors = g->dev.multiprocessors,
                               .workspace = arena_take(&g->memory, CUDA_WORKSPACE, "workspace"),
                               .workspace_bytes = CUDA_WORKSPACE};
    if (cuda_gemm_open(&g->set) != STATUS_OK) fail_msg("%s", status_message());
    g->s.ops = &g->set;
    cuda_gemm_slots(&g->ops);
    g->a = arena_take(&g->memory, M * K_MAX, "a");
    g->b = arena_take(&g->memory, N * K_MAX, "b");
    g->c = arena_take(&g->memory, M * N * sizeof(float), "c");
    g->scale = arena_take(&g->memory, sizeof one, "scale");
    assert_int_equal(dev_upload(&g->s, g->scale, &one, sizeof one), STATUS_OK);
    assert_int_equal(dev_sync(&g->s), STATUS_OK);
    g->codes_a = malloc(M * K_MAX);
    g->codes_b = malloc(N * K_MAX);
    g->got = malloc(M * N * sizeof(float));
    assert_true(g->codes_a && g->codes_b && g->got);
    printf("%s, sm_%d\n", g->dev.name, g->dev.sm);
    return 0;
}

static int gpu_close(void **state)
{
    struct gpu *g = *state;
    cuda_gemm_close(&g->set);
    arena_free(&g->memory);
    dev_stream_close(&g->s);
    dev_close(&g->dev);
    free(g->codes_a);
    free(g->codes_b);
    free(g->got);
    free(g);
    return 0;
}

static void normal_codes(uint8_t *codes, int64_t count, dtype dt, uint64_t seed)
{
    for (int64_t i = 0; i < count; i++) {
        const struct rng_block r = rng_at(seed, RNG_TEST, (uint64_t)i, 0);
        const double normal =
            (((double)r.u[0] + r.u[1] + r.u[2] + r.u[3]) * 0x1p-32 - 2) * 1.7320508075688772;
        dtype_store(codes, i, dt, (dt == DTYPE_F8_E5M2 ? 0x1p10 : 0x1p6) * normal);
    }
}

/* What was chosen for it, in `text`. */
static void multiply(struct gpu *g, dtype dt_a, int64_t k, bool fast, char *text, size_t size)
{
    normal_codes(g->codes_a, M * k, dt_a, 1);
    normal_codes(g->codes_b, N * k, DTYPE_F8_E4M3, 2);
    assert_int_equal(dev_upload(&g->s, g->a, g->codes_a, (size_t)(M * k)), STATUS_OK);
    assert_int_equal(dev_upload(&g->s, g->b, g->codes_b, (size_t)(N * k)), STATUS_OK);
    const struct gemm_args args = {.a = operand_codes(g->a, dt_a, g->scale, false),
                                   .b = operand_codes(g->b, DTYPE_F8_E4M3, g->scale, true),
                                   .c = g->c,
                                   .m = M,
                                   .n = N,
                                   .k = k,
                                   .cdt = DTYPE_F32,
                                   .fast_accum = fast};
    if (g->ops.gemm(&args, &g->s) != STATUS_OK) fail_msg("%s", status_message());
    assert_int_equal(dev_download(&g->s, g->got, g->c, M * N * sizeof(float)), STATUS_OK);
    assert_int_equal(dev_sync(&g->s), STATUS_OK);
    cuda_gemm_text(&g->s, &args, text, size);
}

struct sums {
    int count, as_one, by_128;     /* elements; equal to f8_dot without and with promotion */
    double error, error2, result2; /* of the exact sums */
};

static struct sums compare(const struct gpu *g, dtype dt_a, int64_t k)
{
    struct sums s = {0};
    struct f8_dot d = {dt_a == DTYPE_F8_E4M3 ? f8_e4m3 : f8_e5m2, f8_e4m3, NULL, NULL, k, 0};
    for (int64_t at = 0; at < M * N; at += STRIDE, s.count++) {
        double exact = 0;
        d.a = g->codes_a + at / N * k, d.b = g->codes_b + at % N * k;
        for (int64_t i = 0; i < k; i++)
            exact += (double)f8_decode(d.format_a, d.a[i]) * (double)f8_decode(d.format_b, d.b[i]);
        const double error = (double)g->got[at] - exact;
        s.error += error, s.error2 += error * error, s.result2 += exact * exact;
        d.promote = 0;
        s.as_one += f8_dot(&d) == g->got[at];
        d.promote = 128;
        s.by_128 += f8_dot(&d) == g->got[at];
    }
    return s;
}

static void sums_are_as_exact_as_the_model(void **state)
{
    struct gpu *g = *state;
    for (int i = 0; i < 2 * 2 * DEPTHS; i++) {
        const int64_t k = depths[i % DEPTHS];
        const bool fast = i / DEPTHS % 2;
        const dtype dt_a = i / DEPTHS / 2 ? DTYPE_F8_E5M2 : DTYPE_F8_E4M3;
        char chosen[256];
        multiply(g, dt_a, k, fast, chosen, sizeof chosen);
        const struct sums s = compare(g, dt_a, k);
        const double rms = sqrt(s.error2 / s.result2), most = 2 * f8_dot_rms(fast ? k : 128);
        printf("%s k %4lld %s: equal to the model %5.1f %% in one accumulator, %5.1f %% by 128; rms %.2e of "
               "%.2e; %s\n",
               dtype_name(dt_a), (long long)k, fast ? "fast" : "full", 100.0 * s.as_one / s.count,
               100.0 * s.by_128 / s.count, rms, most, chosen);
        if (!(rms <= most)) fail_msg("k %lld: rms %.3g, at most %.3g", (long long)k, rms, most);
        if (!(fabs(s.error) <= 4 * sqrt(s.error2)))
            fail_msg("k %lld: a bias of %.3g, noise is %.3g", (long long)k, s.error / s.count,
                     sqrt(s.error2) / s.count);
    }
}

int main(void)
{
    struct dev dev;
    if (dev_open(&dev, DEV_CUDA) != STATUS_OK) return printf("%s\n", status_message()), gpu_missing();
    const bool codes = dev.sm >= 89; /* tensor cores read them */
    dev_close(&dev);
    if (!codes) return printf("no FP8 tensor cores\n"), 77;
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums_are_as_exact_as_the_model)};
    return cmocka_run_group_tests(tests, gpu_open, gpu_close);
}
