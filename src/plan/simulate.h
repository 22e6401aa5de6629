/* simulate: a planned job event by event: the actions of every device in steps, then failures and checkpoints in whole
 * runs.
 *
 * Steps. A pipeline is one walk of the ranks' lists of actions (parallel/pipeline_schedule.h). The devices of one place
 * in it work in lockstep: those of a tensor-parallel group, and under ZeRO 2 and 3 those that share the state. Each of
 * them draws its own time for each action, and the action takes the longest:
 *     planned time x (factor of a straggler, or 1) x e^(jitter z - jitter^2 / 2),    z ~ N(0, 1)
 * So the mean of one device's time is the planned one. All pipelines wait for the slowest, then reduce gradients and
 * update weights. Without jitter and stragglers a step takes exactly what the plan says.
 *
 * Runs. Steps are drawn from the simulated ones. Which devices are slow is drawn anew at each restart. Failures and
 * checkpoints are those of goodput.h, whose closed form is the limit of many runs.
 *
 * Everything is a function of the seed; the number of threads changes nothing. */
#ifndef INGOT_PLAN_SIMULATE_H
#define INGOT_PLAN_SIMULATE_H
#include "parallel/pipeline_schedule.h"
#include "plan/goodput.h"

struct simulate_spread {
    double jitter;              /* standard deviation of an action's time, as a share of it */
    double slow_share, slow_factor; /* stragglers: share of the devices, and how many times longer they take */
    uint64_t seed;
};
struct simulate_step_args {
    const struct pipeline_schedule *schedule;   /* checked; of one rank without a pipeline */
    const struct pipeline_stage_time *stages;   /* [ranks chunks] */
    double message;             /* seconds of a message between stages */
    int pipelines, lockstep;    /* pipelines x ranks x lockstep devices */
    double once, optim;         /* seconds at the end of a step: exposed gradient reduction; optimizer */
    struct simulate_spread spread;
};
struct simulated_step {
    double seconds;
    double first, mean;         /* seconds of the fastest pipeline, and of the mean one */
    int slowest;                /* pipeline */
};
/* One step. `placement` draws which devices are slow, `step` the jitter. STATUS_OUT_OF_MEMORY: no memory. */
status simulate_step(const struct simulate_step_args *a, int64_t placement, int64_t step,
                     struct simulated_step *out) WARN_UNUSED;
/* Writes a pipeline's step as a Chrome trace, which ui.perfetto.dev opens: a process per rank, with tracks of compute,
 * of messages to other stages, and of the end of the step. Events carry micro-batch and chunk. */
status simulate_timeline(const struct simulate_step_args *a, int64_t placement, int64_t step, int pipeline,
                         const char *path) WARN_UNUSED;

struct simulate_sample {
    int placements, steps;      /* per placement */
    double *seconds;            /* [placements, steps], owned: simulate_sample_free */
    double planned;             /* seconds without jitter and stragglers */
};
/* As many steps as a minute allows, at least 8 placements of 2. */
status simulate_sample(const struct simulate_step_args *a, struct simulate_sample *out) WARN_UNUSED;
void simulate_sample_free(struct simulate_sample *s);
double simulate_sample_mean(const struct simulate_sample *s);
/* The value below which `share` of the numbers are; sorts them. */
double simulate_quantile(double *numbers, int count, double share);

struct simulated_run {
    double wall, trains, stalls, detects, restarts, repeats; /* seconds; shares of wall as in goodput.h */
    double failures, checkpoints;
};
struct simulate_run_args {
    const struct simulate_sample *sample;
    struct goodput_job job;     /* its `write` runs beside training */
    int64_t steps, interval;    /* steps of the run; steps between two checkpoints */
    uint64_t seed;
    int runs;
};
enum { SIMULATE_RUNS = 64 };
/* Simulates a.runs runs, run by run into out[a.runs]. STATUS_CONFIG when less than 1 % of the time would train. */
status simulate_runs(const struct simulate_run_args *a, struct simulated_run *out) WARN_UNUSED;
#endif
