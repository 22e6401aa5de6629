/* metrics.jsonl: what a resume keeps, exact numbers, and sinks that refuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>

#include "observe/observe_int.h"
#include "scratch.h"

/* Log lines of the code under test would clutter the output. */
static int quiet(void **state)
{
    (void)state;
    fflush(stderr);
    int null = open("/dev/null", O_WRONLY);
    return dup2(null, STDERR_FILENO) < 0;
}

static void write_steps(struct observe *o, int64_t from, int64_t to)
{
    for (int64_t step = from; step <= to; step++) {
        struct metrics m = METRICS_NONE;
        m.step = step;
        m.tokens = step * 100;
        m.loss = 1.0 / (double)step;
        observe_metrics(o, &m);
    }
}

/* Line `k` parsed; the caller frees it. NULL beyond the end. */
static json_t *line(const struct scratch *s, int k)
{
    char *text = scratch_read(s, "metrics.jsonl", NULL), *at = text;
    for (; k > 0 && at; k--) at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL;
    json_t *object = NULL;
    if (at && *at) {
        assert_non_null(strchr(at, '\n'));
        object = json_loadb(at, (size_t)(strchr(at, '\n') - at), 0, NULL);
        assert_non_null(object);
    }
    free(text);
    return object;
}
static void expect_steps(const struct scratch *s, int first_line, int64_t from, int64_t to)
{
    for (int64_t step = from; step <= to; step++) {
        json_t *o = line(s, first_line + (int)(step - from));
        assert_int_equal(json_integer_value(json_object_get(o, "step")), step);
        assert_int_equal(json_integer_value(json_object_get(o, "tokens")), step * 100);
        assert_true(json_real_value(json_object_get(o, "loss")) == 1.0 / (double)step);
        assert_null(json_object_get(o, "lr"));
        json_decref(o);
    }
}

static void a_resume_keeps_the_records_up_to_its_step(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct observe *o;
    assert_int_equal(observe_open(&o, s.dir, 0, 1), STATUS_OK);
    write_steps(o, 2, 9);
    observe_close(o);
    FILE *f = fopen(scratch_path(&s, "metrics.jsonl"), "a"); /* killed while writing */
    fputs("{\"kind\":\"step\",\"step\":10,\"lo", f);
    fclose(f);
    assert_int_equal(observe_open(&o, s.dir, 5, 1), STATUS_OK);
    json_t *schema = line(&s, 0);
    assert_string_equal(json_string_value(json_object_get(schema, "kind")), "schema");
    json_decref(schema);
    expect_steps(&s, 2, 2, 5);
    json_t *start = line(&s, 6);
    assert_string_equal(json_string_value(json_object_get(start, "kind")), "start");
    assert_int_equal(json_integer_value(json_object_get(start, "step")), 5);
    json_decref(start);
    assert_null(line(&s, 7));
    write_steps(o, 6, 12);
    observe_close(o);
    expect_steps(&s, 7, 6, 12);
    assert_null(line(&s, 14));
    scratch_remove(&s);
}

static void a_fresh_start_in_an_old_directory_keeps_no_records(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct observe *o;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(observe_open(&o, s.dir, 0, 1), STATUS_OK);
        write_steps(o, 2, 3);
        observe_close(o);
    }
    expect_steps(&s, 2, 2, 3);
    assert_null(line(&s, 4));
    scratch_remove(&s);
}

static void a_foreign_file_is_refused_and_left_alone(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    static const char *const foreign[] = {"{\"mine\":1}\n", "{\"step\":1}\n", "step,loss\n1,2\n"};
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        scratch_write(&s, "metrics.jsonl", foreign[i]);
        struct observe *o;
        assert_int_equal(observe_open(&o, s.dir, 0, 1), STATUS_IO);
        char *text = scratch_read(&s, "metrics.jsonl", NULL);
        assert_string_equal(text, foreign[i]);
        free(text);
    }
    char name[256];
    assert_int_equal(scratch_find(&s, "", 0, name), 3); /* ., .. and it: no temporary is left */
    scratch_remove(&s);
}

static void text_that_is_not_utf8_becomes_valid_json(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct observe *o;
    assert_int_equal(observe_open(&o, s.dir, 0, 1), STATUS_OK);
    observe_sample(o, 2, "a\"\n", "x\xff\xe2\x82 \xf0\x9f\x98\x80 \xed\xa0\x80");
    observe_fact(o, "gzip_bpb", 2.5);
    observe_fact(o, "none", NAN);
    observe_close(o);
    json_t *sample = line(&s, 2), *fact = line(&s, 3);
    assert_string_equal(json_string_value(json_object_get(sample, "prompt")), "a\"\n");
    assert_string_equal(
        json_string_value(json_object_get(sample, "text")),
        "x\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd \xf0\x9f\x98\x80 \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    assert_true(json_real_value(json_object_get(fact, "value")) == 2.5);
    assert_null(line(&s, 4));
    json_decref(sample);
    json_decref(fact);
    scratch_remove(&s);
}

static void numbers_read_back_to_the_same_double(void **state)
{
    (void)state;
    const double values[] = {
        0, -0.0, 1, 0.1, 1.0 / 3, 9.1234567890123456, 1e-300, 5e-324, 1.7976931348623157e308, 123456789};
    char buf[32];
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        double back = strtod(metrics_number(buf, values[i]), NULL);
        assert_memory_equal(&back, &values[i], sizeof back);
    }
    assert_string_equal(metrics_number(buf, 0.1), "0.1");
    assert_string_equal(metrics_number(buf, INFINITY), "\"inf\"");
}

