/* The median of a run's steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

#include "train/forecast.h"

static void the_first_steps_do_not_count(void **state)
{
    (void)state;
    struct forecast f = {0};
    assert_true(isnan(forecast_measured(&f)));
    for (int i = 0; i < FORECAST_SKIP; i++) forecast_step(&f, 100);
    assert_true(isnan(forecast_measured(&f)));
    forecast_step(&f, 3);
    assert_true(forecast_measured(&f) == 3);
    forecast_step(&f, 1);
    assert_true(forecast_measured(&f) == 2);
    forecast_step(&f, 50);
    assert_true(forecast_measured(&f) == 3);
}

static void the_latest_steps_count(void **state)
{
    (void)state;
    struct forecast f = {0};
    for (int i = 0; i < FORECAST_SKIP + FORECAST_STEPS; i++) forecast_step(&f, 7);
    for (int i = 0; i < FORECAST_STEPS / 2; i++) forecast_step(&f, 1);
    assert_true(forecast_measured(&f) == 4); /* half of each */
    forecast_step(&f, 1);
    assert_true(forecast_measured(&f) == 1);
    for (int i = 0; i < 3 * FORECAST_STEPS; i++) forecast_step(&f, 2);
    assert_true(forecast_measured(&f) == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_steps_do_not_count),
        cmocka_unit_test(the_latest_steps_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
