/* Spikes of a curve: of five steps one, two or three stand high by robust z. The fewer, the higher the limit; until one
 * is near again. The norm of one step must also be ten times the usual one: with small batches a document alone makes
 * it six times (10,000 steps of 512 tokens of code and prose: six of them above z 15, none ten times). */
#include "observe/monitor_int.h"
#include "base/robust.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { OVER = 3 };
/* The largest z of the last steps, the second largest, the third. */
static const double limits[] = {15, 8, 6};
enum { LIMITS = sizeof limits / sizeof limits[0], LOWEST = LIMITS - 1, NORM_OF_ONE = 10 };

double alerts_z_of(const double before[ALERTS_Z_WINDOW], double value, double *middle)
{
    return robust_z(before, ALERTS_Z_WINDOW, value, middle);
}

static int descending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

static bool stands_high(const struct alert_spike *k)
{
    double z[ALERTS_Z_RECENT];
    for (int i = 0; i < ALERTS_Z_RECENT; i++) z[i] = k->recent[i].z;
    qsort(z, ALERTS_Z_RECENT, sizeof *z, descending);
    for (int i = 1; i < LIMITS; i++)
        if (z[i] > limits[i]) return true;
    return k->recent[0].z > limits[0] && (!k->in_log || k->recent[0].value > NORM_OF_ONE * k->middle);
}

/* From the first high one of the last steps on. */
static void spike_from_recent(struct alert_spike *k)
{
    k->from = -1;
    for (int i = ALERTS_Z_RECENT - 1; i >= 0; i--) { /* the oldest first */
        const struct alert_z *r = &k->recent[i];
        if (!(r->z > limits[LOWEST])) continue;
        if (k->from < 0 || r->z > k->top) k->top = r->z, k->value = r->value;
        if (k->from < 0) k->from = r->step;
    }
}

static enum alert_spike_says judge(struct alert_spike *k, int64_t step, double value, double z)
{
    memmove(k->recent + 1, k->recent, (ALERTS_Z_RECENT - 1) * sizeof k->recent[0]);
    k->recent[0] = (struct alert_z){step, z, value};
    if (k->from < 0) {
        if (!stands_high(k)) return SPIKE_NOTHING;
        spike_from_recent(k);
        return SPIKE_BEGINS;
    }
    if (z > k->top) k->top = z, k->value = value;
    if (!(z < OVER)) return SPIKE_NOTHING;
    k->steps = step - k->from;
    k->from = -1;
    memset(k->recent, 0, sizeof k->recent);
    return SPIKE_ENDS;
}

enum alert_spike_says alert_spike_feed(struct alert_spike *k, int64_t step, double value, int64_t begin)
{
    enum alert_spike_says says = SPIKE_NOTHING;
    const double scaled = k->in_log ? log(value) : value; /* norms are skewed */
    if (!isfinite(scaled)) return says;
    if (k->held == ALERTS_Z_WINDOW && step > begin) {
        const double z = alerts_z_of(k->before, scaled, &k->middle);
        if (k->in_log) k->middle = exp(k->middle);
        says = judge(k, step, value, z);
    }
    k->at[k->next] = step;
    k->before[k->next] = scaled;
    k->next = (k->next + 1) % ALERTS_Z_WINDOW;
    if (k->held < ALERTS_Z_WINDOW) k->held++;
    return says;
}

bool alert_spike_back(struct alert_spike *k, int64_t step)
{
    const bool lasted = k->from >= 0;
    for (; k->held > 0; k->held--) {
        const int newest = (k->next + ALERTS_Z_WINDOW - 1) % ALERTS_Z_WINDOW;
        if (k->at[newest] <= step) break;
        k->next = newest;
    }
    k->from = -1;
    memset(k->recent, 0, sizeof k->recent);
    return lasted;
}
