/* The parts of a recorded step add up to it, whatever overlaps; kernels reach the trace with their scopes. The source of the records is
 * a table here, where CUPTI would be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <math.h>

#include "base/clock.h"
#include "base/scope.h"
#include "observe/kernels_int.h"
#include "observe/observe.h"
#include "scratch.h"

/* ---- the arithmetic ---- */

enum { GEMM, ATTN, NORM, ADAM, COPY, SEND, NAMES };
static const enum kernel_part parts[NAMES] = {KERNEL_GEMM,      KERNEL_ATTENTION, KERNEL_MEMORY,
                                              KERNEL_OPTIMIZER, KERNEL_COPY,      KERNEL_COMMUNICATION};
static const char *const texts[NAMES] = {"nvjet_tst", "attn_fwd", "_Z8norm_fwdPf",
                                         "adamw",     "memset",   "memcpy between GPUs"};

static struct breakdown_sum *sum_make(struct names *names)
{
    for (int i = 0; i < NAMES; i++) assert_int_equal(names_find(names, texts[i]), i);
    struct breakdown_sum *sum = calloc(1, sizeof *sum);
    assert_non_null(sum);
    return sum;
}

static int tenths(const struct breakdown *b)
{
    int sum = 0;
    for (int i = 0; i < KERNEL_PART_COUNT; i++) sum += (int)lround(b->parts[i].percent * 10);
    return sum;
}

static void close_to(double got, double want)
{
    if (fabs(got - want) > 1e-9 * fabs(want) + 1e-15) fail_msg("%.12g, not %.12g", got, want);
}

static void parts_and_gaps_are_the_wall_time(void **state)
{
    (void)state;
    struct names names = {0};
    struct breakdown_sum *sum = sum_make(&names);
    struct activity a[] = {
        {.start_ns = 1100, .end_ns = 1300, .name = COPY}, /* not in order */
        {.start_ns = 100, .end_ns = 500, .name = GEMM},
        {.start_ns = 300, .end_ns = 700, .name = ATTN},   /* 200 of its own */
        {.start_ns = 350, .end_ns = 450, .name = NORM},   /* hidden by both */
        {.start_ns = 700, .end_ns = 900, .name = GEMM},   /* directly after */
        {.start_ns = 1300, .end_ns = 1300, .name = ADAM}, /* too short to see */
    };
    breakdown_add(sum, a, 6, parts, 2000, 2);
    struct breakdown b;
    breakdown_mean(&b, sum, &names, parts);
    assert_int_equal(b.steps, 2);
    close_to(b.step_s, 1000e-9);
    close_to(b.parts[KERNEL_GEMM].seconds, 300e-9);
    close_to(b.parts[KERNEL_ATTENTION].seconds, 100e-9);
    assert_true(b.parts[KERNEL_MEMORY].seconds == 0);
    close_to(b.parts[KERNEL_COPY].seconds, 100e-9);
    close_to(b.parts[KERNEL_GAP].seconds, 500e-9);
    close_to(b.busy_s, 500e-9);
    close_to(b.parts[KERNEL_GEMM].kernels, 1);
    close_to(b.parts[KERNEL_MEMORY].kernels, 0.5);
    assert_int_equal(tenths(&b), 1000);
    assert_int_equal(b.kernel_count, 5);
    assert_int_equal(b.kernel_kinds, 5);
    assert_string_equal(b.kernels[0].name, "nvjet_tst");
    close_to(b.kernels[0].calls, 1);
    close_to(b.kernels[0].mean_s, 300e-9);
    close_to(b.kernels[0].percent, 30);
    for (int i = 0; i < b.kernel_count; i++)
        if (b.kernels[i].part == KERNEL_MEMORY) {
            assert_string_equal(b.kernels[i].name, "norm_fwd");
            close_to(b.kernels[i].mean_s, 100e-9); /* alone, though it cost the step nothing */
            close_to(b.kernels[i].percent, 0);
        }
    free(sum);
    names_free(&names);
}

