/* Which cores are near a GPU, on a machine of two sockets of four cores, each with a GPU (fixtures/two_sockets.xml, which hwloc reads
 * instead of this machine). */
#include "dev/near.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include "temp.h"

static const char *first_gpu = "0000:18:00.0", *second_gpu = "0000:9a:00.0";

static cpu_set_t cores(int begin, int end)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = begin; i < end; i++) CPU_SET(i, &set);
    return set;
}

/* What near_keep leaves of [begin, end). */
static void keeps(const char *address, int begin, int end, int count, const char *list)
{
    char text[64];
    cpu_set_t set = cores(begin, end);
    assert_int_equal(near_keep(address, &set), count);
    assert_string_equal(near_text(&set, text, sizeof text), list);
}

static void the_cores_of_the_gpus_socket_are_kept(void **state)
{
    (void)state;
    keeps(first_gpu, 0, 8, 4, "0-3");
    keeps(second_gpu, 0, 8, 4, "4-7");
    keeps(second_gpu, 3, 6, 2, "4-5");
}

static void what_cannot_be_kept_stays(void **state)
{
    (void)state;
    keeps(second_gpu, 0, 4, 0, "0-3");     /* none of them is near */
    keeps("0000:55:00.0", 0, 8, 0, "0-7"); /* no such device */
    keeps("", 0, 8, 0, "0-7");
}

/* A rank of `ingot launch` may use the cores of all ranks: its own share may lie at the other socket. All its threads are bound. */
static void the_launchers_cores_count(void **state)
{
    (void)state;
    cpu_set_t before, set, now;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    int first = 0;
    while (!CPU_ISSET(first, &before)) first++;
    if (first > 3) skip(); /* this machine's cores are not among those of the first socket */
    assert_int_equal(setenv("INGOT_CORES", "0-7", 1), 0);
    assert_int_equal(near_bind(first_gpu, &set), 4);
    assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
    for (int i = 0; i < CPU_SETSIZE; i++)
        assert_int_equal(!!CPU_ISSET(i, &now), CPU_ISSET(i, &before) && i < 4);
    assert_int_equal(setenv("INGOT_CORES", "0-1", 1), 0);
    assert_int_equal(near_bind(second_gpu, &set), 0);
    assert_int_equal(setenv("INGOT_CORES", "0-", 1), 0);
    assert_int_equal(near_bind(first_gpu, &set), 0);
    assert_int_equal(unsetenv("INGOT_CORES"), 0);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

/* The kernel's file, for builds without hwloc. */
static void sysfs_says_the_same(void **state)
{
    (void)state;
    char path[128], text[64];
    assert_int_equal(io_make_dirs(temp_path(first_gpu)), STATUS_OK);
    snprintf(path, sizeof path, "%s/local_cpulist", first_gpu);
    temp_write(temp_path(path), "0-3,16-19\n", 10);
    cpu_set_t set = cores(2, 18);
    assert_int_equal(near_keep_sysfs(temp_dir, first_gpu, &set), 4);
    assert_string_equal(near_text(&set, text, sizeof text), "2-3,16-17");
    assert_int_equal(near_keep_sysfs(temp_dir, second_gpu, &set), 0);
}

static void lists_are_short_or_empty(void **state)
{
    (void)state;
    char text[8];
    cpu_set_t set = cores(0, 3);
    CPU_SET(5, &set);
    assert_string_equal(near_text(&set, text, sizeof text), "0-2,5");
    CPU_SET(10, &set);
    assert_string_equal(near_text(&set, text, sizeof text), "");
    set = cores(0, 0);
    assert_string_equal(near_text(&set, text, sizeof text), "");
    const char *bad[] = {"x", "3-", "3-1", "-1", "0-1;2", "1024", "0--1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (near_parse(bad[i], &set)) fail_msg("'%s' was taken for a list", bad[i]);
    assert_true(near_parse("", &set) && CPU_COUNT(&set) == 0);
    assert_true(near_parse("0-2,5\n", &set));
    assert_string_equal(near_text(&set, text, sizeof text), "0-2,5");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cores_of_the_gpus_socket_are_kept),
        cmocka_unit_test(what_cannot_be_kept_stays),
        cmocka_unit_test(the_launchers_cores_count),
        cmocka_unit_test(sysfs_says_the_same),
        cmocka_unit_test(lists_are_short_or_empty),
    };
    setenv("HWLOC_XMLFILE", TEST_SOURCE_DIR "/tests/fixtures/two_sockets.xml", 1);
    return cmocka_run_group_tests(tests, temp_open, temp_close);
}
