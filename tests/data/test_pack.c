/* Packing: every pair of every document exactly once, rows never over-full, padding small, and the same for any threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/parallel.h"
#include "base/rng.h"
#include "data/load/pack.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Log-normal lengths, as web pages have: median exp(mu). */
static int64_t *lengths(int64_t count, double mu, double sigma)
{
    int64_t *starts = malloc((size_t)(count + 1) * sizeof *starts), at = 0;
    for (int64_t i = 0; i < count; i++) {
        starts[i] = at;
        double n = exp(mu + sigma * rng_normal(3, RNG_TEST, 1, (uint64_t)i));
        at += n < 1 ? 1 : (int64_t)n;
    }
    starts[count] = at;
    return starts;
}

/* Every row of the pack; marks the inputs that it holds. Returns padding. */
static int64_t walk(const struct pack *p, const int64_t *starts, int64_t t_count, char *used)
{
    int64_t padding = 0;
    for (int64_t row = 0; row < pack_rows(p); row++) {
        struct pack_cursor c;
        struct pack_piece piece;
        int64_t sum = 0;
        for (pack_row(p, row, &c); pack_next(&c, &piece); sum += piece.count) {
            assert_true(piece.count > 0);
            assert_true(piece.at >= starts[piece.document]);
            assert_true(piece.at + piece.count <
                        starts[piece.document + 1]); /* the last token is a target alone */
            /* Pieces are cut every T pairs from the document's beginning, and nowhere else. */
            assert_int_equal((piece.at - starts[piece.document]) % t_count, 0);
            assert_true(piece.count == t_count || piece.at + piece.count == starts[piece.document + 1] - 1);
            for (int64_t i = 0; i < piece.count; i++) assert_int_equal(used[piece.at + i]++, 0);
        }
        assert_true(sum > 0 && sum <= t_count);
        padding += t_count - sum;
    }
    return padding;
}

static void every_pair_comes_once(void **state)
{
    (void)state;
    static const struct {
        int64_t count, t;
        double mu, sigma;
    } cases[] = {{1, 8, 6, 0},       {1000, 1, 1, 1},      {3000, 2, 1, 1},       {70000, 64, 3, 1.5},
                 {200000, 63, 2, 1}, {5000, 4096, 6, 1.1}, {131072, 100, 0.5, 1}, {2000, 65, 4.17438726, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t *starts = lengths(cases[i].count, cases[i].mu, cases[i].sigma), count = cases[i].count;
        char *used = calloc((size_t)starts[count] + 1, 1);
        for (enum pack_policy policy = PACK_BEST_FIT; policy <= PACK_ALONE; policy++) {
            struct pack *p;
            memset(used, 0, (size_t)starts[count]);
            assert_int_equal(pack_open(&p, starts, count, cases[i].t, policy), STATUS_OK);
            int64_t padding = walk(p, starts, cases[i].t, used), pairs = 0;
            for (int64_t d = 0; d < count; d++) {
                for (int64_t k = starts[d]; k < starts[d + 1] - 1; k++) assert_int_equal(used[k], 1);
                assert_int_equal(used[starts[d + 1] - 1], 0);
                pairs += starts[d + 1] - starts[d] - 1;
            }
            assert_int_equal(pack_pairs(p), pairs);
            assert_int_equal(padding, pack_rows(p) * cases[i].t - pairs);
            pack_close(p);
        }
        free(used);
        free(starts);
    }
}

/* The plain algorithm: rows in a list, a linear search. Of rows with equal free space, the one that got it
 * last. */
static int64_t best_fit_rows(const int64_t *starts, int64_t count, int64_t t_count)
{
    int64_t rows = 0, *room = malloc((size_t)count * sizeof *room), whole = 0;
    for (int64_t n = t_count; n > 0; n--)
        for (int64_t d = 0; d < count; d++) {
            int64_t pairs = starts[d + 1] - starts[d] - 1, best = -1;
            if (n == t_count) whole += pairs > t_count ? pairs / t_count : 0;
            if ((pairs > t_count ? pairs % t_count : pairs) != n) continue;
            for (int64_t r = 0; r < rows; r++)
                if (room[r] >= n && (best < 0 || room[r] < room[best])) best = r;
            if (best < 0) best = rows++, room[best] = t_count;
            room[best] -= n;
        }
    free(room);
    return rows + whole;
}

static void rows_are_those_of_best_fit_decreasing(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        static const int64_t lens[] = {5, 64, 130, 1000, 4097, 300};
        int64_t *starts = lengths(2500, 3 + 0.5 * i, 1.2);
        struct pack *p;
        assert_int_equal(pack_open(&p, starts, 2500, lens[i], PACK_BEST_FIT), STATUS_OK);
        assert_int_equal(pack_rows(p), best_fit_rows(starts, 2500, lens[i]));
        pack_close(p);
        free(starts);
    }
}

