/* Small floats, exhaustively: every one of the 65536 patterns of bf16 and f16, and the rounding between
 * neighbours. */
#include "tensor/dtype.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

/* The value of a small float by its definition: sign, exponent bits, mantissa bits. */
static double decoded(unsigned bits, int exponent_bits, int mantissa_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1,
        exponent = (int)(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    unsigned mantissa = bits & ((1u << mantissa_bits) - 1);
    double sign = bits >> (exponent_bits + mantissa_bits) ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1) return mantissa ? NAN : sign * INFINITY;
    double fraction = mantissa / (double)(1u << mantissa_bits);
    return sign * (exponent ? ldexp(1 + fraction, exponent - bias) : ldexp(fraction, 1 - bias));
}

static void assert_same(double got, double want)
{
    if (isnan(want)) {
        assert_true(isnan(got));
    } else {
        assert_true(got == want && !signbit(got) == !signbit(want));
    }
}

static void every_bf16_decodes_and_comes_back(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 65536; bits++) {
        bf16 h = (bf16)bits;
        double v = dtype_load(&h, 0, DTYPE_BF16);
        assert_same(v, decoded(bits, 8, 7));
        if (isnan(v)) {
            assert_true(isnan(bf16_to_f32(bf16_from_f32(bf16_to_f32(h)))));
        } else {
            assert_int_equal(bf16_from_f32(bf16_to_f32(h)), h);
        }
    }
}

static void every_f16_decodes(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 65536; bits++) {
        uint16_t h = (uint16_t)bits;
        assert_same(f16_to_f32(h), decoded(bits, 5, 10));
        assert_same(dtype_load(&h, 0, DTYPE_F16), decoded(bits, 5, 10));
    }
}

/* Between each finite bf16 and the next in magnitude: below the middle to the lower, above it to the upper, a
 * tie to the even one. The step above the largest finite value is infinity, by the same rule. */
static void rounding_to_bf16_is_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        if ((bits & 0x7f80) == 0x7f80) continue;
        uint32_t even = bits & 1 ? bits + 1 : bits;
        const struct {
            uint32_t f32, want;
        } points[] = {{bits << 16 | 0x0001, bits},
                      {bits << 16 | 0x7fff, bits},
                      {bits << 16 | 0x8000, even},
                      {bits << 16 | 0x8001, bits + 1},
                      {bits << 16 | 0xffff, bits + 1}};
        for (int i = 0; i < 5; i++) {
            float f;
            memcpy(&f, &points[i].f32, 4);
            assert_int_equal(bf16_from_f32(f), points[i].want);
        }
    }
}

static void nan_stays_nan_even_when_its_payload_is_cut(void **state)
{
    (void)state;
    static const uint32_t nans[] = {0x7f800001, 0x7f80ffff, 0xff800001, 0x7fffffff, 0xffffffff, 0x7fc00000};
    for (size_t i = 0; i < sizeof nans / sizeof nans[0]; i++) {
        float f;
        memcpy(&f, &nans[i], 4);
        bf16 h = bf16_from_f32(f);
        assert_true(isnan(bf16_to_f32(h)));
        assert_int_equal(h >> 15, nans[i] >> 31);
    }
    assert_int_equal(bf16_from_f32(INFINITY), 0x7f80);
    assert_int_equal(bf16_from_f32(-INFINITY), 0xff80);
}

static void store_and_load_are_inverse_for_every_float_type(void **state)
{
    (void)state;
    static const double values[] = {0, -0.0, 1, -1.5, 0x1p-126, 0x1p-133, 0x1.fep127, INFINITY, NAN};
    static const dtype types[] = {DTYPE_F64, DTYPE_F32, DTYPE_BF16};
    for (size_t t = 0; t < 3; t++)
        for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
            double room[3] = {0};
            dtype_store(room, 1, types[t], values[i]);
            assert_same(dtype_load(room, 1, types[t]), values[i]);
            assert_true(dtype_load(room, 0, types[t]) == 0 && dtype_load(room, 2, types[t]) == 0);
        }
}

static void names_and_sizes_agree_with_the_list(void **state)
{
    (void)state;
    for (int dt = 0; dt < DTYPE_COUNT; dt++) assert_int_equal(dtype_from_name(dtype_name((dtype)dt)), dt);
    assert_int_equal(dtype_from_name("F8"), -1);
    assert_int_equal(dtype_from_name(""), -1);
    assert_int_equal(dtype_bytes(DTYPE_F64), 8);
    assert_int_equal(dtype_bytes(DTYPE_BF16), 2);
    assert_int_equal(dtype_acc(DTYPE_BF16), DTYPE_F32);
    assert_int_equal(dtype_acc(DTYPE_F64), DTYPE_F64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bf16_decodes_and_comes_back),
        cmocka_unit_test(every_f16_decodes),
        cmocka_unit_test(rounding_to_bf16_is_to_nearest_even),
        cmocka_unit_test(nan_stays_nan_even_when_its_payload_is_cut),
        cmocka_unit_test(store_and_load_are_inverse_for_every_float_type),
        cmocka_unit_test(names_and_sizes_agree_with_the_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
