/* The monitor on a made-up run of 700 steps and three GPUs: its screens at 40, 80 and 120 columns (tests/fixtures/monitor), its JSON, and which
 * alerts it raises and which not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "observe/monitor.h"
#include "temp.h"

#include <math.h>

#define BEGIN 1.8e9 /* wall clock of step 0; a step takes half a second */

static FILE *open_file(const char *name)
{
    FILE *f = fopen(temp_path(name), "we");
    assert_non_null(f);
    return f;
}

static uint32_t noise_state;
static double noise(void)
{
    return (double)((noise_state = noise_state * 1664525u + 1013904223u) >> 8) / (1 << 24) - 0.5;
}

/* What a run may have wrong. */
struct wrong {
    int spike_at;     /* step at which the loss jumps; 0: never */
    int spike_steps;  /* for so many */
    double slow_from; /* step from which steps take twice as long; 0: never */
    bool slow_rank;   /* rank 1 works longer, the others wait for it */
    double wait;      /* share of the time that waits for data */
    const char *gpu2; /* further values of the third GPU's lines */
    const char *line; /* a further line of the host's record */
    double disk;      /* free bytes */
    double quiet_s;   /* since the last record */
    bool dead;        /* nobody holds the lock */
};

static double write_metrics(const struct wrong *w)
{
    FILE *f = open_file("metrics.jsonl");
    double time = BEGIN;
    noise_state = 3;
    fprintf(
        f,
        "{\"kind\":\"schema\",\"format\":\"ingot metrics\",\"version\":1}\n{\"kind\":\"start\",\"step\":0,"
        "\"time\":%.3f}\n",
        time);
    for (int i = 1; i <= 700; i++) {
        const double step_s = w->slow_from > 0 && i >= w->slow_from ? 1 : 0.5;
        const bool high = w->spike_at && i >= w->spike_at && i < w->spike_at + w->spike_steps;
        time += step_s;
        fprintf(f,
                "{\"kind\":\"step\",\"step\":%d,\"tokens\":%d,\"time\":%.3f,\"loss\":%.5f,\"lr\":0.0003,"
                "\"grad_norm\":%.4f,\"tokens_per_s\":%.0f,\"step_s\":%g,\"data_wait_s\":%g,\"mfu\":0.41}\n",
                i, i * 8192, time, 3 + 3 * exp(-i / 150.0) + 0.05 * noise() + high, 0.5 + 0.05 * noise(),
                8192 / step_s, step_s, w->wait * step_s);
        if (i % 20 == 0)
            fprintf(f,
                    "{\"kind\":\"ranks\",\"step\":%d,\"time\":%.3f,\"steps\":20,\"rank\":[0,1,2],"
                    "\"work_s\":[0.43,%g,0.44],\"wait_s\":[0.07,%g,0.06]}\n",
                    i, time, w->slow_rank && i > 400 ? 0.5 : 0.43, w->slow_rank && i > 400 ? 0 : 0.07);
    }
    fclose(f);
    return time;
}

static void write_gpus(const struct wrong *w, double end)
{
    FILE *f = open_file("gpu-node07.jsonl");
    fprintf(f, "{\"kind\":\"schema\",\"format\":\"ingot host\",\"version\":1}\n");
    for (double t = BEGIN + 10; t <= end; t += 10) {
        for (int g = 0; g < 3; g++)
            fprintf(f,
                    "{\"kind\":\"gpu\",\"time\":%.3f,\"gpu\":%d,\"uuid\":\"GPU-%d\",\"watts\":%d,\"limit_"
                    "watts\":700,"
                    "\"busy_percent\":99,\"celsius\":%d,\"memory_celsius\":%d,\"memory_used\":82e9,"
                    "\"memory_total\":150e9,\"reasons\":4,\"power_cap_s\":9,\"ecc_uncorrected\":0,"
                    "\"links_active\":18,\"link_errors\":3%s}\n",
                    t, g, g, 680 + g, 60 + g, 70 + g, g == 2 && w->gpu2 ? w->gpu2 : ",\"sm_mhz\":1485");
        fprintf(f,
                "{\"kind\":\"host\",\"time\":%.3f,\"cpu_percent\":11,\"load\":8,\"memory_available\":4e11,"
                "\"disk_free\":%.0f}\n",
                t, w->disk > 0 ? w->disk : 1.9e12);
    }
    if (w->line) fprintf(f, "%s\n", w->line);
    fprintf(f, "{\"kind\":\"gpu\",\"ti"); /* torn: it is being written */
    fclose(f);
}

static void put_file(const char *name, const char *text)
{
    temp_write(temp_path(name), text, strlen(text));
}

