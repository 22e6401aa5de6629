#include "base/io.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "plan/simulate.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

/* Draws of one pipeline: counters of the random numbers are (stream of the step, place in it). */
struct draws {
    const struct simulate_step_args *a;
    const double *slow;    /* [ranks, lockstep] logarithms of factors */
    const double *slowest; /* [ranks] their maxima */
    uint64_t stream, at;
};
enum { NORMALS = 4 }; /* per block of random bits */

static void normals(uint64_t seed, uint64_t a, uint64_t b, double out[NORMALS])
{
    const double pi = 3.14159265358979323846;
    const struct rng_block r = rng_at(seed, RNG_PLAN, a, b);
    for (int i = 0; i < NORMALS; i += 2) {
        const double radius = sqrt(-2 * log(((double)r.u[i] + 1) * 0x1p-32)),
                     angle = 2 * pi * r.u[i + 1] * 0x1p-32;
        out[i] = radius * cos(angle), out[i + 1] = radius * sin(angle);
    }
}

/* Factor of an action that all devices of a place in the pipeline run in lockstep. */
static double lockstep(struct draws *d, int rank)
{
    const struct simulate_spread *s = &d->a->spread;
    const int count = d->a->lockstep;
    double most = d->slowest[rank];
    if (s->jitter > 0) {
        double z[NORMALS];
        most = -INFINITY;
        for (int i = 0; i < count; i++) {
            if (i % NORMALS == 0) normals(s->seed, d->stream, d->at++, z);
            most = fmax(most, d->slow[rank * count + i] + s->jitter * z[i % NORMALS]);
        }
        most -= s->jitter * s->jitter / 2;
    }
    return exp(most);
}

static double takes(void *ctx, int rank, const struct pipeline_action *a, double start, double seconds)
{
    (void)a, (void)start;
    return seconds * lockstep(ctx, rank);
}

/* slow[ranks, lockstep], then slowest[ranks], of one pipeline. */
static void place(const struct simulate_step_args *a, int64_t placement, int pipeline, double *slow)
{
    const int ranks = a->schedule->ranks, devices = ranks * a->lockstep;
    const uint64_t kind = (uint64_t)1 << 63; /* apart from the streams of steps */
    for (int i = 0; i < devices; i++) {
        const uint64_t device = (uint64_t)pipeline * (uint64_t)devices + (uint64_t)i;
        const double u = rng_uniform(a->spread.seed, RNG_PLAN, kind | (uint64_t)placement, device);
        slow[i] = u < a->spread.slow_share ? log(a->spread.slow_factor) : 0;
    }
    for (int r = 0; r < ranks; r++) {
        slow[devices + r] = slow[r * a->lockstep];
        for (int i = 1; i < a->lockstep; i++)
            slow[devices + r] = fmax(slow[devices + r], slow[r * a->lockstep + i]);
    }
}

static size_t slow_count(const struct simulate_step_args *a)
{
    return (size_t)a->schedule->ranks * (size_t)(a->lockstep + 1);
}

static struct draws draws_of(const struct simulate_step_args *a, const double *slow, int64_t placement,
                             int64_t step, int pipeline)
{
    enum { PLACEMENTS = 1 << 12, PIPELINES = 1 << 20 };
    const uint64_t of_step = (uint64_t)step * PLACEMENTS + (uint64_t)placement;
    return (struct draws){.a = a,
                          .slow = slow,
                          .slowest = slow + a->schedule->ranks * a->lockstep,
                          .stream = of_step * PIPELINES + (uint64_t)pipeline};
}

struct walked {
    double seconds, optim; /* of the pipeline's actions; of its slowest optimizer */
    status st;
};
static struct walked walk(const struct simulate_step_args *a, int64_t placement, int64_t step, int pipeline)
{
    struct walked w = {.st = STATUS_OUT_OF_MEMORY};
    struct pipeline_simulated walked = {0};
    double *slow = malloc(slow_count(a) * sizeof *slow);
    if (slow == NULL) return w;
    place(a, placement, pipeline, slow);
    struct draws d = draws_of(a, slow, placement, step, pipeline);
    w.st = pipeline_simulate(a->schedule,
                             &(struct pipeline_simulate_args){
                                 .stages = a->stages, .message = a->message, .takes = takes, .ctx = &d},
                             &walked);
    w.seconds = walked.makespan;
    for (int r = 0; r < a->schedule->ranks; r++) w.optim = fmax(w.optim, a->optim * lockstep(&d, r));
    free(slow);
    return w;
}

