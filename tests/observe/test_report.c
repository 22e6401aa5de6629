/* Pages from whole, resumed, crashed, empty, long and hostile runs, and the list of runs. What the charts of a
 * page show is taken from the data in it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <math.h>

#include "base/process.h"
#include "observe/env.h"
#include "observe/observe_int.h"
#include "observe/report_int.h"
#include "observe/runs.h"
#include "scratch.h"
#include "train/runlock.h"

static char *page(const struct scratch *s)
{
    assert_int_equal(report_write(s->dir, NULL), STATUS_OK);
    return scratch_read(s, "report.html", NULL);
}
/* The data of a page's charts. */
static json_t *chart_data(const char *text)
{
    static const char begin[] = "<script type=application/json id=data>", end[] = "</script>";
    const char *from = strstr(text, begin);
    if (from == NULL) fail_msg("no data on the page");
    from += sizeof begin - 1;
    json_error_t error;
    json_t *o = json_loadb(from, (size_t)(strstr(from, end) - from), 0, &error);
    if (o == NULL) fail_msg("the data of the charts: line %d: %s", error.line, error.text);
    return o;
}
/* A column of a series of run k; NULL: there is none. */
static json_t *column(json_t *data, int k, const char *series, int c)
{
    json_t *run = json_array_get(json_object_get(data, "runs"), (size_t)k);
    return json_array_get(json_object_get(json_object_get(run, "series"), series), (size_t)c);
}
static double at(const json_t *list, size_t i)
{
    assert_true(i < json_array_size(list));
    return json_number_value(json_array_get(list, i));
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
    assert_int_equal(metrics_schema(&sink), STATUS_OK);
    metrics_start(&sink, 0, 1000, 1);
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
    metrics_named(&sink, "stage", steps, "block.fwd", 30);
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
    const char *const parts[] = {"finished",
                                 "all steps",
                                 "3.2500",
                                 "1.5000",
                                 "gzip -9",
                                 "2.500",
                                 "2.250",
                                 "20.0k",
                                 "1m40s",
                                 "10.2M",
                                 "1.00 MiB",
                                 "forward pass",
                                 "75.0 %",
                                 "In the",
                                 "beginning",
                                 "steps: 100",
                                 "2 threads",
                                 "bf16",
                                 "0.03125",
                                 "0.04375",
                                 "100 of 100 steps",
                                 "0.00098 tokens per parameter"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) expect(text, parts[i]);
    json_t *data = chart_data(text), *loss = column(data, 0, "loss", 1);
    assert_int_equal(json_array_size(loss), 100);
    assert_true(fabs(at(loss, 99) - 3.05) < 1e-9 && at(column(data, 0, "loss", 0), 99) == 100);
    assert_int_equal(json_array_size(column(data, 0, "val_bpb", 1)), 10);
    assert_null(column(data, 0, "loss", 2)); /* not thinned */
    assert_null(column(data, 0, "load_max", 0));
    json_t *axis = json_object_get(json_array_get(json_object_get(data, "runs"), 0), "axis");
    assert_true(at(json_object_get(axis, "step"), 49) == 50);
    assert_true(at(json_object_get(axis, "tokens"), 49) == 5000);
    assert_true(at(json_object_get(axis, "time"), 49) == 50);
    json_decref(data);
    expect_no(text, "://"); /* no request goes out, not even for a name space */
    expect_no(text, "nan");
    expect_no(text, "0.0 tokens");
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
    expect(text, "'pill warn'>killed</span>"); /* nothing to resume from */
    free(text);
    assert_int_equal(io_make_dirs(scratch_path(&s, "ckpt")), STATUS_OK);
    text = page(&s);
    expect(text, "killed; can be resumed");
    free(text);
    int lock;
    assert_int_equal(runlock_take(s.dir, &lock), STATUS_OK);
    text = page(&s);
    expect(text, "'pill none'>running</span>");
    free(text);
    runlock_release(&lock);
    assert_int_equal(env_write_exit(s.dir, STATUS_OK, "finished", 5), STATUS_OK);
    text = page(&s);
    expect(text, "'>finished</span></div>"); /* once */
    free(text);
    assert_int_equal(env_write_exit(s.dir, STATUS_STOPPED, "SIGTERM", 5), STATUS_OK);
    text = page(&s);
    expect(text, "stopped; can be resumed");
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
    expect(text, "killed");
    free(text);
    scratch_remove(&s);
}

