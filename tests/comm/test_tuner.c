/* Goal: of the paths that serve, the fastest at the nearest size is taken, all ranks take the same one, and what is said of it is true.
 * Method: tables made up by hand, and random ones of several ranks. */
#include "comm/gpu/tuner.h"
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

enum { KIB = 1 << 10, MIB = 1 << 20, RANKS = 4 };
#define BIT(path) (1U << TUNER_##path)

/* Little up to 16 KiB, then 16 blocks up to 1 MiB, 64 up to 64 MiB, engines. */
static struct tuner made_up(void)
{
    struct tuner t = {.timed = true};
    for (int op = 0; op < TUNER_OP_COUNT; op++)
        for (int size = 0; size < TUNER_SIZES; size++) {
            double *us = t.us[op][size];
            us[TUNER_COPY_ENGINE] = size > 8 ? 90 : 190;
            us[TUNER_LL] = size > 3 ? 0 : size > 2 ? 150 : 50;
            us[TUNER_KERNEL_16] = size > 5 ? 180 : 100;
            us[TUNER_KERNEL_32] = 170;
            us[TUNER_KERNEL_64] = size > 5 ? 95 : 0; /* a twin */
        }
    return t;
}

static void the_nearest_size_decides(void **state)
{
    const struct tuner t = made_up();
    const struct {
        size_t bytes;
        enum tuner_algo path;
    } rows[] = {{1, TUNER_LL},
                {KIB, TUNER_LL},
                {16 * KIB, TUNER_LL},
                {32 * KIB - 1, TUNER_LL},
                {32 * KIB, TUNER_KERNEL_16},
                {2 * MIB - 1, TUNER_KERNEL_16},
                {2 * MIB, TUNER_KERNEL_64},
                {64 * MIB, TUNER_KERNEL_64},
                {128 * MIB, TUNER_COPY_ENGINE},
                {(size_t)4096 * MIB, TUNER_COPY_ENGINE}};
    (void)state;
    assert_int_equal(tuner_bytes(0), TUNER_BYTES_MIN);
    assert_int_equal(tuner_bytes(TUNER_SIZES - 1), TUNER_BYTES_MAX);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(tuner_choose(&t, TUNER_ALL_GATHER, rows[i].bytes, TUNER_ALL), rows[i].path);
}

static void what_does_not_serve_is_not_taken(void **state)
{
    const struct tuner t = made_up(), none = {.timed = false};
    (void)state;
    assert_int_equal(tuner_choose(&t, TUNER_ALL_TO_ALL, KIB, BIT(COPY_ENGINE)), TUNER_COPY_ENGINE);
    assert_int_equal(tuner_choose(&t, TUNER_ALL_TO_ALL, KIB, BIT(COPY_ENGINE) | BIT(KERNEL_32)),
                     TUNER_KERNEL_32);
    assert_int_equal(tuner_choose(&t, TUNER_ALL_TO_ALL, 8 * MIB, BIT(COPY_ENGINE) | BIT(KERNEL_16)),
                     TUNER_KERNEL_16);
    /* what was not timed comes last, but before nothing */
    assert_int_equal(tuner_choose(&t, TUNER_ALL_TO_ALL, MIB, BIT(LL) | BIT(KERNEL_32)), TUNER_KERNEL_32);
    assert_int_equal(tuner_choose(&t, TUNER_ALL_TO_ALL, MIB, BIT(LL)), TUNER_LL);
    assert_int_equal(tuner_choose(&none, TUNER_ALL_TO_ALL, MIB, TUNER_ALL), TUNER_COPY_ENGINE);
}

static void all_ranks_choose_alike(void **state)
{
    struct tuner own[RANKS] = {0}, common[RANKS] = {0};
    (void)state;
    for (int r = 0; r < RANKS; r++)
        for (int op = 0; op < TUNER_OP_COUNT; op++)
            for (int size = 0; size < TUNER_SIZES; size++)
                for (int p = 0; p < TUNER_ALGO_COUNT; p++)
                    own[r].us[op][size][p] =
                        1 + rng_uniform(11, RNG_TEST, (uint64_t)r, (uint64_t)((op * 16 + size) * 16 + p));
    for (int r = 0; r < RANKS; r++)
        for (int k = 0; k < RANKS; k++) tuner_slowest(&common[r], &own[(r + k) % RANKS]);
    for (int r = 1; r < RANKS; r++) assert_memory_equal(&common[r], &common[0], sizeof common[0]);
    for (int r = 0; r < RANKS; r++)
        for (int p = 0; p < TUNER_ALGO_COUNT; p++)
            assert_true(common[0].us[TUNER_ALL_REDUCE][4][p] >= own[r].us[TUNER_ALL_REDUCE][4][p]);
}

static void the_choice_is_told(void **state)
{
    const struct tuner t = made_up();
    char text[TUNER_TEXT];
    (void)state;
    tuner_text(&t, text);
    assert_non_null(strstr(
        text, "all-gather: ll to 16.00 KiB, kernel 16 to 1.00 MiB, kernel 64 to 64.00 MiB, copy engine;"));
    assert_non_null(strstr(text, "reduce-scatter of bf16: "));
    assert_int_equal(tuner_blocks(TUNER_KERNEL_32), 32);
    assert_int_equal(tuner_blocks(TUNER_LL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_nearest_size_decides),
        cmocka_unit_test(what_does_not_serve_is_not_taken),
        cmocka_unit_test(all_ranks_choose_alike),
        cmocka_unit_test(the_choice_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