status simulate_step(const struct simulate_step_args *a, int64_t placement, int64_t step,
                     struct simulated_step *out)
{
    struct walked *all = calloc((size_t)a->pipelines, sizeof *all);
    if (all == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory to simulate %d pipelines", a->pipelines);
    PARALLEL_CHUNKS(i, a->pipelines) all[i] = walk(a, placement, step, (int)i);
    double most = 0, optim = 0;
    status st = STATUS_OK;
    *out = (struct simulated_step){.first = INFINITY};
    for (int i = 0; i < a->pipelines; i++) {
        if (all[i].st != STATUS_OK) st = all[i].st;
        if (all[i].seconds > most) most = all[i].seconds, out->slowest = i;
        out->first = fmin(out->first, all[i].seconds);
        out->mean += all[i].seconds / a->pipelines;
        optim = fmax(optim, all[i].optim);
    }
    out->seconds = most + a->once + optim;
    free(all);
    return st == STATUS_OK ? st : FAIL(st, "no memory to simulate %d pipelines", a->pipelines);
}

/* Events of a timeline go to a stream as they happen. */
struct timeline {
    struct draws draws;
    FILE *f;
};
enum track { TRACK_COMPUTE, TRACK_NEXT, TRACK_PREV, TRACK_END, TRACKS };

static void event(FILE *f, int rank, enum track track, const char *name, double start, double seconds)
{
    fprintf(f, ",\n{\"name\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,\"tid\":%d", name,
            start * 1e6, seconds * 1e6, rank, (int)track);
}

static double takes_and_writes(void *ctx, int rank, const struct pipeline_action *a, double start,
                               double seconds)
{
    static const char *const names[] = {"F", "B", "B input", "W"};
    struct timeline *t = ctx;
    const double took = seconds * lockstep(&t->draws, rank);
    const struct pipeline_schedule *s = t->draws.a->schedule;
    const int stages = s->ranks * s->chunks, stage = a->chunk * s->ranks + rank;
    event(t->f, rank, TRACK_COMPUTE, names[a->what], start, took);
    fprintf(t->f, ",\"args\":{\"micro_batch\":%d,\"chunk\":%d}}", a->micro, a->chunk);
    const bool sends = a->what == PIPELINE_F ? stage + 1 < stages : a->what != PIPELINE_W && stage > 0;
    if (!sends || t->draws.a->message == 0) return took;
    event(t->f, rank, a->what == PIPELINE_F ? TRACK_NEXT : TRACK_PREV, "send", start + took,
          t->draws.a->message);
    fprintf(t->f, ",\"args\":{\"micro_batch\":%d,\"to_rank\":%d}}", a->micro,
            (rank + (a->what == PIPELINE_F ? 1 : s->ranks - 1)) % s->ranks);
    return took;
}

static void name_tracks(FILE *f, int rank, int pipeline)
{
    static const char *const names[TRACKS] = {"compute", "to the next stage", "to the previous stage",
                                              "end of the step"};
    fprintf(
        f,
        "%s{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"pipeline %d, rank %d\"}}",
        rank ? ",\n" : "[\n", rank, pipeline, rank);
    for (int i = 0; i < TRACKS; i++)
        fprintf(f,
                ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
                rank, i, names[i]);
}

static status write_events(const struct simulate_step_args *a, int64_t placement, int64_t step, int pipeline,
                           FILE *f)
{
    struct simulated_step all;
    struct pipeline_simulated walked;
    TRY(simulate_step(a, placement, step, &all));
    double *slow = malloc(slow_count(a) * sizeof *slow);
    if (slow == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for a timeline");
    for (int r = 0; r < a->schedule->ranks; r++) name_tracks(f, r, pipeline);
    place(a, placement, pipeline, slow);
    struct timeline t = {.draws = draws_of(a, slow, placement, step, pipeline), .f = f};
    const status st = pipeline_simulate(
        a->schedule,
        &(struct pipeline_simulate_args){
            .stages = a->stages, .message = a->message, .takes = takes_and_writes, .ctx = &t},
        &walked);
    free(slow);
    TRY(st);
    const double update = a->optim > 0 ? a->optim : 0, reduced = all.seconds - update;
    for (int r = 0; r < a->schedule->ranks; r++) {
        const struct {
            const char *name;
            double start, seconds;
        } ends[] = {{"wait for other pipelines", walked.makespan, reduced - a->once - walked.makespan},
                    {"reduce gradients", reduced - a->once, a->once},
                    {"optimizer", reduced, update}};
        for (int i = 0; i < 3; i++) {
            if (ends[i].seconds <= 0) continue;
            event(f, r, TRACK_END, ends[i].name, ends[i].start, ends[i].seconds);
            fprintf(f, "}");
        }
    }
    fprintf(f, "\n]\n");
    return STATUS_OK;
}

status simulate_timeline(const struct simulate_step_args *a, int64_t placement, int64_t step, int pipeline,
                         const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = memory_stream(&text, &bytes);
    status st = write_events(a, placement, step, pipeline, f);
    memory_stream_close(f);
    if (st == STATUS_OK) st = io_write_file(path, text, bytes);
    free(text);
    return st;
}

status simulate_sample(const struct simulate_step_args *a, struct simulate_sample *out)
{
    enum { PLACEMENTS = 8, STEPS_MIN = 2, STEPS_MAX = 32 };
    const double draws_max = 4e8; /* about 5 s on two cores */
    const double draws = (double)a->pipelines * a->schedule->ranks * a->lockstep * 2 * a->schedule->micros *
                         a->schedule->chunks;
    const bool still = a->spread.jitter == 0;
    const int steps = still ? 1 : (int)fmax(STEPS_MIN, fmin(STEPS_MAX, draws_max / draws / PLACEMENTS));
    struct simulate_step_args planned = *a;
    struct simulated_step one;
    *out = (struct simulate_sample){.placements = PLACEMENTS, .steps = steps};
    out->seconds = malloc((size_t)(PLACEMENTS * steps) * sizeof *out->seconds);
    if (out->seconds == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory to simulate %d steps", PLACEMENTS * steps);
    planned.spread = (struct simulate_spread){.slow_factor = 1}, planned.pipelines = planned.lockstep = 1;
    TRY(simulate_step(&planned, 0, 0, &one));
    out->planned = one.seconds;
    for (int i = 0; i < PLACEMENTS * steps; i++) {
        TRY(simulate_step(a, i / steps, i % steps, &one));
        out->seconds[i] = one.seconds;
    }
    return STATUS_OK;
}

void simulate_sample_free(struct simulate_sample *s)
{
    free(s->seconds);
    *s = (struct simulate_sample){0};
}

double simulate_sample_mean(const struct simulate_sample *s)
{
    double sum = 0;
    for (int i = 0; i < s->placements * s->steps; i++) sum += s->seconds[i];
    return sum / (s->placements * s->steps);
}
