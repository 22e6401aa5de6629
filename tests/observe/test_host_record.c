/* The host's record with made-up GPUs and files: its lines, what metrics get of it, what a sample costs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "dev/nvml.h"
#include "observe/env_host.h"
#include "observe/host_lines.h"
#include "observe/host_record.h"
#include "temp.h"

#include <jansson.h>
#include <math.h>
#include <time.h>

static void rest(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static void script(const char *text)
{
    temp_write(temp_path("gpus"), text, strlen(text));
    setenv("INGOT_NVML_SCRIPT", temp_path("gpus"), 1);
}

static void fixture(const char *path, const char *text)
{
    char dir[1024];
    snprintf(dir, sizeof dir, "%s", temp_path(path));
    *strrchr(dir, '/') = 0;
    assert_int_equal(io_make_dirs(dir), STATUS_OK);
    temp_write(temp_path(path), text, strlen(text));
}

static const char *record_path(void)
{
    char host[128] = "", name[160];
    gethostname(host, sizeof host - 1);
    snprintf(name, sizeof name, "gpu-%s.jsonl", host);
    return temp_path(name);
}

/* The lines of a kind, as an array. */
static json_t *lines(const char *kind)
{
    char line[4096];
    json_t *list = json_array();
    FILE *f = fopen(record_path(), "re");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        json_t *o = json_loads(line, 0, NULL);
        assert_non_null(o);
        if (strcmp(json_string_value(json_object_get(o, "kind")), kind) == 0)
            json_array_append_new(list, o);
        else
            json_decref(o);
    }
    fclose(f);
    return list;
}
static double number(const json_t *list, size_t i, const char *key)
{
    const json_t *v = json_object_get(json_array_get(list, i), key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static void host_files(void)
{
    fixture("proc/stat", "cpu  100 0 100 800 0 0 0 0 0 0\n");
    fixture("proc/meminfo", "MemTotal: 9 kB\nMemAvailable: 4096 kB\n");
    fixture("proc/loadavg", "1.5 1 1 1/1 1\n");
    setenv("INGOT_ROOT", temp_dir, 1);
}

static void test_lines(void **state)
{
    (void)state;
    struct host_record *h;
    struct metrics m = METRICS_NONE;
    temp_clear();
    host_files();
    script("cards=2\ncard 0 sm_mhz=1500 watts=650 celsius=61 hw_thermal_s=4 xid=31\n"
           "card 1 sm_mhz=1200 watts=600 celsius=88 reasons=64 link_errors=7 ecc_corrected=nan\n");
    assert_int_equal(host_record_start(&h, temp_dir, 0.1), STATUS_OK);
    rest(350);
    host_record_metrics(h, &m);
    host_record_stop(h);
    assert_true(m.gpu_watts == 1250 && m.gpu_mhz == 1200 && m.gpu_celsius == 88 && m.gpu_throttled == 1);
    assert_true(m.host_available == 4096 * 1024 && m.host_disk_free > 0);
    json_t *gpu = lines("gpu"), *host = lines("host"), *xid = lines("xid"), *start = lines("start"),
           *end = lines("end");
    assert_true(json_array_size(gpu) >= 4 && json_array_size(gpu) % 2 == 0);
    assert_true(json_array_size(host) == json_array_size(gpu) / 2);
    assert_int_equal(json_array_size(start), 1);
    assert_int_equal(json_array_size(end), 1);
    assert_true(number(start, 0, "gpus") == 2);
    assert_true(number(gpu, 1, "gpu") == 1 && number(gpu, 1, "sm_mhz") == 1200 &&
                number(gpu, 1, "watts") == 600);
    assert_true(number(gpu, 1, "reasons") == 64 && number(gpu, 1, "link_errors") == 7);
    assert_true(number(gpu, 0, "hw_thermal_s") == 0); /* a counter: what it grew by */
    assert_true(isnan(number(gpu, 1, "ecc_corrected")));
    assert_true(number(host, 0, "load") == 1.5 && number(host, 0, "memory_available") == 4096 * 1024);
    assert_int_equal(json_array_size(xid), 1); /* once */
    assert_true(number(xid, 0, "xid") == 31 && number(xid, 0, "gpu") == 0);
    json_decref(gpu), json_decref(host), json_decref(xid), json_decref(start), json_decref(end);
}

/* Intervals lie end to end: what counters grow by is in one of them, and the energy of a run in its record, without that
 * between two processes. */
static void test_counters(void **state)
{
    (void)state;
    struct host_record *h;
    double throttled = 0, grown = 0, joules = 0;
    size_t processes = 0;
    temp_clear();
    host_files();
    script("cards=1\ncard 0 watts=100 joules=5000 grows=1\n");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(host_record_start(&h, temp_dir, 0.1), STATUS_OK);
        rest(450);
        host_record_stop(h);
        rest(200);
    }
    json_t *gpu = lines("gpu");
    for (size_t i = 0; i < json_array_size(gpu); i++) {
        const double begin = number(gpu, i, "joules_begin"), now = number(gpu, i, "joules");
        if (isfinite(begin)) {
            assert_true(begin >= 5000 && begin <= now);
            processes++;
            joules += now - begin;
            continue;
        }
        throttled += number(gpu, i, "hw_thermal_s");
        grown += now - number(gpu, i - 1, "joules");
    }
    assert_int_equal(processes, 2);
    assert_true(grown > 0 && throttled > 0.6 * grown / 100 && throttled < 1.4 * grown / 100);
    assert_true(fabs(host_lines_joules(temp_dir) - joules - grown) < 1);
    json_decref(gpu);
}

/* A GPU that is gone leaves its error; the other goes on. A second process appends. */
static void test_lost(void **state)
{
    (void)state;
    struct host_record *h;
    temp_clear();
    host_files();
    script("cards=2\ncard 0 lost=1\n");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(host_record_start(&h, temp_dir, 10), STATUS_OK);
        rest(60);
        host_record_stop(h);
    }
    json_t *gpu = lines("gpu"), *start = lines("start");
    assert_int_equal(json_array_size(start), 2);
    assert_int_equal(json_array_size(gpu), 4);
    assert_true(number(gpu, 0, "nvml_error") == 15 && isnan(number(gpu, 0, "watts")));
    assert_true(number(gpu, 1, "watts") == 76);
    json_decref(gpu), json_decref(start);
}

