/* The error record carries the scopes that were open, and a sink sees each scope close. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/scope.h"
#include "base/status.h"

static status inner(void)
{
    SCOPE("inner", 3);
    return FAIL(STATUS_DATA, "bad %d", 7);
}

static void a_failure_names_its_scopes(void **state)
{
    (void)state;
    SCOPE("outer", -1);
    assert_int_equal(inner(), STATUS_DATA);
    assert_string_equal(status_message(), "bad 7");
    assert_non_null(strstr(status_where(), "outer > inner 3"));
    assert_int_equal(status_wrap(STATUS_DATA, "reading %s", "x.bin"), STATUS_DATA);
    assert_string_equal(status_message(), "reading x.bin: bad 7");
}

static int closed;
static char last[64];
static void sink(const struct scope_event *e, void *ctx)
{
    (void)ctx;
    closed++;
    strncpy(last, e->name, sizeof last - 1);
    assert_true(e->end_ns >= e->start_ns);
}

static void a_sink_sees_scopes_close_innermost_first(void **state)
{
    (void)state;
    scope_sink_set(sink, NULL);
    {
        SCOPE("a", -1);
        {
            SCOPE("b", -1);
        }
        assert_int_equal(closed, 1);
        assert_string_equal(last, "b");
    }
    assert_int_equal(closed, 2);
    assert_string_equal(last, "a");
    scope_sink_set(NULL, NULL);
    {
        SCOPE("c", -1);
    }
    assert_int_equal(closed, 2);
}

static char ranges[256];
static void push(const char *name, int64_t idx)
{
    char path[64];
    scope_path(path, sizeof path);
    snprintf(ranges + strlen(ranges), sizeof ranges - strlen(ranges), "(%s %lld [%s]", name, (long long)idx,
             path);
}
static void pop(void)
{
    snprintf(ranges + strlen(ranges), sizeof ranges - strlen(ranges), ")");
}

static void ranges_nest_and_only_what_was_pushed_is_popped(void **state)
{
    (void)state;
    {
        SCOPE("before", -1);
        scope_range_set(push, pop);
        {
            SCOPE("a", 1);
            SCOPE("b", 2);
        }
    }
    assert_string_equal(ranges, "(a 1 [before > a 1](b 2 [before > a 1 > b 2]))");
    scope_range_set(NULL, NULL);
    {
        SCOPE("c", -1);
    }
    assert_string_equal(ranges, "(a 1 [before > a 1](b 2 [before > a 1 > b 2]))");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_names_its_scopes),
        cmocka_unit_test(a_sink_sees_scopes_close_innermost_first),
        cmocka_unit_test(ranges_nest_and_only_what_was_pushed_is_popped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
