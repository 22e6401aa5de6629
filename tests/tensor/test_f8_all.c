/* Of all 2^32 floats each is encoded to the nearest FP8 code: codes never fall as floats rise. tests/tensor/test_f8.c settles where
 * they change. */
#include "tensor/f8.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

/* All 2^31 magnitudes. A wrong code inside a chunk that begins and ends with the same code would be a fall. */
static void every_float_rises(void **state)
{
    (void)state;
    static const struct f8_format formats[] = {{3, -6, 0x7E}, {2, -14, 0x7B}};
    const uint32_t infinity = 0x7f800000u;
    for (int k = 0; k < 2; k++) {
        const struct f8_format f = formats[k];
        int codes = 0;
        uint8_t last = 0;
        for (uint32_t bits = 0; bits <= infinity; bits++) {
            float x;
            memcpy(&x, &bits, sizeof x);
            const uint8_t code = f8_encode(f, x);
            if (code == last) continue;
            assert_int_equal(code, last + 1);
            last = code, codes++;
        }
        assert_int_equal(codes, f.max);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_float_rises)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