static void test_no_gpu(void **state)
{
    (void)state;
    struct host_record *h;
    struct metrics m = METRICS_NONE;
    temp_clear();
    unsetenv("INGOT_NVML_SCRIPT");
    unsetenv("INGOT_ROOT");
    assert_int_equal(host_record_start(&h, temp_dir, 10), STATUS_OK);
    rest(60);
    host_record_metrics(h, &m);
    host_record_stop(h);
    assert_true(isnan(m.gpu_watts) && m.host_available > 0);
    json_t *host = lines("host");
    assert_int_equal(json_array_size(host), 1);
    json_decref(host);
    host_record_metrics(NULL, &m);
    host_record_stop(NULL);
    char missing[1100];
    snprintf(missing, sizeof missing, "%s/none", temp_dir);
    assert_int_equal(host_record_start(&h, missing, 10), STATUS_IO);
    assert_null(h);
}

static bool near(double a, double b)
{
    return fabs(a - b) < 1e-3;
}

/* GPM is a difference of two samples, far enough apart. */
static void test_activity(void **state)
{
    (void)state;
    struct nvml *n;
    struct nvml_card c[4];
    assert_int_equal(nvml_open_script(&n,
                                      "cards=4\ncard * sm_percent=97 occupancy_percent=20 tensor_percent=61\n"
                                      "card 0 dram_percent=48\ncard 1 dram_percent=nan\n"
                                      "card 2 gpm=4\ncard 3 gpm=3\n",
                                      NULL),
                     STATUS_OK);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 4; i++) {
            nvml_read(n, i, &c[i]);
            nvml_activity(n, i, &c[i]);
            assert_int_equal(c[i].code, NVML_SUCCESS);
        }
        if (round == 0) assert_true(isnan(c[0].tensor_percent)); /* one sample is no difference */
        if (round == 0) rest(120);
        if (round == 0) continue;
        assert_true(near(c[0].tensor_percent, 61) && near(c[0].sm_percent, 97) &&
                    near(c[0].occupancy_percent, 20) && near(c[0].dram_percent, 48));
        assert_true(near(c[1].tensor_percent, 61) && isnan(c[1].dram_percent)); /* each by itself */
        for (int i = 2; i < 4; i++) assert_true(isnan(c[i].tensor_percent) && isnan(c[i].sm_percent));
        assert_true(c[2].watts == 76); /* the rest is there */
        if (round == 2) rest(120);
    }
    nvml_close(n);
}

