#include "base/parallel.h"
#include "base/rng.h"
#include "plan/simulate.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

/* One run. `now` runs on wall time; a step or a stall that reaches `fails` is interrupted. */
struct run {
    const struct simulate_run_args *a;
    uint64_t stream, at;
    double now, fails, written; /* written: when the newest checkpoint is safe */
    int64_t step, saved,
        safe;              /* steps done; of the newest checkpoint; of the newest that is surely written */
    double since, pending; /* seconds of work after `saved`, and from `safe` to `saved` */
    int placement;
    struct simulated_run sum; /* in seconds until the end */
};

static struct rng_block bits(struct run *r)
{
    return rng_at(r->a->seed, RNG_PLAN, r->stream, r->at++);
}

static void next_failure(struct run *r)
{
    const struct goodput_job *j = &r->a->job;
    r->fails =
        isinf(j->mtbf) ? INFINITY : r->now - j->mtbf / j->devices * log(((double)bits(r).u[0] + 1) * 0x1p-32);
}

static double step_seconds(struct run *r)
{
    const struct simulate_sample *s = r->a->sample;
    const uint64_t k = (uint64_t)bits(r).u[0] * (uint64_t)s->steps >> 32;
    return s->seconds[(size_t)r->placement * (size_t)s->steps + k];
}

/* Detection and restarts, until one is not interrupted; then training goes on from the newest written checkpoint. */
static void fail(struct run *r)
{
    const struct goodput_job *j = &r->a->job;
    r->now = r->fails;
    r->sum.trains -= r->since;
    if (r->now < r->written) {
        r->sum.trains -= r->pending, r->sum.stalls -= j->stall;
        r->saved = r->safe;
    }
    r->step = r->safe = r->saved;
    r->since = r->pending = 0, r->written = r->now;
    for (bool up = false; !up;) {
        r->sum.failures++;
        r->sum.detects += j->detect, r->now += j->detect;
        next_failure(r);
        up = r->fails >= r->now + j->restart;
        const double ready = up ? r->now + j->restart : r->fails;
        r->sum.restarts += ready - r->now;
        r->now = ready;
    }
    r->placement = (int)((uint64_t)bits(r).u[0] * (uint64_t)r->a->sample->placements >> 32);
}

/* Passes `seconds`; false: a failure has come before. */
static bool passes(struct run *r, double seconds)
{
    if (r->now + seconds >= r->fails) {
        fail(r);
        return false;
    }
    r->now += seconds;
    return true;
}

static void save(struct run *r)
{
    const struct goodput_job *j = &r->a->job;
    const double waits = fmax(0, r->written - r->now); /* one checkpoint is written at a time */
    if (!passes(r, waits + j->stall)) return;
    r->sum.stalls += waits + j->stall, r->sum.checkpoints++;
    r->safe = r->saved, r->saved = r->step;
    r->pending = r->since, r->since = 0;
    r->written = r->now + j->write;
}

static struct simulated_run simulate_one(const struct simulate_run_args *a, int index)
{
    struct run r = {.a = a, .stream = (uint64_t)3 << 62 | (uint64_t)index};
    r.placement = index % a->sample->placements;
    next_failure(&r);
    while (r.step < a->steps) {
        const double seconds = step_seconds(&r);
        if (!passes(&r, seconds)) continue;
        r.step++, r.since += seconds, r.sum.trains += seconds;
        if (a->interval > 0 && r.step % a->interval == 0) save(&r);
    }
    struct simulated_run *s = &r.sum;
    s->wall = r.now;
    s->trains /= r.now, s->stalls /= r.now, s->detects /= r.now, s->restarts /= r.now;
    s->repeats = 1 - s->trains - s->stalls - s->detects - s->restarts;
    return *s;
}

status simulate_runs(const struct simulate_run_args *a, struct simulated_run *out)
{
    const double mean = simulate_sample_mean(a->sample);
    const double interval = a->interval > 0 ? (double)a->interval * mean : INFINITY;
    const struct goodput g = goodput_of(&a->job, fmin(interval, (double)a->steps * mean));
    if (g.trains < 0.01)
        return FAIL(
            STATUS_CONFIG,
            "a failure every %.3g s leaves %.2g %% of the time to train: take shorter restarts, shorter "
            "checkpoint intervals, or fewer devices",
            a->job.mtbf / a->job.devices, 100 * g.trains);
    PARALLEL_CHUNKS(i, a->runs) out[i] = simulate_one(a, (int)i);
    return STATUS_OK;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double simulate_quantile(double *numbers, int count, double share)
{
    qsort(numbers, (size_t)count, sizeof *numbers, ascending);
    const double at = share * (count - 1);
    const int low = (int)at;
    const int high = low + 1 < count ? low + 1 : low;
    return numbers[low] + (at - low) * (numbers[high] - numbers[low]);
}
