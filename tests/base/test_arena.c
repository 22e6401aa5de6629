/* A counting arena and a real one go through one layout with the same numbers; that is what makes plan and
 * run agree. */
#include "base/arena.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

struct numbers {
    size_t used, peak, mark;
    const char *peak_what;
};

/* A layout with odd sizes, a nested mark and a peak in the middle. */
static struct numbers layout(struct arena *a)
{
    arena_take(a, 1, "one byte");
    arena_take(a, 0, "nothing");
    size_t mark = arena_mark(a);
    arena_take(a, 1000, "temporary");
    size_t inner = arena_mark(a);
    arena_take(a, 5000, "highest");
    arena_release(a, inner);
    arena_release(a, mark);
    arena_take(a, 65, "kept");
    return (struct numbers){a->used, a->peak, mark, a->peak_what};
}

static void counting_equals_real(void **state)
{
    (void)state;
    struct arena count = {.name = "count"}, real;
    struct numbers c = layout(&count);
    assert_int_equal(arena_reserve(&real, "real", c.peak), STATUS_OK);
    struct numbers r = layout(&real);
    assert_int_equal(c.used, r.used);
    assert_int_equal(c.peak, r.peak);
    assert_int_equal(c.mark, r.mark);
    assert_string_equal(c.peak_what, "highest");
    assert_string_equal(r.peak_what, "highest");
    assert_int_equal(c.used, 2 * ARENA_ALIGN);
    assert_int_equal(c.peak, 6400);
    arena_free(&real);
}

/* A configuration may ask for more than 64 bits count: the plan must say that it does not fit. */
static void a_counting_arena_stops_at_its_limit(void **state)
{
    (void)state;
    struct arena a = {.name = "count"};
    arena_take(&a, 1000, "first");
    for (int i = 0; i < 3; i++) {
        assert_null(arena_take(&a, SIZE_MAX - 5, "absurd"));
        assert_int_equal(a.used, ARENA_BYTES_MAX);
        assert_int_equal(a.peak, ARENA_BYTES_MAX);
    }
    arena_take(&a, 1, "one more");
    assert_int_equal(a.used, ARENA_BYTES_MAX);
}

static void what_is_taken_is_aligned_zero_and_apart(void **state)
{
    (void)state;
    struct arena a;
    assert_int_equal(arena_reserve(&a, "a", 4096), STATUS_OK);
    char *p = arena_take(&a, 65, "p"), *q = arena_take(&a, 1, "q");
    assert_int_equal((uintptr_t)p % ARENA_ALIGN, 0);
    assert_ptr_equal(q, p + ARENA_ALIGN);
    for (int i = 0; i < 65; i++) assert_int_equal(p[i], 0);
    memset(p, 1, 65);
    assert_int_equal(*q, 0);
    arena_free(&a);
    assert_null(a.base);
}

static void released_memory_is_taken_again(void **state)
{
    (void)state;
    struct arena a;
    assert_int_equal(arena_reserve(&a, "a", 1024), STATUS_OK);
    size_t mark = arena_mark(&a);
    void *first = arena_take(&a, 100, "first");
    arena_release(&a, mark);
    assert_ptr_equal(arena_take(&a, 200, "second"), first);
    arena_free(&a);
}

static void what_lies_over_something_else_counts_what_it_adds(void **state)
{
    (void)state;
    struct arena a, counting = {.name = "a"};
    assert_int_equal(arena_reserve(&a, "a", 2048), STATUS_OK);
    struct arena *both[] = {&a, &counting};
    for (int i = 0; i < 2; i++) {
        const char *under = arena_take(both[i], 1000, "under"),
                   *over = arena_overlay(both[i], 512, 300, "over");
        assert_int_equal(both[i]->used, 1024); /* within it */
        if (i == 0) assert_ptr_equal(over, under + 512);
        arena_overlay(both[i], 1024, 512, "behind");
        assert_int_equal(both[i]->used, 1536);
        arena_overlay(both[i], 1280, 700, "across");
        assert_int_equal(both[i]->peak, 2048);
    }
    arena_free(&a);
}

static void memory_that_does_not_exist_is_a_status(void **state)
{
    (void)state;
    struct arena a;
    assert_int_equal(arena_reserve(&a, "huge", (size_t)1 << 60), STATUS_OUT_OF_MEMORY);
    assert_non_null(strstr(status_message(), "huge"));
    assert_null(a.base);
}

/* Our bugs abort. Each runs in a child whose last words go nowhere. */
static void takes_too_much(struct arena *a)
{
    arena_take(a, 2048, "too much");
}
static void takes_after_the_seal(struct arena *a)
{
    a->sealed = true;
    arena_take(a, 1, "late");
}
static void lies_over_nothing(struct arena *a)
{
    arena_overlay(a, a->used + ARENA_ALIGN, 1, "beyond");
}
static void releases_upwards(struct arena *a)
{
    arena_release(a, a->used + 64);
}
static void takes_what_overflows(struct arena *a)
{
    arena_take(a, SIZE_MAX - 10, "overflow");
}

static void misuse_aborts(void **state)
{
    (void)state;
    void (*const misuses[])(struct arena *) = {takes_too_much, takes_after_the_seal, lies_over_nothing,
                                               releases_upwards, takes_what_overflows};
    for (size_t i = 0; i < sizeof misuses / sizeof misuses[0]; i++) {
        fflush(NULL);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            struct arena a;
            if (!freopen("/dev/null", "w", stderr)) _exit(1);
            signal(SIGABRT, SIG_DFL); /* cmocka catches it */
            if (arena_reserve(&a, "a", 1024) != STATUS_OK) _exit(1);
            misuses[i](&a);
            _exit(0);
        }
        int how;
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_true((WIFEXITED(how) && WEXITSTATUS(how) == STATUS_INTERNAL) ||
                    (WIFSIGNALED(how) && WTERMSIG(how) == SIGABRT));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counting_equals_real),
        cmocka_unit_test(a_counting_arena_stops_at_its_limit),
        cmocka_unit_test(what_is_taken_is_aligned_zero_and_apart),
        cmocka_unit_test(released_memory_is_taken_again),
        cmocka_unit_test(what_lies_over_something_else_counts_what_it_adds),
        cmocka_unit_test(memory_that_does_not_exist_is_a_status),
        cmocka_unit_test(misuse_aborts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
