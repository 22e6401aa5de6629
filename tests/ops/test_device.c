/* Goal: the harness that runs ops on a device finds what it is there to find. Method: a device that is the host's own memory, so that
 * the fast CPU set can be run "on" it, and sets with planted faults. */
#include "base/parallel.h"
#include "dev/driver_int.h"
#include "probe.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

static status fake_memory(const struct dev *d, size_t bytes, const char *what, void **out)
{
    (void)d, (void)what;
    *out = calloc(1, bytes);
    return *out ? STATUS_OK : FAIL(STATUS_OUT_OF_MEMORY, "no memory");
}
static void fake_free(void *p, size_t bytes)
{
    (void)bytes;
    free(p);
}
static status fake_stream(struct stream *s)
{
    (void)s;
    return STATUS_OK;
}
static status fake_copy(struct stream *s, void *to, const void *from, size_t bytes)
{
    (void)s;
    memcpy(to, from, bytes);
    return STATUS_OK;
}
static status fake_zero(struct stream *s, void *to, size_t bytes)
{
    (void)s;
    memset(to, 0, bytes);
    return STATUS_OK;
}

static bool capturing; /* what is queued has run already: a capture runs, its launch does nothing */

static status fake_begin(struct stream *s)
{
    (void)s;
    capturing = true;
    return STATUS_OK;
}
static status fake_end(struct stream *s, struct graph *g, bool keep)
{
    (void)s, (void)keep;
    capturing = false;
    *g = (struct graph){.nodes = 1};
    return STATUS_OK;
}
static status fake_launch(struct stream *s, const struct graph *g)
{
    (void)g;
    return fake_stream(s);
}

static const struct dev_driver driver = {.memory = fake_memory,
                                         .memory_free = fake_free,
                                         .stream_open = fake_stream,
                                         .copy = fake_copy,
                                         .zero = fake_zero,
                                         .sync = fake_stream,
                                         .graph_begin = fake_begin,
                                         .graph_end = fake_end,
                                         .graph_launch = fake_launch};
static const struct dev dev = {.kind = DEV_CUDA, .driver = &driver, .name = "fake"};
static struct stream stream = {.dev = &dev};
static struct probe_device device;
static struct ops good;

enum { WORKSPACE = 1 << 17 };
static char *workspace; /* as handed over */

static size_t workspace_bytes(int64_t tokens)
{
    return (size_t)tokens;
}
static void workspace_set(struct stream *s, void *memory, size_t bytes)
{
    (void)s, (void)bytes;
    workspace = memory;
}

static void every_case_is_the_oracles_on_the_device(void **state)
{
    (void)state;
    struct ops oracle;
    ops_oracle(&oracle);
    for (int i = 0; i < OP_CASES; i++) {
        const struct op_case *c = &op_cases[i];
        char text[256];
        struct probe want = {.dt = i % 2 ? DTYPE_BF16 : DTYPE_F32, .shift = i / 2 % 2},
                     got = {.dt = want.dt, .shift = want.shift, .device = &device};
        device.exact = i % 3 == 0;
        op_run(&oracle, c, &want);
        op_run(&good, c, &got);
        case_text(c, got.dt, text);
        if (got.st != STATUS_OK || got.trouble[0]) fail_msg("%s: %s", text, got.trouble);
        probe_guards(&got, text);
        probe_close(&want, &got, text);
        probe_free(&want);
        probe_free(&got);
    }
    device.exact = false;
}

/* Runs swiglu_fwd of `faulty` and returns everything that was found. */
static const char *found(swiglu_fwd_fn *faulty)
{
    static char text[1400];
    static const struct op_case c = ACT(swiglu_fwd, 3, 5);
    struct ops oracle, bad = good;
    struct probe want = {.dt = DTYPE_F32}, got = {.dt = DTYPE_F32, .device = &device};
    struct probe_diff d = {0};
    ops_oracle(&oracle);
    bad.swiglu_fwd = faulty;
    op_run(&oracle, &c, &want);
    op_run(&bad, &c, &got);
    probe_diff_guards(&got, &d);
    probe_diff_close(&want, &got, &d);
    snprintf(text, sizeof text, "%s %s", got.trouble, d.text);
    probe_free(&want);
    probe_free(&got);
    return text;
}
static void expect_found(swiglu_fwd_fn *faulty, const char *words)
{
    const char *text = found(faulty);
    if (words == NULL ? strcmp(text, " ") != 0 : strstr(text, words) == NULL)
        fail_msg("found '%s', expected '%s'", text, words ? words : "nothing");
}

static status writes_behind(const struct swiglu_fwd_args *a, dev_stream s)
{
    ((float *)a->m)[a->rows * a->f] = 1;
    return good.swiglu_fwd(a, s);
}
static status writes_before(const struct swiglu_fwd_args *a, dev_stream s)
{
    ((float *)a->m)[-1] = 1;
    return good.swiglu_fwd(a, s);
}
static status writes_an_input(const struct swiglu_fwd_args *a, dev_stream s)
{
    TRY(good.swiglu_fwd(a, s));
    ((float *)(uintptr_t)a->gu)[7] += 1;
    return STATUS_OK;
}
static status forgets_an_element(const struct swiglu_fwd_args *a, dev_stream s)
{
    float *last = (float *)a->m + a->rows * a->f - 1, was = *last;
    TRY(good.swiglu_fwd(a, s));
    *last = was;
    return STATUS_OK;
}
static status reads_leftovers(const struct swiglu_fwd_args *a, dev_stream s)
{
    TRY(good.swiglu_fwd(a, s));
    ((float *)a->m)[2] += workspace[0] ? 1e-7f : 0;
    return STATUS_OK;
}
static status differs_when_captured(const struct swiglu_fwd_args *a, dev_stream s)
{
    TRY(good.swiglu_fwd(a, s));
    ((float *)a->m)[2] += capturing ? 1e-6f : 0;
    return STATUS_OK;
}
static status writes_behind_the_workspace(const struct swiglu_fwd_args *a, dev_stream s)
{
    workspace[workspace_bytes(a->rows)] = 1;
    return good.swiglu_fwd(a, s);
}
static status cannot_be_captured(const struct swiglu_fwd_args *a, dev_stream s)
{
    return capturing ? FAIL(STATUS_DEVICE, "not now") : good.swiglu_fwd(a, s);
}

static void every_planted_fault_is_found(void **state)
{
    (void)state;
    expect_found(good.swiglu_fwd, NULL);
    expect_found(writes_behind, "byte 0 after m was written");
    expect_found(writes_before, "byte 4 before m was written");
    expect_found(writes_an_input, "the input gu was written");
    expect_found(forgets_an_element, "m: 1 of 15 off");
    expect_found(reads_leftovers, "a second run over other leftovers");
    expect_found(differs_when_captured, "the captured graph leaves another byte");
    expect_found(writes_behind_the_workspace, "byte 0 after the workspace was written");
    expect_found(cannot_be_captured, "the captured graph: not now");
}

int main(void)
{
    parallel_threads_set(0);
    if (ops_cpu(&good, NULL) != STATUS_OK || probe_device_open(&device, &stream, WORKSPACE) != STATUS_OK)
        return 1;
    good.workspace = workspace_bytes;
    device.set_workspace = workspace_set;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_planted_fault_is_found),
        cmocka_unit_test(every_case_is_the_oracles_on_the_device),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    probe_device_close(&device);
    return failed;
}
