/* What a GPU draws while it works, and at which clock: the driver's counters (NVML, loaded by name, as it comes with the driver). Rates near a
 * GPU's power limit are rates of that limit: whoever measures them shows both. */
#ifndef INGOT_DEV_POWER_H
#define INGOT_DEV_POWER_H
#include "dev/dev.h"

struct power_draw {
    double watts;       /* mean, from the GPU's energy counter; 0: not known (the counter moved less than twice: under 0.3 s) */
    double limit_watts; /* what the driver holds the GPU to; 0: not known */
    double sm_mhz;      /* mean of the multiprocessors' clock; 0: not known */
    double capped;      /* share of the samples, 0 to 1, in which the power limit held the clock down */
};

struct power_meter;
/* STATUS_DEVICE in one line: the host, no NVML, a GPU without an energy counter. */
status power_open(struct power_meter **m, const struct dev *d) WARN_UNUSED;
/* As power_open, of the GPU at a PCI address ("0000:18:00.0"). */
status power_open_at(struct power_meter **m, const char *address) WARN_UNUSED;
/* NULL is allowed in the calls below: then nothing is known. */
void power_close(struct power_meter *m);
/* Between these two a thread reads the counters every few milliseconds; nothing is queued on the GPU. */
void power_begin(struct power_meter *m);
void power_end(struct power_meter *m, struct power_draw *draw);
#endif
