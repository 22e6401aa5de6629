/* FP8 codes: every code decodes to its definition and comes back. Floats are encoded to the nearest code, ties to even: codes never
 * fall as floats rise, and the two floats beside each middle between neighbours settle where they change. */
#include "tensor/f8.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static const struct f8_format formats[] = {{3, -6, 0x7E}, {2, -14, 0x7B}};
static const struct {
    float max, least, tie_to_zero;
} facts[] = {{448, 0x1p-9f, 0x1p-10f}, {57344, 0x1p-16f, 0x1p-17f}};

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
static uint32_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

static void every_code_decodes_to_its_definition(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        const struct f8_format f = formats[k];
        const int exponent_bits = 7 - f.mantissa, bias = (1 << (exponent_bits - 1)) - 1;
        for (unsigned code = 0; code < 256; code++) {
            const int e = (int)(code >> f.mantissa) & ((1 << exponent_bits) - 1);
            const double fraction = (code & ((1u << f.mantissa) - 1)) / (double)(1u << f.mantissa);
            const double v =
                (code >> 7 ? -1 : 1) * (e ? ldexp(1 + fraction, e - bias) : ldexp(fraction, 1 - bias));
            const float got = f8_decode(f, (uint8_t)code);
            const unsigned size = code & 0x7F;
            if (k == 0 ? size == 0x7F : size > 0x7C) {
                assert_true(isnan(got));
                assert_int_equal(f8_encode(f, got), 0x7F);
            } else if (k == 1 && size == 0x7C) {
                assert_true(isinf(got) && (got < 0) == (code >> 7));
                assert_int_equal(f8_encode(f, got), (code & 0x80) | f.max); /* saturates */
            } else {
                assert_true(got == (float)v && !signbit(got) == !signbit(v));
                assert_int_equal(f8_encode(f, got), code);
            }
        }
        assert_true(f8_decode(f, f.max) == facts[k].max);
        assert_true(f8_decode(f, 1) == facts[k].least);
    }
}

/* Between code c and c + 1 lies one float, the middle, that goes to the even one; all below go to c, all above to c + 1. Encoding
 * never falls as floats rise (encoding_rises), so the neighbours of each middle settle all floats. */
static void rounding_is_to_nearest_even(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        const struct f8_format f = formats[k];
        for (int c = 0; c < f.max; c++) {
            const float middle =
                (float)((f8_decode(f, (uint8_t)c) + (double)f8_decode(f, (uint8_t)(c + 1))) / 2);
            assert_int_equal(f8_encode(f, middle), c % 2 ? c + 1 : c);
            assert_int_equal(f8_encode(f, nextafterf(middle, 0)), c);
            assert_int_equal(f8_encode(f, nextafterf(middle, INFINITY)), c + 1);
            assert_int_equal(f8_encode(f, -middle), 0x80 | (c % 2 ? c + 1 : c));
        }
        assert_int_equal(f8_encode(f, facts[k].tie_to_zero), 0);
        assert_int_equal(f8_encode(f, nextafterf(facts[k].tie_to_zero, 1)), 1);
        assert_int_equal(f8_encode(f, INFINITY), f.max);
        assert_int_equal(f8_encode(f, -INFINITY), 0x80 | f.max);
        assert_int_equal(f8_encode(f, -NAN), 0x7F);
        assert_int_equal(f8_encode(f, float_of(0x7f800001u)), 0x7F);
    }
}

/* Codes depend on a float's upper bits and on whether the others are below, at or above their middle: every upper part with the
 * lower parts that tell these apart. tests/tensor/test_f8_all.c takes all 2^31 magnitudes. */
static void encoding_rises(void **state)
{
    (void)state;
    static const uint32_t lower[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    for (int k = 0; k < 2; k++) {
        const struct f8_format f = formats[k];
        int codes = 0;
        uint8_t last = 0;
        for (uint32_t upper = 0; upper < bits_of(INFINITY) >> 16; upper++)
            for (int i = 0; i < 6; i++) {
                const uint8_t code = f8_encode(f, float_of(upper << 16 | lower[i]));
                if (code == last) continue;
                assert_int_equal(code, last + 1);
                last = code, codes++;
            }
        assert_int_equal(codes, f.max);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_decodes_to_its_definition),
        cmocka_unit_test(rounding_is_to_nearest_even),
        cmocka_unit_test(encoding_rises),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
