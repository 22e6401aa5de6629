/* What FP8 training relies on, for the oracle and every instruction set of this machine: codes and scales by their
 * definitions, scale laws, and FP8 GEMMs as GEMMs of the decoded values. tests/ops/test_fast.c compares the sets. */
#include "base/parallel.h"
#include "ops/ops.h"
#include "tensor/f8.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

enum { SETS = 5 };
/* The oracle, then the sets; an ISA that the machine lacks is left out. */
static int all_sets(struct ops sets[SETS])
{
    int count = 1;
    ops_oracle(&sets[0]);
    for (int i = 0; cpu_isa_name(i); i++)
        if (ops_cpu(&sets[count], cpu_isa_name(i)) == STATUS_OK) count++;
    assert_true(count > 1 && count <= SETS);
    return count;
}

static const dtype formats[] = {DTYPE_F8_E4M3, DTYPE_F8_E5M2};
static struct f8_format format_of(dtype dt)
{
    return dt == DTYPE_F8_E4M3 ? f8_e4m3 : f8_e5m2;
}

/* Between -1 and 1, of many sizes. */
static float value(int64_t i)
{
    return (float)sin(1.7 * (double)i + 0.3) * ldexpf(1, -(int)(i % 11));
}

enum { ROWS = 77, N = 80, LD = 80 };
struct result {
    uint8_t codes[ROWS * N], codes_t[N * LD];
    float amax;
};
static void quantized(const struct ops *o, const float *x, dtype codes, float scale, struct result *r)
{
    const float inverse = 1 / scale;
    const struct quantize_args a = {.x = x,
                                    .q = {r->codes, r->codes_t, &scale, &inverse, &r->amax, codes, false},
                                    .rows = ROWS,
                                    .n = N,
                                    .dt = DTYPE_F32};
    memset(r, 0xEE, sizeof *r);
    r->amax = 0;
    assert_int_equal(LD, quantized_ld(ROWS));
    assert_int_equal(o->quantize(&a, NULL), STATUS_OK);
}

/* By tensor/f8.h, which tests/tensor/test_f8.c proves. Beside ordinary values: all floats near every border of the
 * format, subnormal floats, NaN and Inf. */
static void codes_are_the_scaled_values_rounded(void **state)
{
    (void)state;
    static float x[ROWS * N];
    static struct result r;
    struct ops sets[SETS];
    const int count = all_sets(sets);
    for (int k = 0; k < 2; k++)
        for (int e = -3; e <= 3; e += 3) {
            const struct f8_format f = format_of(formats[k]);
            const float scale = ldexpf(1, e);
            for (int i = 0; i < ROWS * N; i++) {
                const int c = i / 6 % 0x7F;
                const double middle =
                    c + 1 <= f.max
                        ? ((double)f8_decode(f, (uint8_t)c) + (double)f8_decode(f, (uint8_t)(c + 1))) / 2
                        : INFINITY;
                const float at = (float)middle, near[] = {at, nextafterf(at, 0), nextafterf(at, INFINITY)};
                x[i] = near[i % 3] * (i / 3 % 2 ? -1.0f : 1.0f) / scale;
                if (i % 13 == 0) x[i] = 40 * value(i);
            }
            x[0] = NAN, x[3] = -NAN, x[N] = 1e-41f, x[2 * N + 5] = -INFINITY, x[ROWS * N - 1] = 3e38f,
            x[N + 1] = -0.0f;
            for (int s = 0; s < count; s++) {
                quantized(&sets[s], x, formats[k], scale, &r);
                for (int i = 0; i < ROWS * N; i++)
                    if (r.codes[i] != f8_encode(f, x[i] * scale) ||
                        r.codes_t[i % N * LD + i / N] != r.codes[i])
                        fail_msg("%s %s: %.9g times %g has code 0x%02x, transposed 0x%02x; expected 0x%02x",
                                 sets[s].name, dtype_name(formats[k]), (double)x[i], (double)scale,
                                 r.codes[i], r.codes_t[i % N * LD + i / N], f8_encode(f, x[i] * scale));
                for (int j = 0; j < N; j++)
                    for (int i = ROWS; i < LD; i++) assert_int_equal(r.codes_t[j * LD + i], 0);
                assert_true(isnan(r.amax));
            }
        }
}

