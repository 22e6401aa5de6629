/* The Chrome trace is JSON that nests, the step breakdown adds up, and both listen at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>

#include "base/clock.h"
#include "observe/observe_int.h"
#include "scratch.h"

static void spin_us(int64_t us)
{
    for (int64_t end = clock_ns() + us * 1000; clock_ns() < end;) {}
}

static void one_step(int64_t step)
{
    SCOPE("train.step", step);
    for (int64_t layer = 0; layer < 3; layer++) {
        SCOPE("block.fwd", layer);
        spin_us(100);
        SCOPE("attn \"q\\k\"", -1);
        spin_us(100);
    }
    spin_us(50);
}

static void *loader(void *arg)
{
    (void)arg;
    pthread_setname_np(pthread_self(), "loader");
    for (int i = 0; i < 5; i++) {
        SCOPE("data.read", -1);
        spin_us(200);
    }
    return NULL;
}

struct span {
    double start, end;
};
/* Spans of one thread nest: any two are disjoint or one holds the other. */
static void expect_nesting(json_t *events, int tid)
{
    struct span spans[256];
    int n = 0;
    size_t i;
    json_t *e;
    json_array_foreach(events, i, e)
    {
        if (strcmp(json_string_value(json_object_get(e, "ph")), "X") != 0) continue;
        if (json_integer_value(json_object_get(e, "tid")) != tid) continue;
        double start = json_number_value(json_object_get(e, "ts"));
        spans[n++] = (struct span){start, start + json_number_value(json_object_get(e, "dur"))};
    }
    assert_true(n > 0);
    const double eps = 2e-3; /* times are rounded to the nanosecond, and the end is a sum of two */
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++) {
            bool apart = spans[a].end <= spans[b].start + eps || spans[b].end <= spans[a].start + eps;
            bool a_in_b = spans[a].start >= spans[b].start - eps && spans[a].end <= spans[b].end + eps;
            bool b_in_a = spans[b].start >= spans[a].start - eps && spans[b].end <= spans[a].end + eps;
            assert_true(apart || a_in_b || b_in_a);
        }
}

/* The thread of that name; -1 when there is none. */
static int thread_named(json_t *events, const char *want)
{
    int tid = -1;
    size_t i;
    json_t *e;
    json_array_foreach(events, i, e)
    {
        if (strcmp(json_string_value(json_object_get(e, "name")), "thread_name") != 0) continue;
        const char *name = json_string_value(json_object_get(json_object_get(e, "args"), "name"));
        if (strcmp(name, want) == 0) tid = (int)json_integer_value(json_object_get(e, "tid"));
    }
    return tid;
}

static json_t *parse(const char *text)
{
    json_error_t error;
    json_t *events = json_loads(text, 0, &error);
    if (events == NULL) fail_msg("line %d: %s", error.line, error.text);
    return events;
}

static void a_trace_is_json_that_nests(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    {
        SCOPE("open before the trace", -1);
        assert_int_equal(trace_start(scratch_path(&s, "trace.json")), STATUS_OK);
        pthread_t t;
        assert_int_equal(pthread_create(&t, NULL, loader, NULL), 0);
        for (int64_t step = 1; step <= 3; step++) one_step(step);
        pthread_join(t, NULL);
    }
    trace_stop();
    one_step(4); /* after the end: not in it */
    char *text = scratch_read(&s, "trace.json", NULL);
    json_t *events = parse(text), *e;
    free(text);
    int spans = 0, steps = 0, names = 0, outer = 0;
    int main_tid = thread_named(events, "main"), loader_tid = thread_named(events, "loader");
    size_t i;
    json_array_foreach(events, i, e)
    {
        const char *name = json_string_value(json_object_get(e, "name"));
        spans += strcmp(json_string_value(json_object_get(e, "ph")), "X") == 0;
        steps += strcmp(name, "train.step") == 0;
        outer += strcmp(name, "open before the trace") == 0;
        names += strcmp(name, "thread_name") == 0;
        if (strcmp(name, "train.step") == 0)
            assert_int_equal(json_integer_value(json_object_get(json_object_get(e, "args"), "idx")), steps);
    }
    assert_int_equal(spans, 3 * 7 + 5 + 1);
    assert_int_equal(steps, 3);
    assert_int_equal(outer, 1);
    assert_int_equal(names, 2);
    assert_true(main_tid >= 0 && loader_tid >= 0 && main_tid != loader_tid);
    expect_nesting(events, main_tid);
    expect_nesting(events, loader_tid);
    json_decref(events);
    scratch_remove(&s);
}