static void a_run_without_records_has_a_page(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    assert_int_equal(report_write(s.dir, NULL), STATUS_DATA); /* not a run directory at all */
    assert_false(scratch_there(scratch_path(&s, "report.html")));
    scratch_write(&s, "metrics.jsonl", "");
    char *text = page(&s);
    expect(text, "No step has been recorded");
    expect_no(text, "id=charts");
    expect_no(text, "nan");
    free(text);
    write_run(&s, 1);
    text = page(&s);
    json_t *data = chart_data(text);
    assert_int_equal(json_array_size(column(data, 0, "loss", 1)), 1);
    assert_null(column(data, 0, "val_loss", 0)); /* no evaluation yet */
    json_decref(data);
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
    assert_int_equal(count(text, "<script"), 2); /* ours */
    assert_int_equal(count(text, "</script"), 2);
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
    expect(text, "could not be read: 5.");
    expect(text, "failed");
    expect_no(text, "nan");
    free(text);
    scratch_remove(&s);
}

/* Two processes, the second of which began with a step that was done and sampled; a third was killed. */
static void all_processes_of_a_run_count(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    scratch_write(&s, "metrics.jsonl",
                  "{\"kind\":\"schema\"}\n{\"kind\":\"start\",\"step\":0,\"time\":1000}\n"
                  "{\"kind\":\"step\",\"step\":1,\"tokens\":10,\"time\":1010,\"loss\":3}\n"
                  "{\"kind\":\"sample\",\"step\":1,\"prompt\":\"a\",\"text\":\"first text\"}\n"
                  "{\"kind\":\"stage\",\"step\":1,\"name\":\"block.fwd\",\"value\":4}\n" /* at a save */
                  "{\"kind\":\"stage\",\"step\":1,\"name\":\"block.fwd\",\"value\":6}\n"
                  "{\"kind\":\"stage\",\"step\":1,\"name\":\"train.eval\",\"value\":3}\n"
                  "{\"kind\":\"stage\",\"step\":1,\"name\":\"other\",\"value\":1}\n"
                  "{\"kind\":\"start\",\"step\":1,\"time\":5000}\n"
                  "{\"kind\":\"sample\",\"step\":1,\"prompt\":\"a\",\"text\":\"second text\"}\n"
                  "{\"kind\":\"sample\",\"step\":1,\"prompt\":\"b\",\"text\":\"another prompt\"}\n"
                  "{\"kind\":\"step\",\"step\":2,\"tokens\":20,\"time\":5010,\"loss\":2}\n"
                  "{\"kind\":\"stage\",\"step\":2,\"name\":\"block.fwd\",\"value\":4}\n"
                  "{\"kind\":\"stage\",\"step\":2,\"name\":\"train.sample\",\"value\":5}\n"
                  "{\"kind\":\"stage\",\"step\":2,\"name\":\"tables.collect\",\"value\":0.001}\n"
                  "{\"kind\":\"start\",\"step\":2,\"time\":9000}\n"
                  "{\"kind\":\"step\",\"step\":3,\"tokens\":30,\"time\":9040,\"loss\":1}\n");
    char *text = page(&s);
    expect(text, "in 3 processes");
    expect(text, "41s of processes that were killed were not measured");
    expect(text, "forward pass<td class=n>10.0 s<td class=n>52.6 %");
    expect(text, "evaluation<td class=n>3.00 s");
    expect(text, "samples<td class=n>5.00 s");
    expect_no(text, "communication"); /* 0.0 % */
    expect(text, "tables.collect");   /* but in the list of scopes */
    expect_no(text, "first text");
    expect(text, "second text");
    expect(text, "another prompt");
    json_t *data = chart_data(text), *run = json_array_get(json_object_get(data, "runs"), 0);
    const json_t *seconds = json_object_get(json_object_get(run, "axis"), "time");
    assert_true(at(seconds, 0) == 10 && at(seconds, 1) == 20 &&
                at(seconds, 2) == 60); /* without the pauses */
    assert_int_equal(json_array_size(json_object_get(run, "starts")), 2);
    json_decref(data);
    free(text);
    scratch_remove(&s);
}

static void a_long_run_is_thinned_and_keeps_its_spikes(void **state)
{
    (void)state;
    enum { STEPS = 50000, SPIKE = 33333 };
    struct scratch s = scratch_make();
    FILE *f = fopen(scratch_path(&s, "metrics.jsonl"), "w");
    assert_non_null(f);
    for (int i = 1; i <= STEPS; i++) {
        const char *loss = i % 2 ? "3" : "2";
        if (i == SPIKE) loss = "99";
        if (i == SPIKE + 1) loss = "NaN"; /* no JSON: counted as unreadable */
        fprintf(f, "{\"kind\":\"step\",\"step\":%d,\"tokens\":%d,\"time\":%d,\"loss\":%s,\"grad_norm\":1}\n",
                i, 10 * i, i, loss);
    }
    fclose(f);
    char *text = page(&s);
    assert_true(strlen(text) < 300000);
    expect(text, "Of 49999 records each chart shows 1000 intervals");
    expect(text, "could not be read: 1.");
    json_t *data = chart_data(text), *low = column(data, 0, "loss", 2), *high = column(data, 0, "loss", 3);
    assert_int_equal(json_array_size(high), 1000);
    int spikes = 0;
    for (size_t i = 0; i < 1000; i++) {
        const double mean = at(column(data, 0, "loss", 1), i);
        assert_true(at(low, i) == 2 && mean > 2.4 && mean < 5);
        spikes += at(high, i) == 99;
    }
    assert_int_equal(spikes, 1);
    json_decref(data);
    free(text);
    scratch_remove(&s);
}