/* Of rows that the device has counted (struct quantize_args): what lies behind them is neither read nor written. */
static void rows_that_do_not_exist_are_left_alone(void **state)
{
    (void)state;
    static float x[ROWS * N];
    static uint8_t codes[ROWS * N];
    static struct result whole;
    struct ops sets[SETS];
    const int count = all_sets(sets);
    for (int s = 0; s < count; s++)
        for (int k = 0; k < 2; k++)
            for (int32_t exist = 0; exist <= ROWS; exist += 7) {
                const float scale = 4, inverse = 0.25f;
                float amax = 0, expected = 0;
                struct quantize_args a = {.x = x,
                                          .q = {codes, NULL, &scale, &inverse, &amax, formats[k], false},
                                          .rows = ROWS,
                                          .n = N,
                                          .dt = DTYPE_F32,
                                          .count = &exist};
                for (int i = 0; i < ROWS * N; i++) x[i] = value(i);
                quantized(&sets[s], x, formats[k], scale, &whole);
                for (int i = 0; i < exist * N; i++) expected = fmaxf(expected, fabsf(x[i]));
                for (int i = exist * N; i < ROWS * N; i++) x[i] = i % 3 ? NAN : INFINITY;
                memset(codes, 0xEE, sizeof codes);
                assert_int_equal(sets[s].quantize(&a, NULL), STATUS_OK);
                assert_memory_equal(codes, whole.codes, (size_t)exist * N);
                for (int i = exist * N; i < ROWS * N; i++) assert_int_equal(codes[i], 0xEE);
                assert_true(amax == expected);
                amax = 0, a.q.codes = NULL;
                assert_int_equal(sets[s].quantize(&a, NULL), STATUS_OK);
                assert_true(amax == expected);
            }
}

static float current_scale(const struct ops *o, float amax, int margin, dtype dt)
{
    float scale = 3, inverse = 3;
    struct step_scalars s = {.step = 1};
    const struct fp8_scales_args a = {.scaling = FP8_CURRENT,
                                      .amax = &amax,
                                      .scale = &scale,
                                      .scale_inv = &inverse,
                                      .count = 1,
                                      .margin = margin,
                                      .scalars = &s,
                                      .dt = dt};
    assert_int_equal(o->fp8_scales(&a, NULL), STATUS_OK);
    assert_true(amax == 0 && scale * inverse == 1 && s.fp8_overflow == 0);
    return scale;
}

static void a_tensor_times_a_power_of_two_has_the_same_codes(void **state)
{
    (void)state;
    static float x[ROWS * N];
    static struct result one, many;
    struct ops sets[SETS];
    const int count = all_sets(sets);
    for (int s = 0; s < count; s++)
        for (int n = -90; n <= 90; n += 30) {
            const dtype dt = formats[n / 30 & 1];
            for (int i = 0; i < ROWS * N; i++) x[i] = value(i);
            quantized(&sets[s], x, dt, 1, &one);
            const float scale = current_scale(&sets[s], one.amax, 1, dt);
            quantized(&sets[s], x, dt, scale, &one);
            for (int i = 0; i < ROWS * N; i++) x[i] *= ldexpf(1, n);
            quantized(&sets[s], x, dt, 1, &many);
            assert_true(many.amax == one.amax * ldexpf(1, n));
            assert_true(current_scale(&sets[s], many.amax, 1, dt) == scale * ldexpf(1, -n));
            quantized(&sets[s], x, dt, scale * ldexpf(1, -n), &many);
            assert_memory_equal(one.codes, many.codes, sizeof one.codes);
            assert_memory_equal(one.codes_t, many.codes_t, sizeof one.codes_t);
        }
}

static void a_scale_is_the_largest_that_leaves_the_margin(void **state)
{
    (void)state;
    static const float amaxes[] = {1,      1.75f,     1.7500001f,       448,    448.00003f, 57344,   57345,
                                   3,      0x1p-126f, 0x1.fffffep-100f, 1e-20f, 1e20f,      6.1e-5f, 0x1p100f,
                                   447.9f, 2};
    struct ops sets[SETS];
    const int count = all_sets(sets);
    for (int s = 0; s < count; s++)
        for (int k = 0; k < 2; k++)
            for (size_t i = 0; i < sizeof amaxes / sizeof amaxes[0]; i++)
                for (int margin = 0; margin <= 6; margin += 3) {
                    const double scale = (double)current_scale(&sets[s], amaxes[i], margin, formats[k]);
                    const double most = (double)amaxes[i] * ldexp(scale, margin);
                    int e;
                    assert_true(frexp(scale, &e) == 0.5 && most <= fp8_max(formats[k]));
                    assert_true(scale == 0x1p126 || 2 * most > fp8_max(formats[k]));
                }
    assert_true(current_scale(&sets[0], 0x1p-149f, 0, DTYPE_F8_E4M3) == 0x1p126f);
}