/* Of each way: the time in which a copy is under way, whatever else is, and its bytes. */
static void copies_over_the_link_have_a_rate_each_way(void **state)
{
    (void)state;
    struct names names = {0};
    struct breakdown_sum *sum = sum_make(&names);
    struct activity a[] = {
        {.start_ns = 0, .end_ns = 400, .name = COPY, .link = LINK_UP, .bytes = 6000},
        {.start_ns = 100, .end_ns = 900, .name = GEMM},
        {.start_ns = 200, .end_ns = 300, .name = COPY, .link = LINK_UP, .bytes = 100}, /* overlaps it */
        {.start_ns = 300, .end_ns = 500, .name = COPY, .link = LINK_DOWN, .bytes = 1000},
        {.start_ns = 300, .end_ns = 900, .name = COPY}, /* on the device */
        {.start_ns = 800, .end_ns = 1000, .name = COPY, .link = LINK_UP, .bytes = 2000},
    };
    breakdown_add(sum, a, 6, parts, 1000, 1);
    breakdown_add(sum, a, 6, parts, 1000, 1);
    struct breakdown b;
    breakdown_mean(&b, sum, &names, parts);
    close_to(b.links[LINK_UP].seconds, 600e-9);
    close_to(b.links[LINK_UP].bytes, 8100);
    close_to(b.links[LINK_UP].copies, 3);
    close_to(b.links[LINK_DOWN].seconds, 200e-9);
    close_to(b.links[LINK_DOWN].bytes, 1000);
    assert_int_equal(tenths(&b), 1000);
    free(sum);
    names_free(&names);
}

static void communication_costs_what_nothing_hides(void **state)
{
    (void)state;
    struct names names = {0};
    struct breakdown_sum *sum = sum_make(&names);
    struct activity a[] = {
        {.start_ns = 0, .end_ns = 300, .name = SEND}, /* before, between and after compute */
        {.start_ns = 100, .end_ns = 150, .name = GEMM},
        {.start_ns = 200, .end_ns = 250, .name = GEMM},
        {.start_ns = 280, .end_ns = 400, .name = SEND},
        {.start_ns = 300, .end_ns = 350, .name = COPY}, /* what it ends with is hidden too */
        {.start_ns = 600, .end_ns = 900, .name = ATTN},
        {.start_ns = 650, .end_ns = 850, .name = SEND}, /* all of it overlapped */
    };
    breakdown_add(sum, a, 7, parts, 1000, 1);
    struct breakdown b;
    breakdown_mean(&b, sum, &names, parts);
    close_to(b.parts[KERNEL_COMMUNICATION].seconds, 250e-9);
    close_to(b.communication_s, 600e-9);
    close_to(b.parts[KERNEL_COMMUNICATION].kernels, 3);
    close_to(b.parts[KERNEL_GAP].seconds, 300e-9);
    assert_int_equal(tenths(&b), 1000);
    free(sum);
    names_free(&names);
}

static void a_step_shorter_than_its_kernels_has_no_gaps(void **state)
{
    (void)state;
    struct names names = {0};
    struct breakdown_sum *sum = sum_make(&names);
    struct activity a[] = {{.start_ns = 0, .end_ns = 1000, .name = NORM}};
    struct breakdown b;
    breakdown_mean(&b, sum, &names, parts); /* nothing yet */
    assert_int_equal(b.steps, 0);
    breakdown_add(sum, a, 1, parts, 900, 1);
    breakdown_mean(&b, sum, &names, parts);
    close_to(b.step_s, 1000e-9);
    assert_true(b.parts[KERNEL_GAP].seconds == 0);
    assert_int_equal(tenths(&b), 1000);
    breakdown_add(sum, NULL, 0, parts, 1000, 1); /* a step in which nothing ran */
    breakdown_mean(&b, sum, &names, parts);
    close_to(b.parts[KERNEL_GAP].percent, 50);
    free(sum);
    names_free(&names);
}

