/* Goodput's closed forms against published numbers, against their neighbours and against a simulation of single failures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdbool.h>

#include "base/rng.h"
#include "plan/goodput.h"

static void near(double got, double wanted, double within)
{
    if (!(fabs(got - wanted) <= within)) fail_msg("%.9g, wanted %.9g +- %.3g", got, wanted, within);
}

/* A stall of 0.1 s and a restart of 30 s: a failure a day and one in three hours; then a stall of 6.3 s. */
static void young_and_daly(void **state)
{
    (void)state;
    const struct {
        double mtbf, stall, interval, lost;
    } rows[] = {{86400, 0.1, 131, 0.0019}, {10800, 0.1, 46, 0.0071}, {10800, 6.3, 369, 0.037}};
    for (int i = 0; i < 3; i++) {
        const struct goodput_job j = {
            .devices = 1, .mtbf = rows[i].mtbf, .stall = rows[i].stall, .restart = 30};
        const struct goodput g = goodput_of(&j, 0);
        near(g.interval, rows[i].interval, 0.02 * rows[i].interval);
        near(1 - g.trains, rows[i].lost, 0.02 * rows[i].lost);
        near(g.interval, sqrt(2 * j.stall * j.mtbf), 0.02 * g.interval);
    }
    /* 16,384 H100s for 54 days. */
    const struct goodput_job llama = {.devices = 16384, .mtbf = GOODPUT_MTBF_HOURS * 3600};
    near(goodput_of(&llama, 600).failures * 54 * 86400, 419, 0.1);
}

static const struct goodput_job jobs[] = {
    {.devices = 1, .mtbf = 10800, .stall = 6.3, .restart = 30},
    {.devices = 1000, .mtbf = 2e6, .detect = 60, .restart = 300, .stall = 5, .write = 120},
    {.devices = 16384, .mtbf = 50677 * 3600.0, .detect = 30, .restart = 600, .stall = 2, .write = 60},
    {.devices = 100000, .mtbf = 5e7, .detect = 100, .restart = 400, .stall = 20, .write = 30},
};
enum { JOBS = sizeof jobs / sizeof jobs[0] };

static void no_neighbour_of_the_best_interval_is_better(void **state)
{
    (void)state;
    for (int i = 0; i < JOBS; i++) {
        const struct goodput best = goodput_of(&jobs[i], 0);
        near(best.trains + best.stalls + best.detects + best.restarts + best.repeats, 1, 1e-12);
        assert_true(best.repeats > 0);
        assert_true(goodput_of(&jobs[i], 1.1 * best.interval).trains < best.trains);
        if (best.interval * 0.9 > jobs[i].write)
            assert_true(goodput_of(&jobs[i], 0.9 * best.interval).trains < best.trains);
    }
}

static void limits(void **state)
{
    (void)state;
    struct goodput_job j = {.devices = 8, .mtbf = INFINITY, .stall = 1};
    assert_true(isinf(goodput_interval(&j)));
    assert_true(goodput_of(&j, 0).trains == 1);
    near(goodput_of(&j, 9).trains, 0.9, 1e-12);
    near(goodput_of(&j, 9).stalls, 0.1, 1e-12);
    j = (struct goodput_job){.devices = 8, .mtbf = 8e4, .write = 500, .stall = 1};
    assert_true(goodput_of(&j, 0).interval == 499); /* one checkpoint is written at a time */
    assert_true(goodput_of(&j, 10).interval == 499);
    j = (struct goodput_job){.devices = 8, .mtbf = 8e4, .least = 7};
    assert_true(goodput_of(&j, 0).interval == 7); /* a stall of nothing: after each step */
    j = (struct goodput_job){.devices = 1e6, .mtbf = 1e6, .restart = 2000, .stall = 1};
    const struct goodput stuck = goodput_of(&j, 0);
    assert_true(stuck.trains == 0 && stuck.stalls == 0);
    near(stuck.restarts + stuck.repeats, 1, 1e-9);
}

/* Single failures, one after the other: seconds per cause until `segments` intervals have been worked. */
struct simulated {
    double wall, stalls, detects, restarts, failures;
};
static double draw(uint64_t seed, uint64_t *at, double mean)
{
    return -mean * log1p(-rng_uniform(seed, RNG_TEST, (*at)++, 0));
}
static struct simulated simulate(const struct goodput_job *j, double interval, int segments, uint64_t seed)
{
    const double mean = j->mtbf / j->devices, period = interval + j->stall;
    struct simulated s = {0};
    uint64_t at = 0;
    bool pending = false; /* the checkpoint of the segment before is not written yet */
    for (int done = 0; done < segments;) {
        const double fails = draw(seed, &at, mean);
        if (fails >= period) {
            s.wall += period, s.stalls += j->stall;
            pending = true, done++;
            continue;
        }
        s.wall += fails;
        if (pending && fails < j->write) done--, s.stalls -= j->stall;
        pending = false;
        for (bool up = false; !up;) {
            const double next = draw(seed, &at, mean), took = fmin(next, j->restart);
            s.failures++, s.detects += j->detect, s.restarts += took, s.wall += j->detect + took;
            up = next >= j->restart;
        }
    }
    return s;
}

/* The standard error of a share over n independent segments is below 1 / sqrt(n) here. */
static void a_simulation_of_single_failures_agrees(void **state)
{
    (void)state;
    enum { SEGMENTS = 400000 };
    for (int i = 0; i < JOBS; i++)
        for (int k = 0; k < 2; k++) {
            const struct goodput g = goodput_of(&jobs[i], k == 0 ? 0 : 1000);
            const struct simulated s = simulate(&jobs[i], g.interval, SEGMENTS, 7 + (uint64_t)i);
            near(SEGMENTS * g.interval / s.wall, g.trains, 0.0025);
            near(s.stalls / s.wall, g.stalls, 0.0025);
            near(s.detects / s.wall, g.detects, 0.0025);
            near(s.restarts / s.wall, g.restarts, 0.0025);
            near(s.failures / s.wall / g.failures, 1, 0.01);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(young_and_daly),
        cmocka_unit_test(no_neighbour_of_the_best_interval_is_better),
        cmocka_unit_test(limits),
        cmocka_unit_test(a_simulation_of_single_failures_agrees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
