#include "plan/simulate_plan.h"
#include "base/text.h"
#include "plan/amounts.h"
#include "plan/mesh_choose.h"
#include "plan/mesh_plan_int.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Stage times as the plan's own walk had them. */
static status take_stages(struct simulate_plan *s, const struct mesh_plan *p, const struct mesh_result *r)
{
    const struct mesh_shape *m = &r->variant.mesh;
    const size_t count = (size_t)m->pp * (size_t)m->chunks;
    s->stages = malloc(count * sizeof *s->stages);
    if (s->stages == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the times of %zu stages", count);
    if (m->pp > 1)
        memcpy(s->stages, p->walk.times, count * sizeof *s->stages);
    else
        s->stages[0] =
            (struct pipeline_stage_time){.forward = r->stages[0].forward, .dgrad = r->stages[0].backward};
    return STATUS_OK;
}

status simulate_plan_open(struct simulate_plan *s, struct mesh_plan *p, const struct mesh_result *r)
{
    const struct mesh_shape *m = &r->variant.mesh;
    struct mesh_result again;
    *s = (struct simulate_plan){0};
    TRY(mesh_plan_one(p, &r->variant, &again));
    status st = pipeline_schedule_build(&s->schedule, m->pp > 1 ? m->schedule : PIPELINE_1F1B, m->pp,
                                        again.micros, m->chunks);
    if (st == STATUS_OK) st = pipeline_schedule_check(&s->schedule);
    if (st == STATUS_OK) st = take_stages(s, p, &again);
    if (st != STATUS_OK) {
        simulate_plan_close(s);
        return st;
    }
    /* Ranks of a sequence, those that shard experts, and those that share the state, exchange in each action: they
     * wait for each other. */
    int exchange = mesh_cp(m);
    while (exchange % mesh_ep(m) != 0) exchange += mesh_cp(m);
    const int shared = m->zero >= 2 && m->shard > exchange ? m->shard : exchange;
    const double makespan =
        m->pp > 1 ? p->walk.with : again.micros * (again.stages[0].forward + again.stages[0].backward);
    s->args = (struct simulate_step_args){.schedule = &s->schedule,
                                          .stages = s->stages,
                                          .message = m->pp > 1 ? p->walk.message : 0,
                                          .pipelines = mesh_dp_cp(m) / shared,
                                          .lockstep = m->tp * shared,
                                          .once = fmax(0, again.step - again.optim - makespan),
                                          .optim = again.optim};
    return STATUS_OK;
}

void simulate_plan_close(struct simulate_plan *s)
{
    if (s->schedule.ranks > 0) pipeline_schedule_free(&s->schedule);
    free(s->stages);
    *s = (struct simulate_plan){0};
}

/* Everything that is printed. */
struct outcome {
    const struct simulate_print_args *a;
    struct mesh_plan *plan;
    struct mesh_result mesh;
    struct simulate_sample sample;
    double *steps; /* the sample's, sorted */
    int step_count;
    struct outlook outlook; /* with simulated steps */
    int64_t interval;       /* steps between checkpoints */
    struct simulated_run runs[SIMULATE_RUNS];
    bool bounded; /* the runs are shorter than the run */
    double days;  /* of the simulated work */
};

static const double bounds[] = {0.05, 0.5, 0.95};
struct interval {
    double low, middle, high;
};

static struct interval interval_of(double *numbers, int count)
{
    return (struct interval){simulate_quantile(numbers, count, bounds[0]),
                             simulate_quantile(numbers, count, bounds[1]),
                             simulate_quantile(numbers, count, bounds[2])};
}

/* Of one field of the simulated runs. */
static struct interval runs_interval(const struct outcome *o, size_t field, double scale)
{
    double numbers[SIMULATE_RUNS];
    for (int i = 0; i < SIMULATE_RUNS; i++)
        numbers[i] = scale * *(const double *)((const char *)&o->runs[i] + field);
    return interval_of(numbers, SIMULATE_RUNS);
}
#define RUNS_INTERVAL(o, field, scale) runs_interval(o, offsetof(struct simulated_run, field), scale)

static double failure_share(int i, const char **words)
{
    static const struct {
        const char *words;
        double count;
    } parts[] = {
#define FAILURE(name, words, count) {words, count},
#include "plan/failure.def"
#undef FAILURE
    };
    double sum = 0;
    const int count = (int)(sizeof parts / sizeof parts[0]);
    for (int k = 0; k < count; k++) sum += parts[k].count;
    if (i >= count) return 0;
    *words = parts[i].words;
    return parts[i].count / sum;
}

static status run_all(struct outcome *o, struct outlook_args looks)
{
    const int64_t steps_max = 1000000;
    const double mean = simulate_sample_mean(&o->sample), month = 30 * 86400.0;
    const struct spec *s = &o->plan->spec;
    if (looks.tokens == 0 && s->run.train_steps == SPEC_ENDLESS)
        looks.tokens = ceil(month / mean) * (double)s->run.train_batch_tokens;
    TRY(outlook_of(o->plan, &o->mesh, mean, &looks, &o->outlook));
    const double interval = o->outlook.goodput.interval;
    o->interval = isinf(interval) ? 0 : (int64_t)fmax(1, round(interval / mean));
    o->bounded = o->outlook.steps > (double)steps_max;
    const int64_t steps = o->bounded ? steps_max : (int64_t)o->outlook.steps;
    o->days = (double)steps * mean / 86400;
    return simulate_runs(&(struct simulate_run_args){.sample = &o->sample,
                                                     .job = o->outlook.job,
                                                     .steps = steps,
                                                     .interval = o->interval,
                                                     .seed = o->a->spread.seed,
                                                     .runs = SIMULATE_RUNS},
                         o->runs);
}

static status write_timeline(const struct outcome *o, const struct simulate_step_args *step)
{
    struct simulated_step one;
    if (o->a->timeline == NULL) return STATUS_OK;
    TRY(simulate_step(step, 0, 0, &one));
    return simulate_timeline(step, 0, 0, one.slowest, o->a->timeline);
}

static status simulate_all(struct outcome *o)
{
    struct simulate_plan s;
    TRY(mesh_choose(o->plan, &o->mesh));
    TRY(simulate_plan_open(&s, o->plan, &o->mesh));
    s.args.spread = o->a->spread;
    status st = simulate_sample(&s.args, &o->sample);
    if (st == STATUS_OK) st = run_all(o, o->a->outlook);
    if (st == STATUS_OK) st = write_timeline(o, &s.args);
    simulate_plan_close(&s);
    return st;
}

static void print_steps(const struct outcome *o, struct interval step)
{
    const struct simulate_spread *s = &o->a->spread;
    char a[32], b[32], c[32], d[32];
    printf("step         %s as planned; simulated %s (5 %%: %s, 95 %%: %s): %+.1f %%\n",
           text_time(a, o->sample.planned), text_time(b, step.middle), text_time(c, step.low),
           text_time(d, step.high), 100 * (step.middle / o->sample.planned - 1));
    printf("             jitter %.3g %% of each action on each device", 100 * s->jitter);
    if (s->slow_share > 0)
        printf("; %.3g %% of the devices are %.3g times slower", 100 * s->slow_share, s->slow_factor);
    printf("; %d placements of %d steps\n", o->sample.placements, o->sample.steps);
}

static void print_failures(const struct outcome *o, struct interval failures)
{
    const struct outlook *l = &o->outlook;
    char a[32], b[32], checkpoints[AMOUNT_CHECKPOINTS];
    if (isinf(l->job.mtbf)) {
        printf("failures     none are assumed\n");
        return;
    }
    printf("checkpoint   %s, at %s\n", amount_checkpoints(checkpoints, l), amount_rate(a, l->storage));
    printf("failures     one in %s (%.0f device hours); %.0f in the run (5 %%: %.0f, 95 %%: %.0f)%s",
           text_time(a, l->job.mtbf / l->job.devices), l->job.mtbf / 3600, failures.middle, failures.low,
           failures.high, failures.middle >= 1 ? ":\n            " : "");
    const char *words = NULL;
    double share;
    for (int i = 0; failures.middle >= 1 && (share = failure_share(i, &words)) > 0; i++)
        printf("%s %.1f %s", i ? "," : "", share * failures.middle, words);
    printf("\n             each: %s until it is noticed, %s until training goes on\n",
           text_time(a, l->job.detect), text_time(b, l->job.restart));
}

static void print_text(const struct outcome *o)
{
    char text[64], a[32], b[32], c[32], d[32];
    const struct mesh_shape *m = &o->mesh.variant.mesh;
    const struct interval step = interval_of(o->steps, o->step_count);
    const struct interval trains = RUNS_INTERVAL(o, trains, 100),
                          wall = RUNS_INTERVAL(o, wall, o->bounded ? o->outlook.steps / 1e6 : 1);
    const struct interval stalls = RUNS_INTERVAL(o, stalls, 100), detects = RUNS_INTERVAL(o, detects, 100),
                          restarts = RUNS_INTERVAL(o, restarts, 100),
                          repeats = RUNS_INTERVAL(o, repeats, 100);
    char axes[MESH_AXES], why[PLAN_WHY];
    printf("simulated    %s: %s, %d micro-batch%s of %lld; seed %llu\n",
           cluster_text(text, &o->plan->cluster), mesh_axes(axes, m), o->mesh.micros,
           o->mesh.micros > 1 ? "es" : "", (long long)o->mesh.variant.micro_batch,
           (unsigned long long)o->a->spread.seed);
    if (mesh_lacks(why, o->plan, m)) printf("start        predicted only: %s\n", why);
    print_steps(o, step);
    print_failures(o, RUNS_INTERVAL(o, failures, 1));
    printf("goodput      %.2f %% of the time trains (5 %%: %.2f, 95 %%: %.2f; %d runs); the closed form says "
           "%.2f %%\n",
           trains.middle, trains.low, trains.high, SIMULATE_RUNS, 100 * o->outlook.goodput.trains);
    printf("             checkpoints %.2f %%, detection %.2f %%, restarts %.2f %%, lost work %.2f %%\n",
           stalls.middle, detects.middle, restarts.middle, repeats.middle);
    printf("run          %.0f steps, %s tokens: %s (5 %%: %s, 95 %%: %s)\n", o->outlook.steps,
           text_count(a, o->outlook.tokens), text_time(b, wall.middle), text_time(c, wall.low),
           text_time(d, wall.high));
    if (o->bounded) printf("             of which the first million steps are simulated\n");
    if (o->a->timeline)
        printf("timeline     %s: a step of the slowest pipeline; ui.perfetto.dev opens it\n", o->a->timeline);
}

static json_t *interval_json(struct interval i)
{
    return json_pack("{s:f, s:f, s:f}", "p5", i.low, "p50", i.middle, "p95", i.high);
}

static json_t *parts_json(double failures)
{
    const char *words = NULL;
    double share;
    json_t *parts = json_object();
    for (int i = 0; (share = failure_share(i, &words)) > 0; i++)
        json_object_set_new(parts, words, json_real(share * failures));
    return parts;
}

static void print_json(const struct outcome *o)
{
    const struct mesh_shape *m = &o->mesh.variant.mesh;
    const struct outlook *l = &o->outlook;
    const struct interval failures = RUNS_INTERVAL(o, failures, 1);
    json_t *root =
        json_pack("{s:s, s:i, s:{s:i, s:i, s:i, s:i, s:i, s:I}, s:I}", "machine",
                  o->plan->cluster.machine->name, "devices", o->plan->cluster.devices, "mesh", "dp", m->dp,
                  "tp", m->tp, "pp", m->pp, "zero", m->zero, "micro_batches", o->mesh.micros, "micro_batch",
                  (json_int_t)o->mesh.variant.micro_batch, "seed", (json_int_t)o->a->spread.seed);
    char why[PLAN_WHY];
    const bool starts = mesh_lacks(why, o->plan, m) == NULL;
    json_object_set_new(root, "starts", json_boolean(starts));
    if (!starts) json_object_set_new(root, "predicted_only", json_string(why));
    json_object_set_new(root, "planned_step_seconds", json_real(o->sample.planned));
    json_object_set_new(root, "step_seconds", interval_json(interval_of(o->steps, o->step_count)));
    json_object_set_new(root, "goodput", interval_json(RUNS_INTERVAL(o, trains, 1)));
    json_object_set_new(root, "goodput_closed_form", json_real(l->goodput.trains));
    json_object_set_new(root, "checkpoint_share", interval_json(RUNS_INTERVAL(o, stalls, 1)));
    json_object_set_new(root, "detection_share", interval_json(RUNS_INTERVAL(o, detects, 1)));
    json_object_set_new(root, "restart_share", interval_json(RUNS_INTERVAL(o, restarts, 1)));
    json_object_set_new(root, "lost_work_share", interval_json(RUNS_INTERVAL(o, repeats, 1)));
    json_object_set_new(root, "failures", interval_json(failures));
    json_object_set_new(root, "failures_by_part", parts_json(failures.middle));
    json_object_set_new(root, "wall_seconds", interval_json(RUNS_INTERVAL(o, wall, 1)));
    json_object_set_new(root, "simulated_steps_max",
                        json_integer(o->bounded ? 1000000 : (json_int_t)l->steps));
    json_object_set_new(root, "steps", json_real(l->steps));
    json_object_set_new(root, "tokens", json_real(l->tokens));
    json_object_set_new(root, "checkpoint_bytes", json_real(l->checkpoint_bytes));
    json_object_set_new(root, "checkpoint_steps", json_integer(o->interval));
    json_object_set_new(root, "checkpoint_stall_seconds", json_real(l->job.stall));
    json_dumpf(root, stdout, JSON_INDENT(2));
    printf("\n");
    json_decref(root);
}

status simulate_print(const struct spec *s, const struct simulate_print_args *a)
{
    struct cluster c;
    struct outcome o = {.a = a};
    TRY(cluster_parse(a->machine, &c));
    c.assume = a->command.assume;
    TRY(mesh_plan_open(&o.plan, s, &c));
    o.plan->command = a->command;
    const status st = simulate_all(&o);
    if (st == STATUS_OK) {
        o.steps = o.sample.seconds, o.step_count = o.sample.placements * o.sample.steps;
        if (a->json)
            print_json(&o);
        else
            print_text(&o);
    }
    simulate_sample_free(&o.sample);
    mesh_plan_close(o.plan);
    return st;
}
