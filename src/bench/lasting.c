#include "bench/lasting.h"
#include "base/clock.h"

#include <math.h>
#include <stdio.h>

status lasting_check(int64_t seconds)
{
    enum { MAX = 60 };
    if (seconds >= 0 && seconds <= MAX) return STATUS_OK;
    return FAIL(STATUS_CONFIG, "--seconds=%lld: 0 to %d", (long long)seconds, MAX);
}

enum { BATCH_MAX = 200 }; /* runs: two batches stay below the number of launches that a stream queues */
static const double batch_s = 0.03;

struct marks {
    struct event begin, end[2]; /* end: of even and of odd batches */
};

static status batch_queue(struct stream *s, const struct lasting_work *w, int64_t first, int64_t count,
                          struct event *end)
{
    for (int64_t i = first; i < first + count; i++) TRY(w->queue(w->context, i));
    return dev_event_record(s, end);
}

/* One batch runs while the next one is queued. */
static status keep_busy(struct stream *s, struct power_meter *meter, double seconds,
                        const struct lasting_work *w, struct marks *m, struct lasting *out)
{
    TRY(w->queue(w->context, 0));
    TRY(dev_sync(s));
    const double begin = clock_s();
    TRY(w->queue(w->context, 1));
    TRY(dev_sync(s));
    const double batch = fmin(BATCH_MAX, fmax(1, floor(batch_s / (clock_s() - begin))));
    const double warm_ms = 250 * seconds;
    double warm = 0, ms = 0; /* start of the measured part; elapsed so far */
    int64_t counted = 0;
    TRY(dev_event_record(s, &m->begin));
    TRY(batch_queue(s, w, 0, (int64_t)batch, &m->end[0]));
    for (int64_t done = 1; ms < warm + 1e3 * seconds || warm == 0; done++) {
        TRY(batch_queue(s, w, done * (int64_t)batch, (int64_t)batch, &m->end[done % 2]));
        TRY(dev_event_ms(s->dev, &m->begin, &m->end[(done - 1) % 2], &ms));
        if (warm > 0)
            counted++;
        else if (ms >= warm_ms)
            warm = ms, power_begin(meter);
    }
    power_end(meter, &out->draw);
    out->runs_per_s = 1e3 * (double)counted * batch / (ms - warm);
    return dev_sync(s);
}

status lasting_measure(struct stream *s, struct power_meter *meter, double seconds,
                       const struct lasting_work *work, struct lasting *out)
{
    struct marks m = {0};
    *out = (struct lasting){0};
    status st = dev_event_open(s->dev, &m.begin);
    for (int i = 0; i < 2 && st == STATUS_OK; i++) st = dev_event_open(s->dev, &m.end[i]);
    if (st == STATUS_OK) st = keep_busy(s, meter, seconds, work, &m, out);
    dev_event_close(s->dev, &m.begin);
    for (int i = 0; i < 2; i++) dev_event_close(s->dev, &m.end[i]);
    return st;
}

void lasting_print(const struct lasting *l, const struct lasting_unit *u, double work, bool json)
{
    if (l->runs_per_s == 0) return;
    const double rate = work * l->runs_per_s, pj = 1e12 * l->draw.watts / rate;
    if (json) {
        printf(",\"lasting_%s\":%.1f", u->json, rate / u->scale);
        if (l->draw.watts > 0) printf(",\"watts\":%.1f,\"pj_per_%s\":%.3f", l->draw.watts, u->unit, pj);
        if (l->draw.sm_mhz > 0)
            printf(",\"sm_mhz\":%.0f,\"power_capped\":%.2f", l->draw.sm_mhz, l->draw.capped);
        return;
    }
    printf("  lasting %.1f %s", rate / u->scale, u->rate);
    if (l->draw.watts > 0) printf(", %.0f W, %.2f pJ/%s", l->draw.watts, pj, u->unit);
    if (l->draw.sm_mhz > 0) printf(", %.0f MHz", l->draw.sm_mhz);
}