/* Of 16 steps the largest counts. A step that is not finite leaves no trace but its count, one of zeros none in the scale. */
static void delayed_scaling_remembers_sixteen_steps(void **state)
{
    (void)state;
    struct ops sets[SETS];
    const int count = all_sets(sets);
    for (int s = 0; s < count; s++) {
        float history[FP8_HISTORY] = {0}, scale = 1, inverse = 1, amax, all[2][1];
        struct step_scalars scalars = {0};
        for (int step = 0; step < 60; step++) {
            const float before = scale;
            scalars.step = (uint64_t)step;
            amax = step == 20 ? 1000 : step == 50 ? 0 : 1;
            all[0][0] = amax / 2, all[1][0] = amax;
            if (step == 45) all[0][0] = NAN;
            const struct fp8_scales_args a = {.scaling = FP8_DELAYED,
                                              .amax = &amax,
                                              .all = all[0],
                                              .history = history,
                                              .scale = &scale,
                                              .scale_inv = &inverse,
                                              .count = 1,
                                              .ranks = 2,
                                              .all_stride = 1,
                                              .margin = 3,
                                              .scalars = &scalars,
                                              .dt = DTYPE_F8_E4M3};
            assert_int_equal(sets[s].fp8_scales(&a, NULL), STATUS_OK);
            const bool seen = step >= 20 && step < 36;
            assert_true(amax == 0 && scale == (seen ? 0x1p-5f : 0x1p5f) && inverse == 1 / scale);
            assert_true(step != 45 || scale == before);
            assert_true(scalars.fp8_overflow == (step >= 45));
        }
        for (int i = 0; i < FP8_HISTORY; i++) assert_true(history[i] == (i == 50 % FP8_HISTORY ? 0 : 1));
    }
}

/* The worst row has a single element: it becomes sqrt(d) times its weight. */
static void a_norm_within_its_bound_does_not_saturate(void **state)
{
    (void)state;
    enum { D = 96 };
    struct ops sets[SETS];
    const int count = all_sets(sets);
    for (int s = 0; s < count; s++)
        for (int shift = 0; shift < 2; shift++) {
            float x[D] = {0}, w[D], y[D], scale = 0, inverse = 0, amax = 0;
            uint8_t codes[D];
            for (int i = 0; i < D; i++) w[i] = value(i) * 3;
            const struct fp8_bound_args b = {.w = w,
                                             .scale = &scale,
                                             .scale_inv = &inverse,
                                             .d = D,
                                             .shift = shift,
                                             .dt = DTYPE_F32,
                                             .codes = DTYPE_F8_E4M3};
            assert_int_equal(sets[s].fp8_bound(&b, NULL), STATUS_OK);
            for (int i = 0; i < D; i++) {
                const struct rmsnorm_fwd_args n = {
                    .x = x,
                    .w = w,
                    .y = y,
                    .rows = 1,
                    .d = D,
                    .shift = shift,
                    .q = {codes, NULL, &scale, &inverse, &amax, DTYPE_F8_E4M3, false},
                    .dt = DTYPE_F32};
                memset(x, 0, sizeof x);
                x[i] = 1e6f;
                assert_int_equal(sets[s].rmsnorm_fwd(&n, NULL), STATUS_OK);
            }
            assert_true(amax * scale <= 448 && 2 * 1.02f * amax * scale > 448);
        }
}

enum { M = 37, COLS = 48, DEPTH = 1584 };
struct product {
    uint8_t a[M * DEPTH], b[COLS * DEPTH];
    bf16 a16[M * DEPTH], b16[COLS * DEPTH], bias[COLS];
    float scale_a, scale_b;
    dtype dt_a, dt_b;
};
static void product_fill(struct product *p, dtype dt_a, dtype dt_b)
{
    p->dt_a = dt_a, p->dt_b = dt_b;
    for (int i = 0; i < M * DEPTH; i++) {
        p->a[i] = f8_encode(format_of(dt_a), 100 * value(i));
        p->a16[i] = bf16_from_f32(f8_decode(format_of(dt_a), p->a[i]));
    }
    for (int i = 0; i < COLS * DEPTH; i++) {
        p->b[i] = f8_encode(format_of(dt_b), 100 * value(i + 5));
        p->b16[i] = bf16_from_f32(f8_decode(format_of(dt_b), p->b[i]));
    }
    for (int i = 0; i < COLS; i++) p->bias[i] = bf16_from_f32(value(i));
}
static void multiply(const struct ops *o, const struct product *p, bool fp8, int64_t k, void *c, dtype cdt,
                     enum accum accum, const bf16 *bias)
{
    struct gemm_args g = {.a = operand_at(p->a16, DTYPE_BF16, false),
                          .b = operand_at(p->b16, DTYPE_BF16, true),
                          .c = c,
                          .epilogue = {.kind = bias ? EPILOGUE_BIAS : EPILOGUE_NONE, .bias = bias},
                          .m = M,
                          .n = COLS,
                          .k = k,
                          .accum = accum,
                          .cdt = cdt};
    if (fp8) {
        g.a = operand_codes(p->a, p->dt_a, &p->scale_a, false);
        g.b = operand_codes(p->b, p->dt_b, &p->scale_b, true);
    }
    assert_int_equal(o->gemm(&g, NULL), STATUS_OK);
}