static void a_full_disk_is_counted_and_stops_nothing(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct observe *o;
    assert_int_equal(symlink("/dev/full", scratch_path(&s, "metrics.jsonl")), 0);
    assert_int_equal(observe_open(&o, s.dir, 0, 1), STATUS_IO); /* a run's files are no links */
    assert_int_equal(unlink(scratch_path(&s, "metrics.jsonl")), 0);
    file_size_limit(0);
    assert_int_equal(observe_open(&o, s.dir, 0, 1),
                     STATUS_IO); /* without its schema no reader takes the file */
    file_size_limit(RLIM_INFINITY);
    assert_int_equal(observe_open(&o, s.dir, 0, 1), STATUS_OK);
    file_size_limit(0);
    write_steps(o, 1, 5);
    observe_sample(o, 5, "p", "t");
    observe_flush(o);
    file_size_limit(RLIM_INFINITY);
    assert_int_equal(observe_failures(o), 11); /* 5 records in two files, 1 sample */
    observe_close(o);
    scratch_remove(&s);
}

/* Two records, then the disk is full; it has room again before the file is flushed, before the next record, or not. */
static void refused_records_are_written_later_in_order(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) {
        struct scratch s = scratch_make();
        struct observe *o;
        assert_int_equal(observe_open(&o, s.dir, 0, 1), STATUS_OK);
        write_steps(o, 2, 3);
        file_size_limit(0);
        write_steps(o, 4, 6);
        file_size_limit(RLIM_INFINITY);
        assert_null(line(&s, 4));
        if (how == 0) observe_flush(o);
        if (how == 1) write_steps(o, 7, 7);
        if (how == 2) observe_close(o);
        expect_steps(&s, 2, 2, how == 1 ? 7 : 6);
        assert_null(line(&s, how == 1 ? 8 : 7));
        if (how < 2) observe_close(o);
        scratch_remove(&s);
    }
}

/* Killed before they could be written: the next life names them. */
static void what_a_killed_run_has_not_written_is_a_gap(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct observe *o, *killed;
    assert_int_equal(observe_open(&killed, s.dir, 0, 2), STATUS_OK);
    write_steps(killed, 2, 2);
    write_steps(killed, 4, 4);
    assert_int_equal(observe_open(&o, s.dir, 5, 2), STATUS_OK); /* step 5 had no record of its own */
    observe_close(o);
    json_t *start = line(&s, 4);
    assert_string_equal(json_string_value(json_object_get(start, "kind")), "start");
    json_decref(start);
    for (int life = 0; life < 2; life++) { /* of the second one, too, the first has named it */
        assert_int_equal(observe_open(&o, s.dir, 11, 2), STATUS_OK);
        observe_close(o);
    }
    json_t *gap = line(&s, 5);
    assert_string_equal(json_string_value(json_object_get(gap, "kind")), "gap");
    assert_int_equal(json_integer_value(json_object_get(gap, "from")), 6);
    assert_int_equal(json_integer_value(json_object_get(gap, "step")), 10);
    json_decref(gap);
    assert_null(line(&s, 8)); /* two starts follow */
    observe_close(killed);
    scratch_remove(&s);
}

/* More records than are kept: those beyond are counted, and their steps named when there is room again. */
static void too_many_refused_records_leave_a_gap(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct observe *o;
    const int64_t last = 20000;
    assert_int_equal(observe_open(&o, s.dir, 0, 1), STATUS_OK);
    file_size_limit(0);
    write_steps(o, 1, last);
    file_size_limit(RLIM_INFINITY);
    write_steps(o, last + 1, last + 1);
    observe_close(o);
    char *text = scratch_read(&s, "metrics.jsonl", NULL), *at = text;
    int64_t next = 1, first = 0, to = 0;
    for (char *end; (end = strchr(at, '\n')) != NULL; at = end + 1) {
        json_t *r = json_loadb(at, (size_t)(end - at), 0, NULL);
        const char *kind = json_string_value(json_object_get(r, "kind"));
        const int64_t step = json_integer_value(json_object_get(r, "step"));
        if (strcmp(kind, "gap") == 0) {
            first = next;
            assert_int_equal(json_integer_value(json_object_get(r, "from")), next);
            to = step;
            next = step + 1;
        }
        if (strcmp(kind, "step") == 0) assert_int_equal(step, next++);
        json_decref(r);
    }
    free(text);
    assert_true(first > 1000 && first < last);
    assert_int_equal(to, last);
    assert_int_equal(next, last + 2);
    scratch_remove(&s);
}

static void a_refused_record_is_written_before_the_next(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct observe *o;
    assert_int_equal(observe_open(&o, s.dir, 0, 1), STATUS_OK);
    write_steps(o, 2, 3);
    io_fault_set(1, 28); /* the next write: no space left */
    write_steps(o, 4, 4);
    io_fault_set(0, 0);
    write_steps(o, 5, 6);
    assert_int_equal(observe_failures(o), 1);
    expect_steps(&s, 2, 2, 6);
    assert_null(line(&s, 7));
    observe_close(o);
    scratch_remove(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_resume_keeps_the_records_up_to_its_step),
        cmocka_unit_test(a_fresh_start_in_an_old_directory_keeps_no_records),
        cmocka_unit_test(a_foreign_file_is_refused_and_left_alone),
        cmocka_unit_test(text_that_is_not_utf8_becomes_valid_json),
        cmocka_unit_test(numbers_read_back_to_the_same_double),
        cmocka_unit_test(a_full_disk_is_counted_and_stops_nothing),
        cmocka_unit_test(a_refused_record_is_written_before_the_next),
        cmocka_unit_test(refused_records_are_written_later_in_order),
        cmocka_unit_test(what_a_killed_run_has_not_written_is_a_gap),
        cmocka_unit_test(too_many_refused_records_leave_a_gap),
    };
    return cmocka_run_group_tests(tests, quiet, NULL);
}