/* Random steps: exact sums, and the list of kernels is in order and complete. */
static void any_step_adds_up(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int round = 0; round < 50; round++) {
        struct names names = {0};
        enum kernel_part of[64];
        struct breakdown_sum *sum = calloc(1, sizeof *sum);
        struct activity a[300];
        assert_non_null(sum);
        for (int i = 0; i < 64; i++) {
            char name[16];
            snprintf(name, sizeof name, "kernel %d", i);
            of[names_find(&names, name)] = (enum kernel_part)(i % KERNEL_GAP);
        }
        bool computed[4000] = {false}, communicated[4000] = {false};
        int busy = 0, exposed = 0, communicating = 0;
        for (int i = 0; i < 300; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            int from = (int)(seed >> 33) % 3900, length = (int)(seed >> 50) % 100;
            a[i] =
                (struct activity){.start_ns = from, .end_ns = from + length, .name = (int)(seed >> 40) % 64};
            for (int k = from; k < from + length; k++)
                (of[a[i].name] == KERNEL_COMMUNICATION ? communicated : computed)[k] = true;
        }
        for (int k = 0; k < 4000; k++) {
            busy += computed[k] || communicated[k];
            exposed += communicated[k] && !computed[k];
            communicating += communicated[k];
        }
        breakdown_add(sum, a, 300, of, 4000, 1);
        struct breakdown b;
        breakdown_mean(&b, sum, &names, of);
        close_to(b.busy_s, busy * 1e-9);
        close_to(b.parts[KERNEL_COMMUNICATION].seconds, exposed * 1e-9);
        close_to(b.communication_s, communicating * 1e-9);
        double seconds = 0, kernels = 0;
        for (int i = 0; i < KERNEL_PART_COUNT; i++) {
            seconds += b.parts[i].seconds;
            kernels += b.parts[i].kernels;
        }
        close_to(seconds, 4000e-9);
        close_to(kernels, 300);
        assert_int_equal(tenths(&b), 1000);
        assert_int_equal(b.kernel_count, BREAKDOWN_KERNELS);
        for (int i = 1; i < b.kernel_count; i++)
            assert_true(b.kernels[i].percent <= b.kernels[i - 1].percent);
        int dearer = 0;
        for (int i = 0; i < names.count; i++)
            dearer += 100.0 * (double)sum->rows[i].ns / 4000 > b.kernels[BREAKDOWN_KERNELS - 1].percent;
        assert_true(dearer < BREAKDOWN_KERNELS);
        free(sum);
        names_free(&names);
    }
}

/* ---- from a source to trace and breakdown ---- */

/* Two kernels of a graph's replay and a copy, each flush. */
static struct {
    bool recording, open;
    int flushes, scope_copy;
    int64_t at_ns;
} fake;

static status fake_open(void)
{
    fake.open = true;
    return STATUS_OK;
}
static status fake_record(bool on)
{
    fake.recording = on;
    return STATUS_OK;
}
static void fake_flush(void)
{
    const int64_t offset = 5000000; /* the source's clock is behind ours by this */
    int64_t at = fake.at_ns - offset;
    uint32_t call = 100 + (uint32_t)fake.flushes++;
    kernels_put("_Z8norm_fwdPf",
                (struct activity){.start_ns = at + 3000,
                                  .end_ns = at + 4000,
                                  .node = 12,
                                  .stream = 7,
                                  .correlation = call,
                                  .scope = -1},
                offset);
    kernels_put_link(call, fake.scope_copy);
    kernels_put("memset",
                (struct activity){.start_ns = at,
                                  .end_ns = at + 1000,
                                  .stream = 9,
                                  .correlation = call,
                                  .scope = -1,
                                  .link = LINK_UP,
                                  .bytes = 40000},
                offset);
    kernels_put("nvjet_tst",
                (struct activity){.start_ns = at + 1000,
                                  .end_ns = at + 3000,
                                  .node = 11,
                                  .stream = 7,
                                  .correlation = call,
                                  .scope = -1},
                offset);
}
static void fake_close(void)
{
    fake.open = false;
    fake_flush(); /* the last records are delivered late */
}
static const struct kernel_source fake_source = {fake_open, fake_record, fake_flush, fake_close};

