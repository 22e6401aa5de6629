/* Goal: numbers are compared with the right row, and a verdict says what it should. Method: the table is walked through for GPUs that have
 * rows of their own, for GPUs with rates of machine.def alone, and for GPUs that nobody knows; bus factors against nccl-tests' formulas;
 * what a report writes is read back. */
#include "bench/targets.h"
#include "bench/p2p_report.h"
#include "base/io.h"
#include "plan/machine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "temp.h"

#define MI *1048576ul
#define GI *1073741824ul

static void a_machine_s_own_row_comes_first(void **state)
{
    struct target t;
    (void)state;
    assert_true(target_find("NVIDIA H200", "copy_one_way", 256 MI, TARGET_GBS, &t));
    assert_true(t.value > 390 && t.value < 400); /* measured, not the 360 of machine.def */
    assert_int_equal(t.gpus, 2);
    assert_false(target_find("NVIDIA H200", "copy_one_way", 1 MI, TARGET_GBS, &t));
    assert_true(target_find("NVIDIA H200", "copy_latency", 16, TARGET_US, &t));
    assert_false(target_find("NVIDIA H200", "copy_latency", 16, TARGET_GBS, &t));
    assert_false(target_find("NVIDIA H200", "copy_latency", 32, TARGET_US, &t));
}

static void of_several_sizes_the_nearest_counts(void **state)
{
    struct target middle, large;
    (void)state;
    assert_true(target_find("NVIDIA H200", "all_reduce", 300 MI, TARGET_GBS, &middle));
    assert_true(target_find("NVIDIA H200", "all_reduce", 4 GI, TARGET_GBS, &large));
    assert_int_equal(middle.bytes, 256 MI);
    assert_int_equal(large.bytes, 1 GI);
    assert_true(large.value > middle.value);
}

static void other_machines_are_measured_by_machine_def(void **state)
{
    static const char *const gpus[] = {"NVIDIA H100 80GB HBM3", "NVIDIA B200", "NVIDIA B300 SXM6 AC",
                                       "NVIDIA GB200"};
    struct target t;
    (void)state;
    for (int i = 0; i < 4; i++) {
        const struct machine *m = machine_of_gpu(gpus[i]);
        assert_non_null(m);
        assert_true(target_find(gpus[i], "copy_one_way", 256 MI, TARGET_GBS, &t));
        assert_true(t.value >= m->link_rate * 1e-9);
        assert_true(target_find(gpus[i], "host_to_device", 256 MI, TARGET_GBS, &t));
        assert_true(t.value > 0.9 * m->host_rate * 1e-9 && t.value <= m->host_rate * 1e-9);
        assert_true(target_find(gpus[i], "all_reduce", 1 GI, TARGET_GBS, &t));
        /* between nodes: all NICs of a node for rings, one for each GPU's all-to-all; links bound both */
        assert_true(target_find(gpus[i], "net_all_reduce", 1 GI, TARGET_GBS, &t));
        assert_true(t.value <= m->link_rate * 1e-9 && t.value <= m->node * m->net_rate * 1e-9);
        assert_true(target_find(gpus[i], "net_all_to_all", 1 GI, TARGET_GBS, &t));
        assert_true(t.value == m->net_rate * 1e-9);
    }
    assert_false(target_find("A GPU of nobody's", "copy_one_way", 256 MI, TARGET_GBS, &t));
    assert_false(target_find("NVIDIA H200", "no_such_thing", 256 MI, TARGET_GBS, &t));
}

static void verdicts_name_what_to_look_at(void **state)
{
    const struct target rate = {TARGET_GBS, 100, 0, 2}, time = {TARGET_US, 10, 16, 8};
    char text[TARGET_TEXT];
    (void)state;
    assert_int_equal(target_judge(&rate, "copy_one_way", 95.1, 2, text), TARGET_PASS);
    assert_string_equal(text, "pass (100 GB/s)");
    assert_int_equal(target_judge(&rate, "copy_one_way", 94.9, 2, text), TARGET_LOOK);
    assert_non_null(strstr(text, "100 GB/s expected; look at links"));
    assert_int_equal(target_judge(&rate, "host_to_device", 50, 2, text), TARGET_LOOK);
    assert_non_null(strstr(text, "PCIe"));
    assert_int_equal(target_judge(&rate, "net_all_reduce", 50, 2, text), TARGET_LOOK);
    assert_non_null(strstr(text, "GPUDirect"));
    assert_int_equal(target_judge(&time, "all_reduce_graph", 12.4, 8, text), TARGET_PASS);
    assert_int_equal(target_judge(&time, "all_reduce_graph", 12.6, 2, text), TARGET_LOOK);
    assert_non_null(strstr(text, "a number of 8 GPUs"));
}

