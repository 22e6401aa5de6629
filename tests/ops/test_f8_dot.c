/* The model of Hopper's FP8 tensor core (f8_dot.h): what it keeps and drops, worked out by hand, and its errors for
 * normal numbers. */
#include "f8_dot.h"
#include "base/rng.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { MOST = 4096 };

static float dot(const float *a, const float *b, int k, int promote)
{
    static uint8_t codes[2][MOST];
    for (int i = 0; i < k; i++) {
        codes[0][i] = f8_encode(f8_e5m2, a[i]), codes[1][i] = f8_encode(f8_e4m3, b[i]);
        assert_true(isnan(a[i]) || isinf(a[i]) || f8_decode(f8_e5m2, codes[0][i]) == a[i]);
        if (isinf(a[i])) codes[0][i] = a[i] < 0 ? 0xFC : 0x7C;
    }
    const struct f8_dot d = {f8_e5m2, f8_e4m3, codes[0], codes[1], k, promote};
    return f8_dot(&d);
}

static void terms_are_cut_at_thirteen_bits_below_the_largest(void **state)
{
    (void)state;
    const float one[] = {1, 1, 1, 1};
    assert_true(dot((float[]){1, 0x1p-13f}, one, 2, 0) == 1 + 0x1p-13f);
    assert_true(dot((float[]){1, 0x1p-14f}, one, 2, 0) == 1);
    assert_true(dot((float[]){1, -0x1p-14f}, one, 2, 0) == 1); /* toward zero, each term by itself */
    assert_true(dot((float[]){1, 0x1p-14f, 0x1p-14f}, one, 3, 0) == 1);
    assert_true(dot((float[]){1.75f, 1.5f, 0x1p-13f}, one, 3, 0) == 3.25f); /* the sum has 14 bits */
    assert_true(dot((float[]){-1.75f, -1.5f, -0x1p-13f}, one, 3, 0) == -3.25f);
    assert_true(dot((float[]){1, -1}, one, 2, 0) == 0 && !signbit(dot((float[]){-0.0f, -1, 1}, one, 3, 0)));
    /* the exponent of a product is that of its factors, although 1.5 1.5 is above 2 */
    assert_true(dot((float[]){1.5f, 0x1p-13f}, (float[]){1.5f, 1}, 2, 0) == 2.25f);
    assert_true(dot((float[]){1.5f, 0x1.8p-13f}, (float[]){1.5f, 1}, 2, 0) == 2.25f);
}

static void promotion_starts_anew(void **state)
{
    (void)state;
    float a[96] = {0}, b[96];
    for (int i = 0; i < 96; i++) b[i] = 1;
    a[0] = 1, a[32] = 0x1p-14f, a[64] = 0x1p-15f;
    assert_true(dot(a, b, 96, 0) == 1);
    assert_true(dot(a, b, 96, 32) == 1 + 0x1p-14f + 0x1p-15f);
    assert_true(dot(a, b, 96, 64) == 1 + 0x1p-15f);
    assert_true(dot(a, b, 48, 32) == 1 + 0x1p-14f);
}

static void what_is_not_finite_goes_on(void **state)
{
    (void)state;
    const float one[] = {1, 1}, none[] = {0, 1};
    assert_true(dot((float[]){INFINITY, 3}, one, 2, 0) == INFINITY);
    assert_true(dot((float[]){-INFINITY, 3}, one, 2, 128) == -INFINITY);
    assert_true(isnan(dot((float[]){INFINITY, -INFINITY}, one, 2, 0)));
    assert_true(isnan(dot((float[]){INFINITY, 3}, none, 2, 0)));
    assert_true(isnan(dot((float[]){NAN, 3}, none, 2, 0)));
}

/* Four times the uniform draws of base/rng.h: the deviation of 256 sums is within 15 % of that of many. */
static void errors_of_normal_numbers_are_those_of_the_table(void **state)
{
    (void)state;
    enum { DOTS = 256 };
    static uint8_t a[MOST], b[MOST];
    for (int promote = 0; promote <= 128; promote += 128) {
        double error2 = 0, result2 = 0, bias = 0;
        for (int t = 0; t < DOTS; t++) {
            double exact = 0;
            for (int i = 0; i < MOST; i++) {
                const struct rng_block r = rng_at(7, RNG_TEST, (uint64_t)t, (uint64_t)i);
                a[i] = f8_encode(f8_e4m3, (float)(((double)r.u[0] + r.u[1] - r.u[2] - r.u[3]) * 0x1p-27));
                b[i] = f8_encode(f8_e4m3, (float)(((double)r.u[0] - r.u[1] + r.u[2] - r.u[3]) * 0x1p-27));
                exact += (double)f8_decode(f8_e4m3, a[i]) * (double)f8_decode(f8_e4m3, b[i]);
            }
            const struct f8_dot d = {f8_e4m3, f8_e4m3, a, b, MOST, promote};
            const double error = (double)f8_dot(&d) - exact;
            error2 += error * error, result2 += exact * exact, bias += error;
        }
        const double rms = sqrt(error2 / result2), table = f8_dot_rms(promote ? promote : MOST);
        if (!(rms > table / 1.5 && rms < table * 1.5))
            fail_msg("promotion %d: rms %.3g, the table has %.3g", promote, rms, table);
        assert_true(fabs(bias) < 4 * sqrt(error2)); /* signs are random: no bias */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(terms_are_cut_at_thirteen_bits_below_the_largest),
        cmocka_unit_test(promotion_starts_anew),
        cmocka_unit_test(what_is_not_finite_goes_on),
        cmocka_unit_test(errors_of_normal_numbers_are_those_of_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
