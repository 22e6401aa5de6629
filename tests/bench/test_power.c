/* The power meter beside a stand-in for the driver's library (standin_nvml.c), and what it says where there is nothing to read. */
#include "dev/power.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static void rest(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

/* A busy machine may stop the thread between counter and clock; the bound, a third, is 130 ms of that. */
static void test_draw(void **state)
{
    (void)state;
    struct power_meter *m;
    struct power_draw d;
    assert_int_equal(power_open_at(&m, "0000:18:00.0"), STATUS_OK);
    for (int round = 0; round < 2; round++) { /* the second knows nothing of the first */
        power_begin(m);
        rest(400);
        power_end(m, &d);
        assert_true(d.watts > 430 && d.watts < 960);
        assert_true(d.limit_watts == 700);
        assert_true(d.sm_mhz == 1400);
        assert_true(d.capped > 0.3 && d.capped < 0.7);
    }
    power_end(m, &d); /* nothing was begun */
    assert_true(d.watts == 0 && d.sm_mhz == 0);
    power_begin(m);
    power_close(m); /* ends it */
}

static void test_refusals(void **state)
{
    (void)state;
    struct power_meter *m;
    struct power_draw d;
    struct dev cpu;
    assert_int_equal(power_open_at(&m, "0000:20:00.0"), STATUS_DEVICE);
    assert_non_null(strstr(status_message(), "0000:20:00.0"));
    assert_null(m);
    assert_int_equal(power_open_at(&m, "0000:19:00.0"), STATUS_DEVICE);
    assert_non_null(strstr(status_message(), "no energy counter"));
    assert_int_equal(dev_open(&cpu, DEV_CPU), STATUS_OK);
    assert_int_equal(power_open(&m, &cpu), STATUS_DEVICE);
    assert_non_null(strstr(status_message(), "not a GPU"));
    power_begin(NULL);
    power_end(NULL, &d);
    assert_true(d.watts == 0 && d.limit_watts == 0);
    power_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_draw), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
