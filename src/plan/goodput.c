#include "plan/goodput.h"

#include <math.h>

static double longest(const struct goodput_job *j, double interval)
{
    return fmax(interval, fmax(j->least, j->write - j->stall));
}

/* Bisects x = 1 - e^(-x - s) for x in (0, 1), with x = rate * interval and s = rate * stall. */
double goodput_interval(const struct goodput_job *j)
{
    enum { HALVINGS = 100 };
    const double rate = j->devices / j->mtbf, s = rate * j->stall;
    if (rate == 0) return INFINITY;
    double low = 0, high = 1;
    for (int i = 0; i < HALVINGS; i++) {
        const double x = (low + high) / 2;
        *(x < -expm1(-x - s) ? &low : &high) = x;
    }
    return longest(j, high / rate);
}

struct goodput goodput_of(const struct goodput_job *j, double interval)
{
    const double rate = j->devices / j->mtbf;
    struct goodput g = {.interval = interval > 0 ? longest(j, interval) : goodput_interval(j)};
    if (isinf(g.interval)) {
        g.trains = 1;
        return g;
    }
    const double period = g.interval + j->stall;
    if (rate == 0) {
        g.trains = g.interval / period, g.stalls = j->stall / period;
        return g;
    }
    const double again = expm1(rate * j->restart);
    const double down = j->detect * (again + 1) + again / rate;
    const double wall = exp(rate * j->write) * expm1(rate * period) / rate * (1 + rate * down);
    g.failures = rate / (1 + rate * j->detect);
    g.detects = g.failures * j->detect;
    g.restarts = g.failures * -expm1(-rate * j->restart) / rate;
    if (isfinite(wall)) g.trains = g.interval / wall, g.stalls = j->stall / wall;
    g.repeats = 1 - g.trains - g.stalls - g.detects - g.restarts;
    return g;
}