/* Every row of the table can be found, and has something to look at. */
static void every_row_serves(void **state)
{
    static const struct {
        const char *machine, *what;
        size_t bytes;
        enum target_unit unit;
    } rows[] = {
#define GBS(x)                                     TARGET_GBS
#define US(x)                                      TARGET_US
#define LINK(x)                                    TARGET_GBS
#define NET(x)                                     TARGET_GBS
#define NODE(x)                                    TARGET_GBS
#define HOST(x)                                    TARGET_GBS
#define MEMORY(x)                                  TARGET_GBS
#define TARGET(machine, what, number, bytes, gpus) {#machine, #what, bytes, number},
#include "bench/targets.def"
#undef TARGET
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *gpu = strcmp(rows[i].machine, "h200") == 0   ? "NVIDIA H200"
                          : strcmp(rows[i].machine, "h100") == 0 ? "NVIDIA H100"
                                                                 : "NVIDIA B200";
        struct target t;
        char text[TARGET_TEXT];
        assert_true(target_find(gpu, rows[i].what, rows[i].bytes, rows[i].unit, &t));
        assert_int_equal(t.bytes, rows[i].bytes);
        const double bad = t.unit == TARGET_US ? 10 * t.value : t.value / 10;
        assert_int_equal(target_judge(&t, rows[i].what, bad, t.gpus, text), TARGET_LOOK);
        assert_null(strstr(text, "other work on the machine")); /* the last resort */
    }
}

static void bus_bandwidth_is_as_nccl_tests_defines_it(void **state)
{
    (void)state;
    assert_true(target_bus_factor("all_reduce", 8) == 2 * 7 / 8.0);
    assert_true(target_bus_factor("all_gather", 8) == 7 / 8.0);
    assert_true(target_bus_factor("reduce_scatter", 4) == 3 / 4.0);
    assert_true(target_bus_factor("all_to_all", 2) == 1 / 2.0);
    assert_true(target_bus_factor("broadcast", 8) == 1);
    assert_true(target_bus_factor("ring", 8) == 1);
}

static void a_report_is_written_whole_or_not_at_all(void **state)
{
    struct p2p_report r;
    const char *path = temp_path("rows.json");
    char text[TARGET_TEXT], *data = NULL;
    size_t bytes;
    const struct p2p_row rows[] = {
        {.what = "copy_one_way", .from = 0, .to = 1, .gpus = 2, .bytes = 256 MI, .us = 681, .gbs = 394},
        {.what = "copy_one_way", .from = 1, .to = 0, .gpus = 2, .bytes = 256 MI, .us = 1342, .gbs = 200},
        {.what = "all_reduce",
         .op = "all_reduce",
         .way = "ring",
         .from = -1,
         .to = -1,
         .gpus = 8,
         .bytes = 1 GI,
         .us = 9000,
         .gbs = 119,
         .bus_gbs = 208,
         .graph = true,
         .unjudged = true},
        {.what = "host_latency_to", .from = 0, .to = -1, .gpus = 2, .bytes = 4, .us = 1.1}};
    (void)state;
    p2p_report_open(&r, "p2p", "NVIDIA H200", path);
    assert_int_equal(p2p_report_row(&r, &rows[0], text), TARGET_PASS);
    assert_int_equal(p2p_report_row(&r, &rows[1], text), TARGET_LOOK);
    assert_non_null(strstr(text, "look at links"));
    assert_int_equal(p2p_report_row(&r, &rows[2], text), TARGET_NONE);
    assert_int_equal(p2p_report_row(&r, &rows[3], text), TARGET_NONE);
    assert_string_equal(text, "");
    assert_int_equal(r.pass, 1);
    assert_int_equal(r.look, 1);
    assert_false(temp_there(path));
    assert_int_equal(p2p_report_close(&r, STATUS_OK), STATUS_OK);
    assert_int_equal(io_read_file(path, 4096, &data, &bytes), STATUS_OK);
    assert_non_null(strstr(
        data, "{\"bench\":\"p2p\",\"device\":\"NVIDIA H200\",\"what\":\"copy_one_way\",\"from\":0,\"to\":1,"
              "\"gpus\":2,\"bytes\":268435456,\"graph\":false,\"us\":681.000,\"algorithm_gbs\":394.0000,"
              "\"expected\":394,\"verdict\":\"pass\",\"checked\":true}\n"));
    assert_non_null(strstr(data, "\"way\":\"ring\",\"gpus\":8,"));
    assert_non_null(strstr(data, "\"bus_gbs\":208.0000,\"verdict\":\"none\""));
    free(data);
    assert_int_equal(unlink(path), 0);
    p2p_report_open(&r, "p2p", "NVIDIA H200", path); /* a failed run leaves no file */
    p2p_report_row(&r, &rows[0], text);
    assert_int_equal(p2p_report_close(&r, STATUS_DEVICE), STATUS_DEVICE);
    assert_false(temp_there(path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_machine_s_own_row_comes_first),
        cmocka_unit_test(of_several_sizes_the_nearest_counts),
        cmocka_unit_test(other_machines_are_measured_by_machine_def),
        cmocka_unit_test(verdicts_name_what_to_look_at),
        cmocka_unit_test(every_row_serves),
        cmocka_unit_test(bus_bandwidth_is_as_nccl_tests_defines_it),
        cmocka_unit_test(a_report_is_written_whole_or_not_at_all),
    };
    return cmocka_run_group_tests(tests, temp_open, temp_close);
}