/* Writes the run, and reads it a second after its last record. */
static void look(struct monitor *m, const struct wrong *w)
{
    temp_clear();
    const double end = write_metrics(w);
    write_gpus(w, end);
    put_file("config.yaml", "train:\n  steps: 1000\noptim:\n  warmup_steps: 100\n");
    put_file("env.json", "{\"parameters\": 1000000000, \"ranks\": 3}\n");
    put_file("lock", "");
    const int fd = open(temp_path("lock"), O_RDWR | O_CLOEXEC);
    struct flock lock = {.l_type = F_WRLCK};
    assert_true(fd >= 0 && (w->dead || fcntl(fd, F_OFD_SETLK, &lock) == 0));
    assert_int_equal(monitor_read(m, temp_dir, end + 1 + w->quiet_s), STATUS_OK);
    close(fd);
    snprintf(m->name, sizeof m->name, "llama-1b"); /* the directory's is made up */
}

static const struct alert *find(const struct monitor *m, const char *name)
{
    for (int i = 0; i < m->alerts.count; i++)
        if (strcmp(m->alerts.list[i].name, name) == 0) return &m->alerts.list[i];
    return NULL;
}

static void check_screen(const struct monitor *m, int columns, const char *name)
{
    char *screen, *golden, path[1024];
    size_t bytes, golden_bytes;
    FILE *f = open_memstream(&screen, &bytes);
    assert_non_null(f);
    monitor_draw(m, f, columns, columns == 40);
    fclose(f);
    snprintf(path, sizeof path, TEST_SOURCE_DIR "/tests/fixtures/monitor/%s.txt", name);
    assert_int_equal(io_read_file(path, 1 << 16, &golden, &golden_bytes), STATUS_OK);
    if (strcmp(screen, golden) != 0) {
        fprintf(stderr, "%s", screen);
        fail_msg("not as %s", path);
    }
    int width = 0;
    for (const char *c = screen; *c; c++) { /* a mark is one column, and two bytes more */
        width = *c == '\n' ? 0 : width + ((*c & 0xc0) != 0x80);
        if (width >= columns) fail_msg("a line of %d columns and more:\n%s", columns, screen);
    }
    free(screen);
    free(golden);
}

static void test_screens(void **state)
{
    (void)state;
    struct monitor m;
    look(&m, &(struct wrong){.spike_at = 500,
                             .spike_steps = 6,
                             .slow_rank = true,
                             .gpu2 = ",\"sm_mhz\":1280,\"hw_thermal_s\":4",
                             .line = "{\"kind\":\"xid\",\"time\":1800000200,\"gpu\":1,\"xid\":31}"});
    check_screen(&m, 40, "40");
    check_screen(&m, 80, "80");
    check_screen(&m, 120, "120");
    monitor_free(&m);
    /* one GPU tells of its tensor cores: columns, and a dash where another does not; none at 40 columns */
    look(&m, &(struct wrong){.gpu2 = ",\"sm_mhz\":1485,\"tensor_percent\":61.4,\"dram_percent\":48"});
    check_screen(&m, 80, "activity");
    json_t *o = monitor_json(&m), *gpus = json_object_get(o, "gpus");
    double tensor;
    assert_int_equal(json_unpack(json_array_get(gpus, 2), "{s:F}", "tensor_percent", &tensor), 0);
    assert_true(tensor == 61.4 && json_object_get(json_array_get(gpus, 1), "tensor_percent") == NULL);
    json_decref(o);
    monitor_free(&m);
}

static void test_sound(void **state)
{
    (void)state;
    struct monitor m;
    look(&m, &(struct wrong){0});
    if (m.alerts.count > 0) fail_msg("%s: %s", m.alerts.list[0].name, m.alerts.list[0].text);
    assert_int_equal(monitor_exit(&m), STATUS_OK);
    assert_true(m.running && m.step == 700 && m.planned == 1000 && m.ranks == 3);
    assert_true(fabs(m.eta_s - 150) < 1 && m.watts == 680 + 681 + 682);
    assert_true(m.hosts[0].gpu[0].mhz_60 == 1485 && m.hosts[0].gpu[0].window_s > 300);
    monitor_free(&m);
}

