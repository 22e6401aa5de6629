/* The doctor's checks on made-up hosts, its numbers and exit codes, and its page. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "dev/hostfs.h"
#include "dev/nvml.h"
#include "doctor/doctor.h"
#include "temp.h"

#include <math.h>

static const struct doctor_finding *find(const struct doctor *d, const char *check)
{
    const struct doctor_finding *worst = NULL;
    for (int i = 0; i < doctor_count(d); i++) {
        const struct doctor_finding *f = doctor_finding(d, i);
        if (strcmp(f->check->name, check) == 0 && (worst == NULL || f->verdict > worst->verdict)) worst = f;
    }
    assert_non_null(worst);
    return worst;
}

static struct doctor *look(const char *script)
{
    struct doctor *d;
    assert_int_equal(doctor_run(&d, &(struct doctor_how){.storage = "/data", .script = script}), STATUS_OK);
    return d;
}

static void test_selftest(void **state)
{
    (void)state;
    FILE *out = fopen("/dev/null", "we");
    assert_non_null(out);
    const status st = doctor_selftest(out);
    fclose(out);
    if (st != STATUS_OK) fail_msg("%s", status_message());
}

/* Every level, code and remedy is said; no name twice. */
static void test_rows(void **state)
{
    (void)state;
    int rows = 0;
    for (; doctor_check(rows); rows++) {
        const struct doctor_check *c = doctor_check(rows);
        assert_true(c->reads[0] && c->limit[0] && strlen(c->remedy) > 10 && c->code != STATUS_OK);
        for (int k = 0; k < rows; k++) assert_string_not_equal(doctor_check(k)->name, c->name);
    }
    assert_true(rows > 40);
}

/* Of several failures the GPU's code counts first, the host's settings last; a warning only when it is strict. */
static void test_exit_codes(void **state)
{
    (void)state;
    static const struct {
        const char *script;
        status code;
    } rows[] = {
        {"cards=2\nsystem disk_bytes=0\ncard 1 rows_failed=1", STATUS_DEVICE},
        {"cards=2\nsystem disk_bytes=0\ncard * fabric=1", STATUS_COMM},
        {"cards=1\nsystem disk_bytes=0\nsystem shm_bytes=1e12", STATUS_IO},
        {"no driver\nsystem disk_bytes=1e12\n/proc/meminfo = MemAvailable: 10 kB", STATUS_OUT_OF_MEMORY}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct doctor *d = look(rows[i].script);
        assert_int_equal(doctor_exit(d, false), rows[i].code);
        assert_int_equal(doctor_verdict(d), DOCTOR_FAIL);
        doctor_close(d);
    }
    struct doctor *d = look("no driver\nsystem disk_bytes=1e12\nsystem clock_error_s=inf");
    assert_int_equal(doctor_verdict(d), DOCTOR_WARN);
    assert_int_equal(doctor_exit(d, false), STATUS_OK);
    assert_int_equal(doctor_exit(d, true), STATUS_CONFIG);
    doctor_close(d);
}

/* Sound hosts whose numbers vary within what is normal: no false alarm in a thousand. */
static void test_sound(void **state)
{
    (void)state;
    uint32_t r = 7;
    for (int i = 0; i < 1000; i++) {
        char script[1024];
        double u[8];
        for (int k = 0; k < 8; k++) u[k] = (double)((r = r * 1664525u + 1013904223u) >> 8) / (1 << 24);
        snprintf(
            script, sizeof script,
            "cards=%d\ncard * celsius=%.0f sm_mhz=%.0f watts=%.0f reasons=%d pcie_gen=%d power_cap_s=%.0f\n"
            "card 0 ecc_corrected=%.0f link_errors=5 hw_thermal_s=7\n"
            "before GPU-5a000000-0000-0000-0000-000000000000.link_errors=%d\n"
            "before GPU-5a000000-0000-0000-0000-000000000000.hw_thermal_s=6.9\n"
            "system disk_bytes=%.0f\nsystem clock_error_s=%.3f\nsystem nccl=22809\nsystem shm_bytes=1e11\n"
            "system cores=64\n/proc/loadavg = %.2f\n",
            1 + i % 8, 25 + 50 * u[0], 300 + 1600 * u[1], 70 + 630 * u[2], u[3] < 0.5 ? 1 : 4,
            u[4] < 0.5 ? 1 : 5, 1e6 * u[5], 1e3 * u[6], u[7] < 0.5 ? 5 : 9, 2e10 + 1e13 * u[1], 0.4 * u[2],
            30 * u[3]);
        struct doctor *d = look(script);
        for (int k = 0; k < doctor_count(d); k++)
            if (doctor_finding(d, k)->verdict >= DOCTOR_WARN)
                fail_msg("%s\n%s: %s", script, doctor_finding(d, k)->check->name, doctor_finding(d, k)->text);
        doctor_close(d);
    }
}

/* What is not supported is skipped with a reason, never judged. */
static void test_not_supported(void **state)
{
    (void)state;
    struct doctor *d =
        look("cards=1\ncard 0 links=nan links_active=nan fabric=nan ecc_on=nan ecc_uncorrected=nan "
             "rows_pending=nan recovery=nan persistence=nan mig=nan pcie_width=nan memory_used=nan "
             "reasons=nan hw_thermal_s=nan link_errors=nan celsius=nan limit_watts=nan\n"
             "system disk_bytes=1e12\nsystem nccl=22809\nsystem shm_bytes=1e12");
    static const char *const skipped[] = {"ecc",    "rows",        "recovery", "throttle", "temperature",
                                          "power",  "persistence", "pcie",     "mig",      "nvlink",
                                          "fabric", "link_errors", "xid",      "iommu"};
    for (size_t i = 0; i < sizeof skipped / sizeof skipped[0]; i++) {
        assert_int_equal(find(d, skipped[i])->verdict, DOCTOR_SKIP);
        assert_true(find(d, skipped[i])->text[0]);
    }
    doctor_close(d);
}

