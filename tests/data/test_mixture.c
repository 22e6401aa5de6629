/* Mixtures: shares are exact, every sample of a source comes once per epoch, and a place follows from its index alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "data/load/mixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static struct mixture *open_mixture(const struct mixture_source *s, int count, enum mixture_curve curve,
                                    int64_t total)
{
    struct mixture *m;
    assert_int_equal(mixture_open(&m, s, count, curve, 7, total), STATUS_OK);
    return m;
}

/* Constant weights: after every block each source is within 2 samples of its share, and its ordinals are 0, 1, 2, ... in some
 * order inside each block. */
static void shares_are_exact_after_every_block(void **state)
{
    (void)state;
    enum { BLOCKS = 200, N = 5 };
    static const struct mixture_point w[N] = {{0, 0.5}, {0, 0.3}, {0, 0.1999}, {0, 1e-4}, {0, 0}};
    struct mixture_source s[N];
    for (int i = 0; i < N; i++)
        s[i] = (struct mixture_source){.samples = 1000 + i, .points = &w[i], .point_count = 1};
    struct mixture *m = open_mixture(s, N, MIXTURE_LINEAR, (int64_t)BLOCKS * MIXTURE_BLOCK);
    struct mixture_cursor c = {0};
    int64_t given[N] = {0};
    char *seen[N];
    for (int i = 0; i < N; i++) seen[i] = calloc(BLOCKS * MIXTURE_BLOCK, 1);
    for (int64_t k = 0; k < (int64_t)BLOCKS * MIXTURE_BLOCK; k++) {
        int source;
        int64_t ordinal;
        assert_int_equal(mixture_at(m, &c, k, &source, &ordinal), STATUS_OK);
        assert_true(source >= 0 && source < N && ordinal >= 0);
        assert_int_equal(seen[source][ordinal]++, 0);
        given[source]++;
        if ((k + 1) % MIXTURE_BLOCK != 0) continue;
        for (int i = 0; i < N; i++) {
            if (fabs((double)given[i] - w[i].weight * (double)(k + 1)) > 2)
                fail_msg("after %lld samples source %d gave %lld", (long long)k + 1, i, (long long)given[i]);
            for (int64_t q = 0; q < given[i]; q++) assert_int_equal(seen[i][q], 1);
        }
    }
    assert_int_equal(given[4], 0);
    for (int i = 0; i < N; i++) free(seen[i]);
    mixture_close(m);
}

/* More marks than MIXTURE_MARKS would need memory for: the stride grows, and random access still agrees with the walk. */
static void a_place_does_not_depend_on_the_way_there(void **state)
{
    (void)state;
    static const struct mixture_point a[] = {{0, 1}, {2e6, 3}, {3e6, 0}}, b[] = {{1e6, 2}, {2e6, 0.1}};
    const struct mixture_source s[] = {{.samples = 5000, .points = a, .point_count = 3},
                                       {.samples = 700000, .points = b, .point_count = 2},
                                       {.samples = 10, .points = b, .point_count = 2, .epochs_max = 20.5}};
    const int64_t total = 4000000;
    struct mixture *m = open_mixture(s, 3, MIXTURE_LINEAR, total);
    struct mixture_cursor walk = {0}, jump = {0};
    for (int64_t k = 0; k < total; k += 7919) {
        int64_t far = (k * 31337) % total, ordinal[3];
        int source[3];
        assert_int_equal(mixture_at(m, &walk, k, &source[0], &ordinal[0]), STATUS_OK);
        assert_int_equal(mixture_at(m, &jump, far, &source[2], &ordinal[2]), STATUS_OK);
        assert_int_equal(mixture_at(m, &jump, k, &source[1], &ordinal[1]), STATUS_OK);
        assert_int_equal(source[0], source[1]);
        assert_int_equal(ordinal[0], ordinal[1]);
        struct mixture_cursor fresh = {0};
        assert_int_equal(mixture_at(m, &fresh, far, &source[1], &ordinal[1]), STATUS_OK);
        assert_int_equal(source[1], source[2]);
        assert_int_equal(ordinal[1], ordinal[2]);
    }
    mixture_close(m);
}