static void test_alerts(void **state)
{
    (void)state;
    static const struct {
        struct wrong w;
        const char *name;
        status code;
    } rows[] = {
        {{.spike_at = 400, .spike_steps = 5}, "loss_spike", STATUS_OK},
        {{.spike_at = 660, .spike_steps = 99}, "loss_spike", STATUS_NUMERIC},
        {{.slow_from = 620}, "slow", STATUS_OK},
        {{.wait = 0.04}, "data_wait", STATUS_OK},
        {{.slow_rank = true}, "slow_rank", STATUS_OK},
        {{.quiet_s = 200}, "stall", STATUS_COMM},
        {{.dead = true}, "killed", STATUS_COMM},
        {{.disk = 2e10}, "disk", STATUS_IO},
        {{.gpu2 = ",\"sm_mhz\":1485,\"power_brake_s\":3"}, "throttle", STATUS_DEVICE},
        {{.gpu2 = ",\"sm_mhz\":1200"}, "straggler", STATUS_DEVICE},
        {{.gpu2 = ",\"sm_mhz\":1485,\"rows_pending\":1"}, "rows", STATUS_DEVICE},
        {{.line = "{\"kind\":\"gpu\",\"time\":1800000350,\"gpu\":1,\"nvml_error\":15}"},
         "lost",
         STATUS_DEVICE},
        {{.line = "{\"kind\":\"gpu\",\"time\":1800000350,\"gpu\":1,\"links_active\":17}"},
         "link",
         STATUS_DEVICE},
        {{.line = "{\"kind\":\"gpu\",\"time\":1800000350,\"gpu\":1,\"link_errors\":9}"},
         "link_errors",
         STATUS_OK},
        {{.line = "{\"kind\":\"gpu\",\"time\":1800000350,\"gpu\":1,\"ecc_uncorrected\":1}"},
         "ecc",
         STATUS_DEVICE},
        {{.line = "{\"kind\":\"xid\",\"time\":1800000350,\"gpu\":1,\"xid\":79}"}, "xid", STATUS_DEVICE}};
    struct monitor m;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        look(&m, &rows[i].w);
        const struct alert *a = find(&m, rows[i].name);
        if (a == NULL || m.alerts.count != 1)
            fail_msg("row %zu: %d alerts, the first is %s, meant is %s", i, m.alerts.count,
                     m.alerts.count ? m.alerts.list[0].name : "none", rows[i].name);
        assert_int_equal(a->code, rows[i].code);
        assert_int_equal(monitor_exit(&m), rows[i].code);
        monitor_free(&m);
    }
}

static void test_json(void **state)
{
    (void)state;
    struct monitor m;
    look(&m, &(struct wrong){.gpu2 = ",\"sm_mhz\":1200"});
    json_t *o = monitor_json(&m), *gpu;
    const char *schema, *run, *where, *text;
    double watts, mhz;
    assert_int_equal(
        json_unpack(o, "{s:s, s:s, s:{s:F}}", "schema", &schema, "run", &run, "energy", "watts", &watts), 0);
    assert_string_equal(schema, "ingot.monitor/1");
    assert_true(watts == 2043);
    assert_int_equal(json_array_size(json_object_get(o, "gpus")), 3);
    gpu = json_array_get(json_object_get(o, "gpus"), 2);
    assert_int_equal(json_unpack(gpu, "{s:F}", "sm_mhz", &mhz), 0);
    assert_true(mhz == 1200 && json_object_get(gpu, "nvml_error") == NULL); /* absent, not zero */
    gpu = json_array_get(json_object_get(o, "alerts"), 0);
    assert_int_equal(json_unpack(gpu, "{s:s, s:s}", "where", &where, "text", &text), 0);
    assert_string_equal(where, "node07 gpu2");
    json_decref(o);
    monitor_free(&m);
}

/* A run of another host, without GPUs and without an end: what there is. */
static void test_little(void **state)
{
    (void)state;
    struct monitor m;
    temp_clear();
    assert_int_equal(monitor_read(&m, temp_dir, BEGIN), STATUS_DATA);
    put_file("metrics.jsonl", "{\"kind\":\"schema\",\"format\":\"ingot metrics\",\"version\":1}\nnonsense\n");
    put_file("gpu-a.jsonl", "nonsense\n{\"kind\":\"gpu\",\"time\":\"x\"}\n{\"kind\":\"gpu\",\"time\":1}\n");
    put_file("gpu-.jsonl", "");
    assert_int_equal(monitor_read(&m, temp_dir, BEGIN), STATUS_OK);
    FILE *out = fopen("/dev/null", "we");
    assert_non_null(out);
    monitor_draw(&m, out, 80, false);
    fclose(out);
    json_decref(monitor_json(&m));
    assert_int_equal(m.host_count, 1);
    monitor_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_screens), cmocka_unit_test(test_sound),
                                       cmocka_unit_test(test_alerts), cmocka_unit_test(test_json),
                                       cmocka_unit_test(test_little)};
    return cmocka_run_group_tests(tests, temp_open, temp_close);
}
