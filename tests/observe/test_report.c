/* report.html from whole, crashed, empty and hostile runs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <math.h>

#include "observe/env.h"
#include "observe/report_int.h"
#include "observe/observe_int.h"
#include "scratch.h"

static char *page(const struct scratch *s)
{
    assert_int_equal(report_write(s->dir), STATUS_OK);
    return scratch_read(s, "report.html", NULL);
}
static void expect(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) fail_msg("not on the page: %s", part);
}
static void expect_no(const char *text, const char *part)
{
    if (strstr(text, part) != NULL) fail_msg("on the page: %s", part);
}
static int count(const char *text, const char *part)
{
    int n = 0;
    for (; (text = strstr(text, part)) != NULL; text++) n++;
    return n;
}

/* A run of `steps` steps as a trainer writes it, with made-up times. */
static void write_run(const struct scratch *s, int steps)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/metrics.jsonl", s->dir);
    struct sink sink;
    assert_int_equal(sink_open(&sink, path, SINK_TRUNCATE), STATUS_OK);
    metrics_schema(&sink);
    metrics_start(&sink, 0, 1000);
    for (int i = 1; i <= steps; i++) {
        struct metrics m = METRICS_NONE;
        m.step = i;
        m.tokens = i * 100;
        m.loss = 3 + 5.0 / i;
        m.lr = 1e-3;
        m.grad_norm = 1;
        m.tokens_per_s = 20000;
        if (i % 10 == 0) m.val_loss = 3.25, m.val_bpb = 1.5;
        metrics_write(&sink, &m, 1000 + i);
    }
    metrics_named(&sink, "fact", steps, "gzip_bpb", 2.5);
    metrics_named(&sink, "fact", steps, "xz_bpb", 2.25);
    metrics_named(&sink, "fact", steps, "planned_bytes", 1048576);
    metrics_named(&sink, "fact", steps, "measured_bytes", 1048576);
    metrics_named(&sink, "fact", steps, "predicted_step_s", 0.03125);
    metrics_named(&sink, "fact", steps, "measured_step_s", 0.04375);
    metrics_named(&sink, "stage", steps, "gemm", 30);
    metrics_named(&sink, "stage", steps, "other", 10);
    metrics_sample(&sink, steps, "In the", " beginning");
    sink_close(&sink);
}

static void a_finished_run_shows_its_numbers_and_curves(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    write_run(&s, 100);
    const struct env_run run = {
        .device = "cpu", .isa = "v3", .precision = "bf16", .threads = 2, .parameters = 10200000};
    assert_int_equal(env_write(s.dir, &run), STATUS_OK);
    assert_int_equal(env_write_exit(s.dir, 0, "all steps", 100), STATUS_OK);
    scratch_write(&s, "config.yaml", "train:\n  steps: 100\n");
    char *text = page(&s);
    const char *const parts[] = {"finished",   "all steps", "Loss",    "Learning rate", "Gradient norm",
                                 "Throughput", "3.2500",    "1.5000",  "gzip -9",       "2.500",
                                 "2.250",      "20.0k",     "1m40s",   "10.2M",         "1.00 MiB",
                                 "gemm",       "75.0 %",    "In the",  "beginning",     "steps: 100",
                                 "2 threads",  "bf16",      "0.03125", "0.04375"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) expect(text, parts[i]);
    assert_int_equal(count(text, "<svg"), 4);
    assert_int_equal(count(text, "<circle class=dot"), 10);
    assert_int_equal(count(text, "<figure>"), count(text, "</figure>"));
    assert_int_equal(count(text, "<g"), count(text, "</g>"));
    expect_no(text, "://"); /* no request goes out, not even for a name space */
    expect_no(text, "nan");
    char *again = page(&s);
    assert_string_equal(text, again);
    free(text);
    free(again);
    scratch_remove(&s);
}

static void the_exit_record_decides_the_word_at_the_top(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    write_run(&s, 5);
    char *text = page(&s);
    expect(text, "running, or killed");
    free(text);
    assert_int_equal(env_write_exit(s.dir, STATUS_STOPPED, "SIGTERM", 5), STATUS_OK);
    text = page(&s);
    expect(text, "stopped early");
    expect(text, "SIGTERM");
    free(text);
    assert_int_equal(env_write_exit(s.dir, STATUS_NUMERIC, "loss is <nan>", 5), STATUS_OK);
    text = page(&s);
    expect(text, "failed (exit 6)");
    expect(text, "loss is &lt;nan&gt;");
    free(text);
    assert_int_equal(env_write(s.dir, &(struct env_run){.device = "cpu"}),
                     STATUS_OK); /* goes on: no end yet */
    text = page(&s);
    expect(text, "running, or killed");
    free(text);
    scratch_remove(&s);
}

static void a_run_without_records_has_a_page(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    assert_int_equal(report_write(s.dir), STATUS_DATA); /* not a run directory at all */
    assert_false(io_exists(scratch_path(&s, "report.html")));
    scratch_write(&s, "metrics.jsonl", "");
    char *text = page(&s);
    expect(text, "No step has been recorded");
    expect_no(text, "<svg");
    expect_no(text, "nan");
    free(text);
    write_run(&s, 1);
    text = page(&s);
    assert_int_equal(count(text, "<svg"), 4);
    expect_no(text, "nan");
    free(text);
    scratch_remove(&s);
}

