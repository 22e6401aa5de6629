/* skips: which batch a step reads when some are left out, against a list that is really shortened. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "data/load/skips.h"

#include <string.h>

enum { BATCHES = 400, ROUNDS = 300 };

static void nothing_left_out(void **state)
{
    (void)state;
    struct skips s = {0};
    assert_int_equal(skips_batch(NULL, 7), 7);
    assert_int_equal(skips_batch(&s, 7), 7);
}

static void as_a_shortened_list(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        int64_t list[BATCHES];
        int64_t count = BATCHES;
        struct skips s = {0};
        for (int64_t i = 0; i < count; i++) list[i] = i;
        for (int k = 0; k < 12; k++) {
            const uint32_t r = rng_at(5, RNG_TEST, (uint64_t)round, (uint64_t)k).u[0];
            const int64_t from = r % 150, to = from + 1 + (r >> 10) % 9;
            assert_int_equal(skips_add(&s, from, to), STATUS_OK);
            memmove(list + from, list + to, (size_t)(count - to) * sizeof list[0]);
            count -= to - from;
            for (int64_t step = 0; step < count; step++) assert_int_equal(skips_batch(&s, step), list[step]);
            for (int i = 0; i < s.count; i++) {
                assert_true(s.list[i].to > s.list[i].from);
                assert_true(i == 0 || s.list[i].from > s.list[i - 1].to);
            }
        }
    }
}

static void too_many(void **state)
{
    (void)state;
    struct skips s = {0};
    for (int i = 0; i < SKIPS_MAX; i++) assert_int_equal(skips_add(&s, 2 * i, 2 * i + 1), STATUS_OK);
    assert_int_equal(s.count, SKIPS_MAX);
    assert_int_equal(skips_add(&s, 9000, 9001), STATUS_CONFIG);
    assert_int_equal(s.count, SKIPS_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_left_out),
                                       cmocka_unit_test(as_a_shortened_list), cmocka_unit_test(too_many)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