static void padding_of_web_like_lengths_is_below_one_percent(void **state)
{
    (void)state;
    static const int64_t t[] = {1024, 2048, 4096, 8192};
    static const double mu[] = {5.0, 6.2, 6.8};
    for (size_t i = 0; i < 4; i++)
        for (size_t k = 0; k < 3; k++) {
            int64_t *starts = lengths(150000, mu[k], 1.1);
            struct pack *p;
            assert_int_equal(pack_open(&p, starts, 150000, t[i], PACK_BEST_FIT), STATUS_OK);
            double padding = 1 - (double)pack_pairs(p) / ((double)pack_rows(p) * (double)t[i]);
            if (padding > 0.01) fail_msg("T %lld, median e^%g: %g", (long long)t[i], mu[k], padding);
            assert_true((double)pack_bytes(p) < 12.0 * 150000); /* the header's promise, full rows included */
            pack_close(p);
            free(starts);
        }
}

static void threads_do_not_matter(void **state)
{
    (void)state;
    int64_t *starts = lengths(3000000, 4, 1);
    struct pack *p[2];
    for (int i = 0; i < 2; i++) {
        parallel_threads_set(i ? 3 : 1);
        assert_int_equal(pack_open(&p[i], starts, 3000000, 512, PACK_BEST_FIT), STATUS_OK);
    }
    assert_int_equal(pack_rows(p[0]), pack_rows(p[1]));
    for (int64_t row = 0; row < pack_rows(p[0]); row += 101) {
        struct pack_cursor c[2];
        struct pack_piece a, b;
        pack_row(p[0], row, &c[0]);
        pack_row(p[1], row, &c[1]);
        bool more;
        do {
            more = pack_next(&c[0], &a);
            assert_int_equal(pack_next(&c[1], &b), more);
            if (more) assert_int_equal(a.at, b.at);
        } while (more);
    }
    for (int i = 0; i < 2; i++) pack_close(p[i]);
    free(starts);
    parallel_threads_set(0);
}

static void what_cannot_be_packed_is_refused(void **state)
{
    (void)state;
    struct pack *p;
    const int64_t ones[] = {0, 1, 2, 3};
    assert_int_equal(pack_open(&p, ones, 3, 8, PACK_BEST_FIT), STATUS_DATA);
    assert_null(p);
    assert_int_equal(pack_open(&p, ones, 0, 8, PACK_BEST_FIT), STATUS_DATA);
    const int64_t two[] = {0, 2};
    assert_int_equal(pack_open(&p, two, 1, PACK_ROW_MAX + 1, PACK_BEST_FIT), STATUS_CONFIG);
    assert_int_equal(pack_open(&p, two, 1, PACK_ROW_MAX, PACK_BEST_FIT), STATUS_OK);
    assert_int_equal(pack_rows(p), 1);
    pack_close(p);
    const int64_t vast[] = {0, (int64_t)1 << 40}; /* 2^40 rows of 1 */
    assert_int_equal(pack_open(&p, vast, 1, 1, PACK_BEST_FIT), STATUS_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_comes_once),
        cmocka_unit_test(rows_are_those_of_best_fit_decreasing),
        cmocka_unit_test(padding_of_web_like_lengths_is_below_one_percent),
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(what_cannot_be_packed_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