/* Weights in the middle of blocks, compared with the integral of the schedule. */
static void schedules_move_the_shares(void **state)
{
    (void)state;
    static const struct mixture_point rise[] = {{100000, 0}, {300000, 1}}, flat[] = {{0, 1}};
    const struct mixture_source s[] = {{.samples = 1000, .points = rise, .point_count = 2},
                                       {.samples = 1000, .points = flat, .point_count = 1}};
    for (enum mixture_curve curve = MIXTURE_LINEAR; curve <= MIXTURE_STEP; curve++) {
        struct mixture *m = open_mixture(s, 2, curve, 500000);
        struct mixture_cursor c = {0};
        double given[MIXTURE_SOURCES], want = 0;
        for (int64_t k = 0; k < 500000; k += MIXTURE_BLOCK) {
            mixture_given(m, &c, k, given);
            if (fabs(given[0] - want) > 3)
                fail_msg("after %lld samples %g, expected %g", (long long)k, given[0], want);
            double at = (double)k + 0.5 * MIXTURE_BLOCK, w = (at - 100000) / 200000;
            w = w < 0 ? 0 : w > 1 ? 1 : w;
            if (curve == MIXTURE_STEP) w = at >= 300000 ? 1 : 0;
            want += w / (w + 1) * MIXTURE_BLOCK;
        }
        assert_true(want > 90000);
        mixture_close(m);
    }
}

static void a_source_that_ends_leaves_its_share_to_the_others(void **state)
{
    (void)state;
    static const struct mixture_point w[] = {{0, 2}, {0, 1}, {0, 1}};
    const struct mixture_source s[] = {
        {.samples = 3001, .points = &w[0], .point_count = 1, .epochs_max = 1.5},
        {.samples = 1 << 20, .points = &w[1], .point_count = 1},
        {.samples = 1 << 20, .points = &w[2], .point_count = 1}};
    struct mixture *m = open_mixture(s, 3, MIXTURE_LINEAR, 98 * MIXTURE_BLOCK);
    struct mixture_cursor c = {0};
    int64_t given[3] = {0}, last = 0;
    for (int64_t k = 0; k < 98 * MIXTURE_BLOCK; k++) {
        int source;
        int64_t ordinal;
        assert_int_equal(mixture_at(m, &c, k, &source, &ordinal), STATUS_OK);
        given[source]++;
        if (source == 0) last = k;
    }
    assert_int_equal(given[0], 4501);      /* floor(1.5 * 3001) */
    assert_true(last < 9 * MIXTURE_BLOCK); /* twice 4501, and a block */
    assert_true(llabs(given[1] - given[2]) <= 2);
    mixture_close(m);
}

static void sources_without_weights_share_by_size_and_end_together(void **state)
{
    (void)state;
    const struct mixture_source s[] = {{.samples = 700, .epochs_max = 1}, {.samples = 2345, .epochs_max = 1}};
    struct mixture *m = open_mixture(s, 2, MIXTURE_LINEAR, 3045);
    struct mixture_cursor c = {0};
    int source, count[2] = {0};
    int64_t ordinal;
    for (int64_t k = 0; k < 3045; k++) {
        assert_int_equal(mixture_at(m, &c, k, &source, &ordinal), STATUS_OK);
        count[source]++;
    }
    assert_int_equal(count[0], 700);
    assert_int_equal(count[1], 2345);
    assert_int_equal(mixture_at(m, &c, 3045, &source, &ordinal), STATUS_CONFIG);
    mixture_close(m);
    assert_int_equal(mixture_open(&m, s, 2, MIXTURE_LINEAR, 7, 3046), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "after 3045 samples"));
    assert_null(m);
    assert_int_equal(mixture_open(&m, s, 1, MIXTURE_LINEAR, 7, 701), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "after 700 samples"));
}

static void a_single_source_is_read_in_its_own_order(void **state)
{
    (void)state;
    const struct mixture_source s = {.samples = 10};
    struct mixture *m = open_mixture(&s, 1, MIXTURE_LINEAR, 0);
    struct mixture_cursor c = {0};
    for (int64_t k = 0; k < 5000; k += 123) {
        int source;
        int64_t ordinal;
        assert_int_equal(mixture_at(m, &c, k, &source, &ordinal), STATUS_OK);
        assert_int_equal(source, 0);
        assert_int_equal(ordinal, k);
    }
    mixture_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_exact_after_every_block),
        cmocka_unit_test(a_place_does_not_depend_on_the_way_there),
        cmocka_unit_test(schedules_move_the_shares),
        cmocka_unit_test(a_source_that_ends_leaves_its_share_to_the_others),
        cmocka_unit_test(sources_without_weights_share_by_size_and_end_together),
        cmocka_unit_test(a_single_source_is_read_in_its_own_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