static void capture(void)
{
    SCOPE("train.step", 5);
    fake.scope_copy = kernels_scope();
    SCOPE("block.fwd", 2);
    kernels_put_node(1, kernels_scope());
    SCOPE("norm", -1);
    kernels_put_node(2, kernels_scope());
    kernels_put_clone(11, 1);              /* into the executable graph */
    kernels_put_node(12, fake.scope_copy); /* said before the clone: the clone counts */
    kernels_put_clone(12, 2);
    kernels_put_node(12, fake.scope_copy); /* and after it */
}

static const char *event_text(json_t *e, const char *key)
{
    const char *text = json_string_value(json_object_get(json_object_get(e, "args"), key));
    return text ? text : "";
}

static void expect_trace(const char *text)
{
    json_t *events = json_loads(text, 0, NULL), *e;
    assert_non_null(events);
    size_t i;
    int kernels = 0, streams = 0, processes = 0;
    double host_start = 0;
    json_array_foreach(events, i, e)
    {
        const char *name = json_string_value(json_object_get(e, "name"));
        double start = json_number_value(json_object_get(e, "ts"));
        if (strcmp(name, "work") == 0) host_start = start;
        if (json_integer_value(json_object_get(e, "pid")) != 1) continue;
        streams += strcmp(name, "thread_name") == 0;
        processes += strcmp(name, "process_name") == 0;
        if (strcmp(json_string_value(json_object_get(e, "ph")), "X") != 0) continue;
        kernels++;
        int stream = (int)json_integer_value(json_object_get(e, "tid"));
        if (strcmp(name, "norm_fwd") == 0) {
            assert_string_equal(event_text(e, "part"), "memory-bound");
            assert_string_equal(event_text(e, "scope"), "train.step > block.fwd 2 > norm");
            assert_int_equal(stream, 7);
            close_to(json_number_value(json_object_get(e, "dur")), 1);
        } else if (strcmp(name, "nvjet_tst") == 0) {
            assert_string_equal(event_text(e, "scope"), "train.step > block.fwd 2");
        } else {
            assert_string_equal(name, "memset");
            assert_string_equal(event_text(e, "scope"), "train.step");
            assert_int_equal(stream, 9);
            json_t *args = json_object_get(e, "args");
            assert_int_equal(json_integer_value(json_object_get(args, "bytes")), 40000);
            assert_int_equal(json_integer_value(json_object_get(args, "mb_s")), 40000);
            assert_true(start >= host_start); /* it began in the scope: the clocks agree */
        }
    }
    assert_int_equal(kernels, 3 * 3);
    assert_int_equal(streams, 2);
    assert_int_equal(processes, 1);
    json_decref(events);
}

static void kernels_reach_trace_and_breakdown(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct breakdown b;
    kernels_flush(1); /* not open: nothing happens */
    kernels_breakdown(&b);
    assert_int_equal(b.steps, 0);
    assert_int_equal(trace_start(scratch_path(&s, "trace.json")), STATUS_OK);
    assert_int_equal(kernels_open_source(&fake_source), STATUS_OK);
    capture();
    assert_int_equal(kernels_record(true), STATUS_OK);
    assert_true(fake.recording);
    {
        SCOPE("work", -1);
        fake.at_ns = clock_ns();
    }
    kernels_flush(0); /* counts for no step */
    for (int i = 0; i < 2; i++) {
        fake.at_ns = clock_ns();
        while (clock_ns() < fake.at_ns + 10000) {}
        kernels_put_lost(1);
        kernels_flush(1);
    }
    kernels_breakdown(&b);
    assert_int_equal(kernels_record(false), STATUS_OK);
    kernels_close();
    assert_false(fake.open);
    trace_stop();
    assert_int_equal(b.steps, 2);
    assert_int_equal(b.lost, 2);
    close_to(b.parts[KERNEL_GEMM].seconds, 2e-6);
    close_to(b.parts[KERNEL_MEMORY].seconds, 1e-6);
    close_to(b.parts[KERNEL_COPY].kernels, 1);
    assert_true(b.step_s >= 10e-6 && b.parts[KERNEL_GAP].seconds >= 6e-6 - 1e-12);
    assert_int_equal(tenths(&b), 1000);
    char *text = scratch_read(&s, "trace.json", NULL);
    expect_trace(text);
    free(text);
    scratch_remove(&s);
}