static void a_trace_that_was_cut_off_lacks_only_its_bracket(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    assert_int_equal(trace_start(scratch_path(&s, "trace.json")), STATUS_OK);
    for (int i = 0; i < 3000; i++) { /* more than one buffer */
        SCOPE("tick", i);
    }
    size_t n;
    char *text = scratch_read(&s, "trace.json", &n); /* as a crash would leave it now */
    assert_true(n > 1000);
    text = realloc(text, n + 2);
    memcpy(text + n, "]", 2);
    json_decref(parse(text));
    free(text);
    trace_stop();
    text = scratch_read(&s, "trace.json", NULL);
    json_t *events = parse(text);
    free(text);
    assert_int_equal(json_array_size(events), 3000 + 2);
    json_decref(events);
    scratch_remove(&s);
}

static void a_trace_on_a_full_disk_stops_nothing(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    assert_int_equal(trace_start("/dev/full"), STATUS_IO); /* no file */
    assert_int_equal(trace_start(scratch_path(&s, "trace.json")), STATUS_OK);
    file_size_limit(0);
    one_step(1);
    trace_stop();
    file_size_limit(RLIM_INFINITY);
    trace_stop(); /* stopped already: fine */
    scratch_remove(&s);
    assert_int_equal(trace_start("/nowhere/trace.json"), STATUS_IO);
}

static void stages_add_up_to_the_whole_beside_a_trace(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    assert_int_equal(trace_start(scratch_path(&s, "trace.json")), STATUS_OK);
    int64_t from = clock_ns();
    {
        SCOPE("open before", -1);
        one_step(0);
        stages_start();
        from = clock_ns();
        one_step(1);
    }
    pthread_t t; /* another thread's scopes are no part of the step */
    assert_int_equal(pthread_create(&t, NULL, loader, NULL), 0);
    one_step(2);
    pthread_join(t, NULL);
    double total_s = (double)(clock_ns() - from) * 1e-9, seconds = 0;
    int tenths = 0, found = 0;
    struct stage list[STAGES_MAX];
    int count = stages_list(list, total_s);
    stages_stop();
    one_step(3);
    assert_int_equal(stages_list(list, total_s), count);
    for (int i = 0; i < count; i++) {
        assert_true(list[i].seconds >= 0);
        assert_true(i == 0 || i == count - 1 || list[i].seconds <= list[i - 1].seconds);
        assert_string_not_equal(list[i].name, "data.read");
        if (strcmp(list[i].name, "block.fwd") == 0) {
            assert_int_equal(list[i].calls, 6);
            assert_true(list[i].seconds >=
                        600e-6 - 1e-9); /* its own 6 x 100 us; at least, whatever else runs */
            found++;
        }
        if (strcmp(list[i].name, "train.step") == 0) assert_int_equal(list[i].calls, 2), found++;
        seconds += list[i].seconds;
        tenths += (int)lround(list[i].percent * 10);
    }
    assert_string_equal(list[count - 1].name, "other");
    assert_int_equal(count, 5);
    assert_int_equal(found, 2);
    assert_int_equal(tenths, 1000);
    assert_true(fabs(seconds - total_s) < 1e-9);
    trace_stop();
    char *text = scratch_read(&s, "trace.json", NULL);
    json_t *events = parse(text);
    free(text);
    expect_nesting(events, thread_named(events, "main"));
    json_decref(events);
    scratch_remove(&s);
}

/* An evaluation runs the layers of a step: its time is its own, and what stands around it keeps its. */
static void an_evaluation_is_not_counted_as_forward_passes(void **state)
{
    (void)state;
    struct stage list[STAGES_MAX];
    stages_start();
    const int64_t from = clock_ns();
    one_step(1);
    {
        SCOPE("train.eval", 1);
        one_step(2);
    }
    const double total_s = (double)(clock_ns() - from) * 1e-9;
    const int count = stages_list(list, total_s);
    stages_stop();
    double seconds = 0;
    int found = 0;
    for (int i = 0; i < count; i++) {
        seconds += list[i].seconds;
        if (strcmp(list[i].name, "block.fwd") == 0) assert_int_equal(list[i].calls, 3), found++;
        if (strcmp(list[i].name, "train.eval") != 0) continue;
        assert_int_equal(list[i].calls, 8); /* itself, its step, three blocks with one scope each */
        assert_true(list[i].seconds >= 600e-6);
        found++;
    }
    assert_int_equal(found, 2);
    assert_true(fabs(seconds - total_s) < 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_trace_is_json_that_nests),
        cmocka_unit_test(a_trace_that_was_cut_off_lacks_only_its_bracket),
        cmocka_unit_test(a_trace_on_a_full_disk_stops_nothing),
        cmocka_unit_test(stages_add_up_to_the_whole_beside_a_trace),
        cmocka_unit_test(an_evaluation_is_not_counted_as_forward_passes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
