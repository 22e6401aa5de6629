/* What CUPTI says of known work: a conversion, a GEMM and a memset, op by op, from a graph that was captured before recording began,
 * and from one captured since. Each time the breakdown counts them all and the trace shows each in its scope, inside the time that
 * the host spent on it. Skipped where there is no GPU or no libcupti. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <math.h>

#include "base/scope.h"
#include "observe/kernels.h"
#include "observe/observe.h"
#include "ops/cuda/ops_cuda.h"
#include "scratch.h"

enum { N = 512, ROUNDS = 3, SKIP = 77 };

static struct {
    struct dev dev;
    struct stream stream;
    struct ops ops;
    struct arena arena;
    float *x;
    void *a, *c;
} gpu;

static status work(void)
{
    SCOPE("train.step", 7);
    {
        SCOPE("convert", 1);
        TRY(gpu.ops.split_master(
            &(struct split_master_args){.way = MASTER_SPLIT, .x = gpu.x, .upper = gpu.a, .count = N * N},
            &gpu.stream));
    }
    {
        SCOPE("gemm", -1);
        TRY(gpu.ops.gemm(&(struct gemm_args){.a = operand_at(gpu.a, DTYPE_BF16, false),
                                             .b = operand_at(gpu.a, DTYPE_BF16, true),
                                             .c = gpu.c,
                                             .m = N,
                                             .n = N,
                                             .k = N,
                                             .cdt = DTYPE_BF16},
                         &gpu.stream));
    }
    SCOPE("zero", -1);
    return dev_zero(&gpu.stream, gpu.x, N * sizeof(float));
}

static status capture(struct graph *g)
{
    TRY(dev_graph_begin(&gpu.stream));
    status st = work(), end = dev_graph_end(&gpu.stream, g, st == STATUS_OK);
    return st != STATUS_OK ? st : end;
}

/* ROUNDS steps of a graph, or of the ops when there is none. */
static void rounds(const struct graph *g, const char *outer)
{
    for (int i = 0; i < ROUNDS; i++) {
        SCOPE(outer, i);
        assert_int_equal(g ? dev_graph_launch(&gpu.stream, g) : work(), STATUS_OK);
        assert_int_equal(dev_sync(&gpu.stream), STATUS_OK);
        kernels_flush(1);
    }
}

static json_t *argument(json_t *event, const char *key)
{
    return json_object_get(json_object_get(event, "args"), key);
}

/* The host span `outer` that contains a device event; NULL: none: the clocks disagree. */
static const char *host_span(json_t *events, double start, double end)
{
    size_t i;
    json_t *e;
    json_array_foreach(events, i, e)
    {
        const char *name = json_string_value(json_object_get(e, "name"));
        double from = json_number_value(json_object_get(e, "ts")),
               to = from + json_number_value(json_object_get(e, "dur"));
        if (json_integer_value(json_object_get(e, "pid")) != 0 || strncmp(name, "round.", 6) != 0) continue;
        const double slack = 20; /* us: the device's clock is fitted to the host's */
        if (start >= from - slack && end <= to + slack) return name;
    }
    return NULL;
}

static void check_trace(const char *text)
{
    json_t *events = json_loads(text, 0, NULL), *e;
    assert_non_null(events);
    size_t i;
    int found[3] = {0};
    json_array_foreach(events, i, e)
    {
        if (json_integer_value(json_object_get(e, "pid")) != 1 || json_object_get(e, "dur") == NULL) continue;
        const char *name = json_string_value(json_object_get(e, "name"));
        const char *scope = json_string_value(argument(e, "scope"));
        double start = json_number_value(json_object_get(e, "ts"));
        const char *span = host_span(events, start, start + json_number_value(json_object_get(e, "dur")));
        print_message("%-40.40s %-30s in %s\n", name, scope, span ? span : "no span");
        if (span == NULL) fail_msg("%s at %.3f us lies in no round", name, start);
        if (strstr(scope, "convert 1")) found[0]++;
        if (strstr(scope, "gemm")) found[1]++;
        if (strstr(scope, "zero")) found[2]++;
    }
    assert_int_equal(found[0], 3 * ROUNDS);
    assert_true(found[1] >= 3 * ROUNDS); /* a split GEMM has two kernels */
    assert_int_equal(found[2], 3 * ROUNDS);
    json_decref(events);
}

static void known_work_is_seen(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct graph before = {0}, since = {0};
    struct breakdown b;
    assert_int_equal(work(), STATUS_OK); /* libraries load, an algorithm is chosen */
    assert_int_equal(trace_start(scratch_path(&s, "trace.json")), STATUS_OK);
    assert_int_equal(capture(&before), STATUS_OK);
    assert_int_equal(dev_sync(&gpu.stream), STATUS_OK);
    assert_int_equal(kernels_record(true), STATUS_OK);
    kernels_flush(0);
    rounds(NULL, "round.eager");
    rounds(&before, "round.graph");
    kernels_flush(0);
    assert_int_equal(capture(&since), STATUS_OK);
    assert_int_equal(dev_sync(&gpu.stream), STATUS_OK);
    kernels_flush(0);
    rounds(&since, "round.later");
    kernels_breakdown(&b);
    assert_int_equal(kernels_record(false), STATUS_OK);
    trace_stop();
    dev_graph_close(&gpu.dev, &before);
    dev_graph_close(&gpu.dev, &since);
    breakdown_print(stdout, &b, 0);
    assert_int_equal(b.steps, 3 * ROUNDS);
    assert_int_equal(b.lost, 0);
    assert_true(b.parts[KERNEL_GEMM].kernels >= 1 && b.parts[KERNEL_GEMM].seconds > 0);
    assert_true(b.parts[KERNEL_MEMORY].kernels == 1);
    assert_true(b.parts[KERNEL_COPY].kernels == 1);
    assert_true(b.busy_s < b.step_s);
    char *text = scratch_read(&s, "trace.json", NULL);
    check_trace(text);
    free(text);
    scratch_remove(&s);
}

static status open_gpu(void)
{
    TRY(dev_open(&gpu.dev, DEV_CUDA));
    TRY(dev_stream_open(&gpu.dev, &gpu.stream));
    TRY(kernels_open());
    TRY(ops_cuda(&gpu.ops, &gpu.stream, &(struct cuda_options){.gemm_candidates = 1}));
    size_t workspace = gpu.ops.workspace(N);
    TRY(dev_arena_reserve(&gpu.dev, &gpu.arena, "test", workspace + 8 * N * N + 4096));
    ops_cuda_workspace(&gpu.stream, arena_take(&gpu.arena, workspace, "workspace"), workspace);
    gpu.x = arena_take(&gpu.arena, N * N * sizeof(float), "x");
    gpu.a = arena_take(&gpu.arena, N * N * 2, "a");
    gpu.c = arena_take(&gpu.arena, N * N * 2, "c");
    return STATUS_OK;
}

int main(void)
{
    if (open_gpu() != STATUS_OK) {
        printf("skipped: %s\n", status_message());
        return access("/dev/nvidia0", F_OK) == 0 && strstr(status_message(), "libcupti") == NULL ? 1 : SKIP;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_work_is_seen)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_close();
    ops_cuda_close(&gpu.stream);
    arena_free(&gpu.arena);
    dev_stream_close(&gpu.stream);
    dev_close(&gpu.dev);
    return failed;
}
