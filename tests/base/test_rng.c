/* The generator is Philox4x32-10 as published: the known answers of its authors' test vectors (Random123,
 * kat_vectors). The counter is (b low, b high, a low, a high) and the key is the seed with the stream mixed
 * in, so a seed is chosen that gives the key. */
#include "base/rng.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void philox_gives_the_published_answers(void **state)
{
    (void)state;
    static const struct {
        uint64_t b, a, key;
        uint32_t answer[4];
    } known[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x85a308d3243f6a88,
         0x0370734413198a2e,
         0x299f31d0a4093822,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uint64_t seed = known[i].key ^ RNG_TEST * 0x9E3779B97F4A7C15u;
        struct rng_block r = rng_at(seed, RNG_TEST, known[i].a, known[i].b);
        for (int j = 0; j < 4; j++) assert_int_equal(r.u[j], known[i].answer[j]);
    }
}

static void streams_counters_and_seeds_draw_apart(void **state)
{
    (void)state;
    const struct rng_block base = rng_at(7, RNG_INIT, 1, 2);
    const struct rng_block others[] = {rng_at(8, RNG_INIT, 1, 2), rng_at(7, RNG_SHUFFLE, 1, 2),
                                       rng_at(7, RNG_INIT, 2, 2), rng_at(7, RNG_INIT, 1, 3),
                                       rng_at(7, RNG_INIT, 2, 1)};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        for (int j = 0; j < 4; j++) assert_int_not_equal(base.u[j], others[i].u[j]);
    assert_int_equal(rng_at(7, RNG_INIT, 1, 2).u[3], base.u[3]);
}

/* With n draws a sample moment is within 5 of its standard deviations of the true one except for 6 cases in
 * ten million. The draws are fixed, so the test is stable. */
static void moments_are_those_of_the_distribution(void **state)
{
    (void)state;
    const int n = 200000;
    double sum = 0, square = 0, lowest = 1, highest = 0, normal = 0, normal2 = 0, normal4 = 0;
    for (int i = 0; i < n; i++) {
        double u = rng_uniform(3, RNG_TEST, 0, (uint64_t)i), z = rng_normal(3, RNG_TEST, 1, (uint64_t)i);
        assert_true(u >= 0 && u < 1);
        assert_true(isfinite(z));
        sum += u, square += u * u;
        lowest = fmin(lowest, u), highest = fmax(highest, u);
        normal += z, normal2 += z * z, normal4 += z * z * z * z;
    }
    assert_true(fabs(sum / n - 0.5) < 5 * sqrt(1.0 / 12 / n));
    assert_true(fabs(square / n - 1.0 / 3) < 5 * sqrt(4.0 / 45 / n));
    assert_true(lowest < 20.0 / n && highest > 1 - 20.0 / n);
    assert_true(fabs(normal / n) < 5 * sqrt(1.0 / n));
    assert_true(fabs(normal2 / n - 1) < 5 * sqrt(2.0 / n));
    assert_true(fabs(normal4 / n - 3) < 5 * sqrt(96.0 / n));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_answers),
        cmocka_unit_test(streams_counters_and_seeds_draw_apart),
        cmocka_unit_test(moments_are_those_of_the_distribution),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