/* Products of codes are exact and powers of two commute with rounding: the bits are those of the plain GEMM. */
static void an_fp8_gemm_has_the_bits_of_the_gemm_of_its_values(void **state)
{
    (void)state;
    static struct product p;
    static float want[M * COLS], got[M * COLS];
    struct ops sets[SETS];
    const int count = all_sets(sets);
    static const int exponents[][2] = {{0, 0}, {-126, 126}, {126, -126}, {100, -95}, {-7, 3}, {-60, -20}};
    for (int s = 0; s < count; s++)
        for (size_t e = 0; e < sizeof exponents / sizeof exponents[0]; e++) {
            const int64_t k = e % 2 ? 80 : DEPTH;
            product_fill(&p, formats[e % 2], formats[e / 2 % 2 && e % 2 == 0]);
            p.scale_a = ldexpf(1, exponents[e][0]), p.scale_b = ldexpf(1, exponents[e][1]);
            multiply(&sets[s], &p, false, k, want, DTYPE_F32, ACCUM_STORE, NULL);
            multiply(&sets[s], &p, true, k, got, DTYPE_F32, ACCUM_STORE, NULL);
            const float both = ldexpf(1, exponents[e][0] + exponents[e][1]);
            for (int i = 0; i < M * COLS; i++) {
                if (got[i] != want[i] * both)
                    fail_msg("%s, scales 2^%d and 2^%d: [%d] is %.9g, expected %.9g", sets[s].name,
                             exponents[e][0], exponents[e][1], i, (double)got[i], (double)(want[i] * both));
            }
            if (both != 1) continue;
            for (int i = 0; i < M * COLS; i++) want[i] = got[i] = value(i);
            multiply(&sets[s], &p, false, k, want, DTYPE_F32, ACCUM_ADD, NULL);
            multiply(&sets[s], &p, true, k, got, DTYPE_F32, ACCUM_ADD, NULL);
            assert_memory_equal(want, got, sizeof got);
            multiply(&sets[s], &p, false, k, want, DTYPE_BF16, ACCUM_STORE, p.bias);
            multiply(&sets[s], &p, true, k, got, DTYPE_BF16, ACCUM_STORE, p.bias);
            assert_memory_equal(want, got, sizeof got / 2);
        }
}

static void a_code_that_is_not_finite_spoils_its_row_alone(void **state)
{
    (void)state;
    static struct product p;
    static float c[M * COLS];
    struct ops sets[SETS];
    const int count = all_sets(sets);
    for (int s = 0; s < count; s++)
        for (int k = 0; k < 2; k++) {
            product_fill(&p, formats[k], DTYPE_F8_E4M3);
            p.scale_a = 0x1p-9f, p.scale_b = 0x1p3f;
            p.a[20 * DEPTH + 77] = 0x7F;
            p.a[35 * DEPTH] = 0xFC; /* -320 in E4M3, -Inf in E5M2 */
            multiply(&sets[s], &p, true, DEPTH, c, DTYPE_F32, ACCUM_STORE, NULL);
            for (int i = 0; i < M * COLS; i++) {
                const int row = i / COLS;
                assert_true(isnan(c[i]) == (row == 20) || (row == 35 && k == 1));
                if (row == 35) assert_true(isfinite(c[i]) == (k == 0));
            }
        }
}

int main(void)
{
    parallel_threads_set(0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_the_scaled_values_rounded),
        cmocka_unit_test(rows_that_do_not_exist_are_left_alone),
        cmocka_unit_test(a_tensor_times_a_power_of_two_has_the_same_codes),
        cmocka_unit_test(a_scale_is_the_largest_that_leaves_the_margin),
        cmocka_unit_test(delayed_scaling_remembers_sixteen_steps),
        cmocka_unit_test(a_norm_within_its_bound_does_not_saturate),
        cmocka_unit_test(an_fp8_gemm_has_the_bits_of_the_gemm_of_its_values),
        cmocka_unit_test(a_code_that_is_not_finite_spoils_its_row_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
