/* Spikes of a curve: robust z above 6 in three of five steps, until one is below 3. */
#include "observe/monitor_int.h"
#include "base/robust.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LOOKED = 5, NEEDED = 3, LIMIT = 6, OVER = 3 };

double alerts_z_of(const double before[ALERTS_Z_WINDOW], double value, double *middle)
{
    return robust_z(before, ALERTS_Z_WINDOW, value, middle);
}

static int bits(unsigned v)
{
    int count = 0;
    for (; v; v &= v - 1) count++;
    return count;
}

enum alert_spike_says alert_spike_feed(struct alert_spike *k, int64_t step, double value, int64_t begin)
{
    enum alert_spike_says says = SPIKE_NOTHING;
    const double scaled = k->in_log ? log(value) : value; /* norms are skewed */
    if (!isfinite(scaled)) return says;
    if (k->count >= ALERTS_Z_WINDOW && step > begin) {
        const double z = alerts_z_of(k->before, scaled, &k->middle);
        if (k->in_log) k->middle = exp(k->middle);
        k->high = (k->high << 1 | (z > LIMIT)) & ((1u << LOOKED) - 1);
        if (z > LIMIT && k->from < 0 && bits(k->high) == 1) k->first = step, k->top = z, k->value = value;
        if (k->high && z > k->top) k->top = z, k->value = value;
        if (k->from < 0 && bits(k->high) >= NEEDED) {
            k->from = k->first;
            says = SPIKE_BEGINS;
        } else if (k->from >= 0 && z < OVER) {
            k->steps = step - k->from;
            k->from = -1;
            k->high = 0;
            says = SPIKE_ENDS;
        }
    }
    k->before[k->count++ % ALERTS_Z_WINDOW] = scaled;
    return says;
}