static void test_finding(void **state)
{
    (void)state;
    struct doctor *d = look("cards=8\ncard 4 links_active=17");
    const struct doctor_finding *f = find(d, "nvlink");
    assert_int_equal(f->verdict, DOCTOR_FAIL);
    assert_string_equal(f->entity, "GPU-5a000004-0000-0000-0000-000000000000");
    assert_string_equal(f->text, "gpu4: 17 of 18 NVLinks are active");
    assert_true(f->measured == 17 && f->expected == 18);
    json_t *o = doctor_json(d, false);
    assert_int_equal(json_integer_value(json_object_get(o, "exit")), STATUS_DEVICE);
    json_decref(o);
    doctor_close(d);
}

/* A job that stays on its host does not fail because of the network; because of a GPU it does. */
static void test_alone(void **state)
{
    (void)state;
    static const char script[] =
        "cards=2\nsystem disk_bytes=1e12\nsystem shm_bytes=1e12\nsystem nccl=22809\n"
        "/sys/class/infiniband/mlx5_0/ports/1/state = 1: DOWN\nsystem memlock=65536\n%s";
    char text[512];
    struct doctor *d;
    for (int i = 0; i < 4; i++) {
        snprintf(text, sizeof text, script, i & 1 ? "card 1 lost=1" : "");
        const struct doctor_how how = {.storage = "/data", .script = text, .alone = i >= 2};
        assert_int_equal(doctor_run(&d, &how), STATUS_OK);
        assert_int_equal(doctor_exit(d, false), i & 1 ? STATUS_DEVICE : i == 0 ? STATUS_COMM : STATUS_OK);
        assert_int_equal(find(d, "infiniband")->verdict, i >= 2 ? DOCTOR_WARN : DOCTOR_FAIL);
        doctor_close(d);
    }
}

/* A wrong script is an error with its line, not a sound host. */
static void test_wrong_script(void **state)
{
    (void)state;
    static const char *const wrong[] = {"cards=2\ncard 0 wats=3", "system disc_bytes=3", "cards=99", "hello"};
    struct doctor *d;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(doctor_run(&d, &(struct doctor_how){.script = wrong[i]}), STATUS_CONFIG);
        assert_null(d);
    }
}

static void test_hostfs(void **state)
{
    (void)state;
    char text[64], names[4][HOSTFS_NAME];
    double v;
    const struct hostfs made = {.root = "",
                                .text = "/a/b = 1\n/a/c/d = x\\ny\n/a/b = 2 kB\n/a/e = 5\n/a/e\n"};
    assert_true(hostfs_number(&made, &v, "/a/%s", "b") && v == 2);
    assert_true(hostfs_read(&made, text, sizeof text, "/a/c/d"));
    assert_string_equal(text, "x\ny");
    assert_false(hostfs_read(&made, text, sizeof text, "/a/e"));
    assert_false(hostfs_read(&made, text, sizeof text, "/a"));
    assert_int_equal(hostfs_list(&made, names, 4, "/a"), 2);
    assert_string_equal(names[0], "b");
    assert_string_equal(names[1], "c");
    assert_int_equal(hostfs_list(&made, names, 1, "/a"), 1);
    const char *dir = temp_path("sys");
    assert_int_equal(io_make_dirs(dir), STATUS_OK);
    temp_write(temp_path("sys/load"), "3.5 1\n", 6);
    const struct hostfs real = {.root = temp_dir};
    assert_true(hostfs_number(&real, &v, "/sys/load") && v == 3.5);
    assert_int_equal(hostfs_list(&real, names, 4, "/sys"), 1);
    assert_true(hostfs_value("MemTotal: 12 kB\nMemAvailable:   7 kB", "MemAvailable") == 7);
    assert_true(isnan(hostfs_value("MemTotal: 12 kB", "Mem")));
}

/* The page has the table as the program prints it. */
static void test_page(void **state)
{
    (void)state;
    char *table, *page;
    size_t bytes, page_bytes;
    FILE *f = open_memstream(&table, &bytes);
    assert_non_null(f);
    doctor_print_checks(f);
    fclose(f);
    assert_int_equal(io_read_file(TEST_SOURCE_DIR "/docs/DOCTOR.md", 1 << 20, &page, &page_bytes), STATUS_OK);
    if (strstr(page, table) == NULL)
        fail_msg("docs/DOCTOR.md does not have the table of `ingot doctor --checks`");
    free(table);
    free(page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_selftest),      cmocka_unit_test(test_rows),
        cmocka_unit_test(test_exit_codes),    cmocka_unit_test(test_sound),
        cmocka_unit_test(test_not_supported), cmocka_unit_test(test_finding),
        cmocka_unit_test(test_alone),         cmocka_unit_test(test_wrong_script),
        cmocka_unit_test(test_hostfs),        cmocka_unit_test(test_page)};
    return cmocka_run_group_tests(tests, temp_open, temp_close);
}