/* What one GPU tells, what GPM refuses, a library without it: a value or none, never zero. */
static void test_activity_lines(void **state)
{
    (void)state;
    struct host_record *h;
    static const char *const scripts[] = {"cards=2\ncard 0 tensor_percent=61 dram_percent=48\ncard 1 gpm=4\n",
                                          "cards=2\ngpm=0\ncard * tensor_percent=61\n"};
    for (int i = 0; i < 2; i++) {
        struct metrics m = METRICS_NONE;
        temp_clear();
        host_files();
        script(scripts[i]);
        assert_int_equal(host_record_start(&h, temp_dir, 0.15), STATUS_OK);
        rest(500);
        host_record_metrics(h, &m);
        host_record_stop(h);
        json_t *gpu = lines("gpu");
        const size_t last = json_array_size(gpu) - 2; /* the last interval's two lines */
        assert_true(isnan(number(gpu, last + 1, "tensor_percent")));
        if (i == 0) {
            assert_true(near(m.gpu_tensor, 0.61) && near(m.gpu_dram, 0.48));
            assert_true(near(number(gpu, last, "tensor_percent"), 61) &&
                        near(number(gpu, last, "dram_percent"), 48));
        } else
            assert_true(isnan(m.gpu_tensor) && isnan(number(gpu, last, "tensor_percent")) &&
                        number(gpu, last, "watts") == 76);
        json_decref(gpu);
    }
}

/* At one sample per second: below a thousandth of a core, of which a step uses at least one. */
static void test_cost(void **state)
{
    (void)state;
    struct host_record *h;
    int64_t samples;
    double cpu_s;
    temp_clear();
    unsetenv("INGOT_ROOT");
    script("cards=8\n");
    assert_int_equal(host_record_start(&h, temp_dir, 0.005), STATUS_OK);
    rest(1000);
    host_record_cost(h, &samples, &cpu_s);
    host_record_stop(h);
    print_message("%lld samples of 8 GPUs, %.3g ms of CPU time each\n", (long long)samples,
                  1e3 * cpu_s / (double)samples);
    assert_true(samples > 10);
    assert_true(cpu_s / (double)samples < 1e-3);
}

static void test_env(void **state)
{
    (void)state;
    temp_clear();
    host_files();
    fixture("proc/sys/kernel/osrelease", "6.1.0\n");
    fixture("sys/fs/cgroup/memory.max", "64000\n");
    fixture("sys/devices/system/node/node1/cpulist", "48-95\n");
    fixture("sys/class/infiniband/mlx5_0/fw_ver", "28.39.1002\n");
    fixture("sys/bus/pci/devices/0000:19:00.0/numa_node", "1\n");
    script("cards=2\ncard 1 vbios=96.00.BC\n");
    json_t *o = env_host(), *gpu = json_array_get(json_object_get(o, "gpus"), 1);
    const char *kernel, *memory, *node, *firmware, *driver, *vbios, *place;
    assert_int_equal(json_unpack(o, "{s:s, s:{s:s}, s:{s:s}, s:{s:{s:s}}, s:s, s:{s:i}}", "kernel", &kernel,
                                 "cgroup", "memory_max", &memory, "numa", "node1", &node, "network", "mlx5_0",
                                 "fw_ver", &firmware, "driver", &driver, "ulimits", "nofile", &(int){0}),
                     0);
    assert_int_equal(json_unpack(gpu, "{s:s, s:s}", "vbios", &vbios, "numa_node", &place), 0);
    assert_string_equal(kernel, "6.1.0");
    assert_string_equal(memory, "64000");
    assert_string_equal(node, "48-95");
    assert_string_equal(firmware, "28.39.1002");
    assert_string_equal(driver, "580.95.05");
    assert_string_equal(vbios, "96.00.BC");
    assert_string_equal(place, "1");
    json_decref(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines),          cmocka_unit_test(test_lost),
                                       cmocka_unit_test(test_counters),       cmocka_unit_test(test_activity),
                                       cmocka_unit_test(test_activity_lines), cmocka_unit_test(test_no_gpu),
                                       cmocka_unit_test(test_cost),           cmocka_unit_test(test_env)};
    return cmocka_run_group_tests(tests, temp_open, temp_close);
}
