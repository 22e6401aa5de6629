/* The simulator: closed forms of schedules, the plan's own step, the largest of many draws, goodput's closed form. */
#include "plan/mesh_fixture.h"

#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/parallel.h"
#include "plan/simulate_plan.h"

static struct simulate_step_args equal_stages(struct pipeline_schedule *s, struct pipeline_stage_time *stages)
{
    const struct pipeline_stage_time each = {.forward = 0.3, .dgrad = 0.3, .wgrad = 0.25};
    assert_int_equal(pipeline_schedule_check(s), STATUS_OK);
    for (int i = 0; i < s->ranks * s->chunks; i++) {
        const double v = s->chunks;
        stages[i] = (struct pipeline_stage_time){each.forward / v, each.dgrad / v, each.wgrad / v};
    }
    return (struct simulate_step_args){.schedule = s,
                                       .stages = stages,
                                       .pipelines = 3,
                                       .lockstep = 2,
                                       .once = 0.125,
                                       .optim = 0.25,
                                       .spread = {.slow_factor = 1, .seed = 1}};
}

static void bubbles_are_those_of_the_closed_forms(void **state)
{
    (void)state;
    const struct {
        enum pipeline_kind kind;
        int ranks, micros, chunks;
        double bubble; /* of F 0.3, BI 0.3, W 0.25 */
    } rows[] = {{PIPELINE_GPIPE, 4, 8, 1, 3 * 0.85}, {PIPELINE_1F1B, 4, 8, 1, 3 * 0.85},
                {PIPELINE_1F1B, 8, 64, 1, 7 * 0.85}, {PIPELINE_INTERLEAVED, 4, 8, 3, 3 * 0.85 / 3},
                {PIPELINE_ZB_H1, 4, 8, 1, 3 * 0.35}, {PIPELINE_1F1B, 1, 5, 1, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct pipeline_schedule s;
        struct pipeline_stage_time stages[16];
        struct simulated_step out;
        assert_int_equal(
            pipeline_schedule_build(&s, rows[i].kind, rows[i].ranks, rows[i].micros, rows[i].chunks),
            STATUS_OK);
        const struct simulate_step_args a = equal_stages(&s, stages);
        assert_int_equal(simulate_step(&a, 0, 0, &out), STATUS_OK);
        near(out.seconds, rows[i].micros * 0.85 + rows[i].bubble + 0.375, 1e-12);
        near(out.first, out.mean, 1e-12);
        pipeline_schedule_free(&s);
    }
}

static void without_jitter_a_step_is_the_plans(void **state)
{
    (void)state;
    const struct {
        const char *machine;
        struct mesh_variant v;
    } rows[] = {{"64xh100", variant(8, 4, 2, 1)},
                {"8xh100", variant(8, 1, 1, 3)},
                {"16xh100", variant(2, 2, 4, 2)},
                {"8xcpu", variant(2, 2, 2, 0)},
                {"64xh100", variant(8, 4, 2, 0)}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct spec s = spec_of("llama-1b", 1024, 64);
        struct mesh_plan *p = open_plan(&s, rows[i].machine);
        struct mesh_variant v = rows[i].v;
        struct mesh_result r;
        struct simulate_plan sim;
        struct simulate_sample sample;
        if (i == 4) v.mesh.schedule = PIPELINE_ZB_H1;
        assert_int_equal(mesh_plan_one(p, &v, &r), STATUS_OK);
        assert_int_equal(simulate_plan_open(&sim, p, &r), STATUS_OK);
        assert_int_equal(sim.args.pipelines * sim.args.lockstep * v.mesh.pp,
                         v.mesh.dp * v.mesh.tp * v.mesh.pp);
        sim.args.spread = (struct simulate_spread){.slow_factor = 1, .seed = 1};
        assert_int_equal(simulate_sample(&sim.args, &sample), STATUS_OK);
        near(sample.planned, r.step, 1e-9);
        near(simulate_sample_mean(&sample), r.step, 1e-9);
        simulate_sample_free(&sample);
        sim.args.spread = (struct simulate_spread){.slow_share = 1, .slow_factor = 1.25, .seed = 1};
        struct simulated_step slow;
        sim.args.message = 0, sim.args.once = 0;
        assert_int_equal(simulate_step(&sim.args, 0, 0, &slow), STATUS_OK);
        sim.args.spread.slow_share = 0;
        struct simulated_step fast;
        assert_int_equal(simulate_step(&sim.args, 0, 0, &fast), STATUS_OK);
        near(slow.seconds, 1.25 * fast.seconds, 1e-9);
        simulate_plan_close(&sim);
        mesh_plan_close(p);
    }
}

/* E of the largest of n draws of e^(j z - j^2 / 2), by the midpoint rule. */
static double largest_of(int n, double j)
{
    double sum = 0;
    for (double z = -8, d = 1e-3; z < 8; z += d) {
        const double below = 0.5 * erfc(-(z + d / 2) / sqrt(2)),
                     density = exp(-(z + d / 2) * (z + d / 2) / 2) / sqrt(6.283185307179586);
        sum += d * n * pow(below, n - 1) * density * exp(j * (z + d / 2) - j * j / 2);
    }
    return sum;
}

static void devices_in_lockstep_wait_for_the_slowest(void **state)
{
    (void)state;
    const int sizes[] = {1, 8, 256};
    for (int i = 0; i < 3; i++) {
        struct pipeline_schedule s;
        struct pipeline_stage_time stages[1];
        assert_int_equal(pipeline_schedule_build(&s, PIPELINE_1F1B, 1, 1000, 1), STATUS_OK);
        struct simulate_step_args a = equal_stages(&s, stages);
        struct simulated_step out;
        a.pipelines = 1, a.lockstep = sizes[i], a.once = a.optim = 0, a.spread.jitter = 0.1;
        double sum = 0;
        for (int k = 0; k < 5; k++) {
            assert_int_equal(simulate_step(&a, k, 0, &out), STATUS_OK);
            sum += out.seconds / 5;
        }
        near(sum, 850 * largest_of(sizes[i], 0.1), 0.003);
        pipeline_schedule_free(&s);
    }
}

static void the_seed_alone_decides(void **state)
{
    (void)state;
    struct pipeline_schedule s;
    struct pipeline_stage_time stages[4];
    struct simulated_step one, two;
    assert_int_equal(pipeline_schedule_build(&s, PIPELINE_1F1B, 4, 8, 1), STATUS_OK);
    struct simulate_step_args a = equal_stages(&s, stages);
    a.pipelines = 64, a.spread.jitter = 0.02, a.spread.slow_share = 0.1, a.spread.slow_factor = 1.1;
    parallel_threads_set(1);
    assert_int_equal(simulate_step(&a, 1, 2, &one), STATUS_OK);
    parallel_threads_set(2);
    assert_int_equal(simulate_step(&a, 1, 2, &two), STATUS_OK);
    assert_true(memcmp(&one, &two, sizeof one) == 0);
    assert_true(one.first < one.mean && one.mean < one.seconds);
    a.spread.seed = 2;
    assert_int_equal(simulate_step(&a, 1, 2, &two), STATUS_OK);
    assert_true(one.seconds != two.seconds);
    pipeline_schedule_free(&s);
}

static void runs_agree_with_goodput(void **state)
{
    (void)state;
    double seconds[] = {2};
    const struct simulate_sample sample = {.placements = 1, .steps = 1, .seconds = seconds, .planned = 2};
    struct simulate_run_args a = {
        .sample = &sample,
        .job = {.devices = 1000, .mtbf = 5e6, .detect = 30, .restart = 200, .stall = 6, .write = 60},
        .steps = 3000000,
        .interval = 100,
        .seed = 3,
        .runs = 16};
    struct simulated_run runs[16];
    for (int k = 0; k < 2; k++) {
        if (k == 1) a.job.write = 0;
        const struct goodput g = goodput_of(&a.job, 200);
        double trains = 0, stalls = 0, restarts = 0, failures = 0, repeats = 0;
        assert_int_equal(simulate_runs(&a, runs), STATUS_OK);
        for (int i = 0; i < 16; i++) {
            trains += runs[i].trains / 16, stalls += runs[i].stalls / 16, restarts += runs[i].restarts / 16;
            repeats += runs[i].repeats / 16, failures += runs[i].failures / runs[i].wall / 16;
        }
        near(trains, g.trains, 0.002);
        near(stalls, g.stalls, 0.01);
        near(restarts, g.restarts, 0.02);
        near(repeats, g.repeats, 0.03);
        near(failures, g.failures, 0.02);
    }
    a.job.mtbf = INFINITY, a.interval = 0;
    assert_int_equal(simulate_runs(&a, runs), STATUS_OK);
    assert_true(runs[7].trains == 1 && runs[7].wall == 6000000 && runs[7].failures == 0);
    a.job.mtbf = 1e5, a.interval = 1000;
    assert_int_equal(simulate_runs(&a, runs), STATUS_CONFIG);
}

static void a_timeline_is_the_step(void **state)
{
    (void)state;
    char path[] = "/tmp/ingot-timeline-XXXXXX";
    struct pipeline_schedule s;
    struct pipeline_stage_time stages[8];
    struct simulated_step one;
    close(mkstemp(path));
    assert_int_equal(pipeline_schedule_build(&s, PIPELINE_INTERLEAVED, 4, 8, 2), STATUS_OK);
    struct simulate_step_args a = equal_stages(&s, stages);
    a.message = 0.01, a.spread.jitter = 0.05;
    assert_int_equal(simulate_step(&a, 0, 0, &one), STATUS_OK);
    assert_int_equal(simulate_timeline(&a, 0, 0, one.slowest, path), STATUS_OK);
    json_t *events = json_load_file(path, 0, NULL), *e;
    assert_non_null(events);
    size_t at;
    int compute = 0;
    double end[4] = {0}, last = 0;
    json_array_foreach(events, at, e)
    {
        if (strcmp(json_string_value(json_object_get(e, "ph")), "X") != 0) continue;
        const double ts = json_number_value(json_object_get(e, "ts")),
                     until = ts + json_number_value(json_object_get(e, "dur"));
        last = fmax(last, until);
        if (json_integer_value(json_object_get(e, "tid")) != 0) continue;
        const int rank = (int)json_integer_value(json_object_get(e, "pid"));
        assert_true(ts >= end[rank] - 0.01);
        end[rank] = until, compute++;
    }
    assert_int_equal(compute, 4 * 8 * 2 * 2);
    near(last * 1e-6, one.seconds, 0.02); /* the optimizer's own jitter */
    json_decref(events);
    unlink(path);
    pipeline_schedule_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bubbles_are_those_of_the_closed_forms),
        cmocka_unit_test(without_jitter_a_step_is_the_plans),
        cmocka_unit_test(devices_in_lockstep_wait_for_the_slowest),
        cmocka_unit_test(the_seed_alone_decides),
        cmocka_unit_test(runs_agree_with_goodput),
        cmocka_unit_test(a_timeline_is_the_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