static void a_breakdown_is_shown_as_text_and_json(void **state)
{
    (void)state;
    char *text = NULL;
    size_t size = 0;
    struct breakdown b = {.steps = 3, .step_s = 0.1, .busy_s = 0.09, .kernel_count = 1, .kernel_kinds = 1};
    b.parts[KERNEL_GEMM] = (struct breakdown_part){0.09, 90.0, 24};
    b.parts[KERNEL_GAP] = (struct breakdown_part){0.01, 10.0, 0};
    b.kernels[0] = (struct breakdown_kernel){"nvjet_tst", KERNEL_GEMM, 24, 0.00375, 90};
    b.links[LINK_UP] = (struct breakdown_link){2e9, 0.05, 12};
    b.links[LINK_DOWN] = (struct breakdown_link){1e3, 1e-6, 1}; /* scalars: not worth a line */
    b.link_rate = 50e9;
    FILE *f = open_memstream(&text, &size);
    assert_non_null(f);
    breakdown_print(f, &b, 0.092);
    fclose(f);
    assert_non_null(strstr(text, "GEMMs                  90.000    90.0"));
    assert_non_null(strstr(text, "gaps are 2.000 ms (2.2 %)"));
    assert_non_null(strstr(text, "nvjet_tst (GEMMs)"));
    assert_non_null(strstr(text,
                           "host to device    2.000 GB/step in    50.000 ms (50.0 % of it):   40.0 GB/s, "
                           "80 % of the 50.0 that it allows each way"));
    assert_null(strstr(text, "device to host"));
    free(text);
    json_t *j = breakdown_json(&b, 0.092);
    close_to(json_number_value(json_object_get(j, "step_ms")), 100);
    json_t *up = json_object_get(json_object_get(j, "links"), "host_to_device");
    close_to(json_number_value(json_object_get(up, "gbs")), 40);
    close_to(json_number_value(json_object_get(up, "bytes")), 2e9);
    json_t *parts_of = json_object_get(j, "parts");
    close_to(json_number_value(json_object_get(json_object_get(parts_of, "gemms"), "percent")), 90);
    assert_int_equal(json_array_size(json_object_get(j, "kernels")), 1);
    assert_non_null(json_object_get(j, "plain_gaps_percent"));
    json_decref(j);
}

static void without_a_source_there_is_one_line(void **state)
{
    (void)state;
    assert_int_equal(kernels_open_source(NULL), STATUS_DEVICE);
    assert_non_null(strstr(status_message(), "no device times"));
    assert_int_equal(kernels_record(true), STATUS_OK); /* the run continues */
    kernels_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_and_gaps_are_the_wall_time),
        cmocka_unit_test(copies_over_the_link_have_a_rate_each_way),
        cmocka_unit_test(communication_costs_what_nothing_hides),
        cmocka_unit_test(a_step_shorter_than_its_kernels_has_no_gaps),
        cmocka_unit_test(any_step_adds_up),
        cmocka_unit_test(kernels_reach_trace_and_breakdown),
        cmocka_unit_test(a_breakdown_is_shown_as_text_and_json),
        cmocka_unit_test(without_a_source_there_is_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