/* Two runs that differ in a setting, in directories of their own. */
static void write_pair(const struct scratch *s, struct scratch runs[2])
{
    static const char *const configs[] = {"optim:\n  lr: 0.001\nrun:\n  name: a\ntrain:\n  steps: 40\n",
                                          "optim:\n  lr: 0.002\nrun:\n  name: b\ntrain:\n  steps: 80\n"};
    for (int i = 0; i < 2; i++) {
        snprintf(runs[i].dir, sizeof runs[i].dir, "%.480s/%s", s->dir, i ? "b<!--<script>" : "a");
        assert_int_equal(io_make_dirs(runs[i].dir), STATUS_OK);
        write_run(&runs[i], 40 * (i + 1));
        scratch_write(&runs[i], "config.yaml", configs[i]);
    }
}

static void several_runs_are_compared_on_one_page(void **state)
{
    (void)state;
    struct scratch s = scratch_make(), runs[2];
    write_pair(&s, runs);
    const char *dirs[] = {runs[0].dir, runs[1].dir, s.dir};
    char path[1024];
    snprintf(path, sizeof path, "%s/compare.html", s.dir);
    assert_int_equal(report_compare(dirs, 3, path), STATUS_DATA); /* the last one is no run */
    assert_false(scratch_there(path));
    assert_int_equal(report_compare(dirs, 2, path), STATUS_OK);
    char *text = scratch_read(&s, "compare.html", NULL);
    json_t *data = chart_data(text);
    assert_int_equal(json_array_size(column(data, 0, "loss", 1)), 40);
    assert_int_equal(json_array_size(column(data, 1, "loss", 1)), 80);
    json_t *name = json_object_get(json_array_get(json_object_get(data, "runs"), 1), "name");
    assert_string_equal(json_string_value(name), "b<!--<script>");
    json_decref(data);
    assert_int_equal(count(text, "<script"), 2);
    expect(text, "<td>optim.lr<td>0.001<td>0.002");
    expect(text, "<td>steps<td>40 of 40<td>80 of 80");
    expect_no(text, "<td>run.name");
    expect_no(text, "<td>accuracy"); /* neither run has one */
    free(text);
    dirs[1] = dirs[0]; /* one name twice: the paths tell them apart */
    assert_int_equal(report_compare(dirs, 2, path), STATUS_OK);
    text = scratch_read(&s, "compare.html", NULL);
    data = chart_data(text);
    name = json_object_get(json_array_get(json_object_get(data, "runs"), 1), "name");
    assert_string_equal(json_string_value(name), dirs[0]);
    json_decref(data);
    free(text);
    scratch_remove(&s);
}

static void the_runs_of_a_directory_are_found(void **state)
{
    (void)state;
    struct scratch s = scratch_make(), runs[2];
    write_pair(&s, runs);
    assert_int_equal(env_write_exit(runs[0].dir, STATUS_NUMERIC, "loss", 40), STATUS_OK);
    struct run_summary *list;
    int n;
    assert_int_equal(runs_find(s.dir, &list, &n), STATUS_OK);
    assert_int_equal(n, 2);
    assert_string_equal(list[0].name, "b<!--<script>"); /* wrote last */
    assert_string_equal(list[0].state, "killed");
    assert_string_equal(list[1].state, "failed (exit 6)");
    assert_int_equal(list[1].steps, 40);
    assert_int_equal(list[0].planned, 80);
    assert_int_equal(list[1].tokens, 4000);
    assert_true(list[1].val_loss == 3.25 && list[1].tokens_per_s == 20000 && list[1].last_s == 1040);
    free(list);
    assert_int_equal(runs_find(runs[1].dir, &list, &n), STATUS_OK);
    assert_int_equal(n, 1); /* a run itself */
    free(list);
    assert_int_equal(runs_find(scratch_path(&s, "none"), &list, &n), STATUS_IO);
    assert_null(list);
    assert_int_equal(runs_find(scratch_path(&runs[0], "config.yaml"), &list, &n), STATUS_IO);
    scratch_remove(&s);
}