static void hostile_text_stays_text(void **state)
{
    (void)state;
    static const char evil[] = "</pre><script>alert(1)</script><img src=x onerror='alert(2)'>\"&\x01\xff";
    struct scratch s = scratch_make();
    write_run(&s, 5);
    struct sink sink;
    assert_int_equal(sink_open(&sink, scratch_path(&s, "metrics.jsonl"), SINK_APPEND), STATUS_OK);
    metrics_sample(&sink, 5, evil, evil);
    metrics_named(&sink, "fact", 5, evil, 1);
    metrics_named(&sink, "fact", 5, "planned_bytes.<img>", 1);
    metrics_named(&sink, "stage", 5, evil, 1);
    sink_close(&sink);
    scratch_write(&s, "config.yaml", evil);
    const struct env_run run = {.device = evil, .isa = evil, .precision = evil};
    assert_int_equal(env_write(s.dir, &run), STATUS_OK);
    assert_int_equal(env_write_exit(s.dir, 70, evil, 5), STATUS_OK);
    char *text = page(&s);
    assert_int_equal(count(text, "<script"), 1); /* ours */
    assert_int_equal(count(text, "</pre>"), 1);
    expect_no(text, "<img");
    expect(text, "&lt;script&gt;alert(1)");
    expect(text, "&quot;&amp;\xef\xbf\xbd\xef\xbf\xbd");
    free(text);
    scratch_remove(&s);
}

static void bad_records_are_counted_and_left_out(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    scratch_write(
        &s, "metrics.jsonl",
        "{\"kind\":\"schema\"}\n"
        "{\"kind\":\"step\",\"step\":1,\"tokens\":9e99,\"loss\":1e308,\"lr\":-1e29}\n"
        "{\"kind\":\"step\",\"step\":1e29,\"tokens\":-5,\"loss\":-1e29,\"lr\":1e29,\"time\":\"x\"}\n"
        "{\"kind\":\"step\",\"step\":-1,\"loss\":\"inf\"}\n"
        "{\"kind\":\"sample\",\"step\":3}\n"
        "{\"kind\":\"of tomorrow\",\"step\":3}\n"
        "[1]\nnothing\n"
        "{\"kind\":\"fact\",\"name\":\"gzip_bpb\",\"value\":-1}\n"
        "{\"kind\":\"fact\",\"name\":\"far_s\",\"value\":1e29}\n"
        "{\"kind\":\"stage\",\"name\":\"a\",\"value\":1e-300}\n"
        "{\"kind\":\"step\",\"step\":2,\"lo");
    scratch_write(&s, "env.json", "[[[");
    scratch_write(&s, "exit.json", "{\"code\":\"zero\"}");
    char *text = page(&s);
    expect(text, "could not be read: 3.");
    expect(text, "failed");
    expect_no(text, "nan");
    free(text);
    scratch_remove(&s);
}

static void the_smooth_line_follows_a_straight_one_exactly(void **state)
{
    (void)state;
    enum { N = 1000 };
    double x[N], y[N];
    for (int i = 0; i < N; i++) x[i] = i, y[i] = 8 - 0.005 * i;
    const struct series s = {x, y, N, N};
    double *sums = series_sums(&s);
    for (int i = 0; i < N; i++) assert_true(fabs(series_smooth(&s, sums, i) - y[i]) < 1e-9);
    free(sums);
}

static void the_environment_is_json_with_what_the_caller_knows(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    setenv("OMP_SCHEDULE", "static", 1);
    const struct env_run run = {
        .device = "cpu", .isa = "v4", .precision = "fp32", .threads = 3, .parameters = 7};
    assert_int_equal(env_write(s.dir, &run), STATUS_OK);
    char *text = scratch_read(&s, "env.json", NULL);
    json_t *o = json_loads(text, 0, NULL);
    assert_non_null(o);
    assert_string_equal(json_string_value(json_object_get(o, "isa")), "v4");
    assert_int_equal(json_integer_value(json_object_get(o, "threads")), 3);
    assert_int_equal(json_integer_value(json_object_get(o, "parameters")), 7);
    assert_string_equal(json_string_value(json_object_get(o, "ingot")), INGOT_VERSION);
    assert_true(json_integer_value(json_object_get(o, "cores")) > 0);
    assert_true(json_integer_value(json_object_get(o, "memory_bytes")) > 0);
    assert_non_null(json_object_get(o, "onednn"));
    assert_non_null(json_object_get(o, "host"));
    assert_int_equal(strlen(json_string_value(json_object_get(o, "start"))), 20);
    json_t *settings = json_object_get(o, "settings");
    assert_string_equal(json_string_value(json_object_get(settings, "OMP_SCHEDULE")), "static");
    json_decref(o);
    free(text);
    scratch_remove(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_finished_run_shows_its_numbers_and_curves),
        cmocka_unit_test(the_exit_record_decides_the_word_at_the_top),
        cmocka_unit_test(a_run_without_records_has_a_page),
        cmocka_unit_test(hostile_text_stays_text),
        cmocka_unit_test(bad_records_are_counted_and_left_out),
        cmocka_unit_test(the_smooth_line_follows_a_straight_one_exactly),
        cmocka_unit_test(the_environment_is_json_with_what_the_caller_knows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
