/* Goal: of the paths that serve, the fastest at the nearest size is taken, all ranks take the same one, and what is said of it is true.
 * Method: tables made up by hand, and random ones of several ranks. */
#include "comm/gpu/tuner.h"
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

enum { KIB = 1 << 10, MIB = 1 << 20, RANKS = 4 };
#define BIT(path) (1U << PATH_##path)

/* Little up to 16 KiB, then 16 blocks up to 1 MiB, 64 up to 64 MiB, engines. */
static struct paths made_up(void)
{
    struct paths t = {.timed = true};
    for (int op = 0; op < PATHS_OP_COUNT; op++)
        for (int size = 0; size < PATHS_SIZES; size++) {
            double *us = t.us[op][size];
            us[PATH_ENGINES] = size > 8 ? 90 : 190;
            us[PATH_LITTLE] = size > 3 ? 0 : size > 2 ? 150 : 50;
            us[PATH_OWN_16] = size > 5 ? 180 : 100;
            us[PATH_OWN_32] = 170;
            us[PATH_OWN_64] = size > 5 ? 95 : 0; /* a twin */
        }
    return t;
}

static void the_nearest_size_decides(void **state)
{
    const struct paths t = made_up();
    const struct {
        size_t bytes;
        enum path path;
    } rows[] = {{1, PATH_LITTLE},          {KIB, PATH_LITTLE},
                {16 * KIB, PATH_LITTLE},   {32 * KIB - 1, PATH_LITTLE},
                {32 * KIB, PATH_OWN_16},   {2 * MIB - 1, PATH_OWN_16},
                {2 * MIB, PATH_OWN_64},    {64 * MIB, PATH_OWN_64},
                {128 * MIB, PATH_ENGINES}, {(size_t)4096 * MIB, PATH_ENGINES}};
    (void)state;
    assert_int_equal(paths_bytes(0), PATHS_BYTES_MIN);
    assert_int_equal(paths_bytes(PATHS_SIZES - 1), PATHS_BYTES_MAX);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(paths_choose(&t, PATHS_ALL_GATHER, rows[i].bytes, PATHS_ALL), rows[i].path);
}

static void what_does_not_serve_is_not_taken(void **state)
{
    const struct paths t = made_up(), none = {.timed = false};
    (void)state;
    assert_int_equal(paths_choose(&t, PATHS_ALL_TO_ALL, KIB, BIT(ENGINES)), PATH_ENGINES);
    assert_int_equal(paths_choose(&t, PATHS_ALL_TO_ALL, KIB, BIT(ENGINES) | BIT(OWN_32)), PATH_OWN_32);
    assert_int_equal(paths_choose(&t, PATHS_ALL_TO_ALL, 8 * MIB, BIT(ENGINES) | BIT(OWN_16)), PATH_OWN_16);
    /* what was not timed comes last, but before nothing */
    assert_int_equal(paths_choose(&t, PATHS_ALL_TO_ALL, MIB, BIT(LITTLE) | BIT(OWN_32)), PATH_OWN_32);
    assert_int_equal(paths_choose(&t, PATHS_ALL_TO_ALL, MIB, BIT(LITTLE)), PATH_LITTLE);
    assert_int_equal(paths_choose(&none, PATHS_ALL_TO_ALL, MIB, PATHS_ALL), PATH_ENGINES);
}

static void all_ranks_choose_alike(void **state)
{
    struct paths own[RANKS] = {0}, common[RANKS] = {0};
    (void)state;
    for (int r = 0; r < RANKS; r++)
        for (int op = 0; op < PATHS_OP_COUNT; op++)
            for (int size = 0; size < PATHS_SIZES; size++)
                for (int p = 0; p < PATH_COUNT; p++)
                    own[r].us[op][size][p] =
                        1 + rng_uniform(11, RNG_TEST, (uint64_t)r, (uint64_t)((op * 16 + size) * 16 + p));
    for (int r = 0; r < RANKS; r++)
        for (int k = 0; k < RANKS; k++) paths_slowest(&common[r], &own[(r + k) % RANKS]);
    for (int r = 1; r < RANKS; r++) assert_memory_equal(&common[r], &common[0], sizeof common[0]);
    for (int r = 0; r < RANKS; r++)
        for (int p = 0; p < PATH_COUNT; p++)
            assert_true(common[0].us[PATHS_ALL_REDUCE][4][p] >= own[r].us[PATHS_ALL_REDUCE][4][p]);
}

static void the_choice_is_told(void **state)
{
    const struct paths t = made_up();
    char text[PATHS_TEXT];
    (void)state;
    paths_text(&t, text);
    assert_non_null(
        strstr(text, "all-gather: little to 16.00 KiB, own 16 to 1.00 MiB, own 64 to 64.00 MiB, engines;"));
    assert_non_null(strstr(text, "reduce-scatter of bf16: "));
    assert_int_equal(paths_blocks(PATH_OWN_32), 32);
    assert_int_equal(paths_blocks(PATH_LITTLE), 0);
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