static void the_page_says_how_it_was_made_and_what_comes_next(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    write_run(&s, 5);
    scratch_write(&s, "config.yaml",
                  "data:\n  val: \"v_*.bin\"\ntrain:\n  steps: 0\n  tokens: 1001\n  batch_tokens: 100\n");
    char *text = page(&s);
    expect(text, "5 of 11 steps");
    expect_no(text, "<span>generate</span>"); /* there is no checkpoint */
    free(text);
    assert_int_equal(io_make_dirs(scratch_path(&s, "ckpt")), STATUS_OK);
    scratch_write(
        &s, "env.json",
        "{\"command\": \"bin/ingot train 'x y.yaml'\", \"start\": \"2026-11-04T12:40:04Z\", \"ranks\": 4,"
        "\"worktree\": {\"commit\": \"0123456789abcdef\", \"branch\": \"main\", \"dirty\": true},"
        "\"first\": {\"command\": \"ingot train first.yaml\", \"start\": \"never\"},"
        "\"data\": {\"train\": [{\"name\": \"web\", \"path\": \"w_*.bin\", \"tokens\": 1500, \"share\": "
        "0.75},"
        "{\"name\": \"math\", \"path\": \"m_*.bin\", \"tokens\": 500, \"share\": 0.25}], \"val\": "
        "\"v_*.bin\","
        "\"val_tokens\": 100, \"tokenizer\": \"tok\", \"tokenizer_sha256\": \"abcdef\", \"vocab_size\": "
        "300}}");
    text = page(&s);
    const char *const parts[] = {"bin/ingot train &#39;x y.yaml&#39;",
                                 "ingot train first.yaml",
                                 "4 Nov 2026, 12:40 UTC",
                                 "<td>never",
                                 "0123456789ab on main, with uncommitted changes",
                                 "web: 1.50k tokens, 75 % of the run",
                                 "100 tokens <small>v_*.bin",
                                 "tok, 300 token ids, sha256 abcdef",
                                 "--prompt &#39;In the&#39;",
                                 "<code>bin/ingot eval ",
                                 " launch -n 4 -- train "};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) expect(text, parts[i]);
    expect_no(text, "<div class=sub>2026"); /* not as env.json has it */
    assert_int_equal(count(text, "<code>"), count(text, ">copy</button>"));
    free(text);
    scratch_remove(&s);
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
    assert_null(json_object_get(o, "worktree")); /* no work tree of git */
    assert_null(json_object_get(o, "first"));
    json_decref(o);
    free(text);
    scratch_remove(&s);
}

static void git(const struct scratch *s, const char *const *words)
{
    const char *argv[16] = {
        "git", "-C", s->dir, "-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=trunk"};
    char out[256];
    for (int i = 0; words[i]; i++) argv[9 + i] = words[i];
    assert_int_equal(process_read(argv, 600, out, sizeof out), STATUS_OK);
}

static void the_environment_knows_the_work_tree_and_the_first_command(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    scratch_write(&s, "file", "1");
    git(&s, (const char *const[]){"init", "-q", NULL});
    git(&s, (const char *const[]){"add", "file", NULL});
    git(&s, (const char *const[]){"commit", "-q", "-m", "x", NULL});
    for (int dirty = 0; dirty < 2; dirty++) {
        if (dirty) scratch_write(&s, "file", "2 and more");
        assert_int_equal(env_write(s.dir, &(struct env_run){.device = "cpu", .resumed = dirty}), STATUS_OK);
        json_t *o = json_load_file(scratch_path(&s, "env.json"), 0, NULL),
               *tree = json_object_get(o, "worktree");
        assert_int_equal(strlen(json_string_value(json_object_get(tree, "commit"))), 40);
        assert_string_equal(json_string_value(json_object_get(tree, "branch")), "trunk");
        assert_int_equal(json_is_true(json_object_get(tree, "dirty")), dirty);
        json_t *first = json_object_get(o, "first");
        assert_int_equal(first != NULL, dirty);
        if (dirty)
            assert_string_equal(json_string_value(json_object_get(first, "command")),
                                json_string_value(json_object_get(o, "command")));
        json_decref(o);
    }
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
        cmocka_unit_test(all_processes_of_a_run_count),
        cmocka_unit_test(a_long_run_is_thinned_and_keeps_its_spikes),
        cmocka_unit_test(several_runs_are_compared_on_one_page),
        cmocka_unit_test(the_runs_of_a_directory_are_found),
        cmocka_unit_test(the_page_says_how_it_was_made_and_what_comes_next),
        cmocka_unit_test(the_environment_knows_the_work_tree_and_the_first_command),
        cmocka_unit_test(the_environment_is_json_with_what_the_caller_knows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
