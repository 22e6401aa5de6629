/* Power draw and clock of a GPU under load, from the driver's counters (NVML, loaded by name because it is part of
 * the driver). Near the power limit, rates depend on that limit; benchmarks print both. */
#ifndef INGOT_DEV_POWER_H
#define INGOT_DEV_POWER_H
#include "dev/dev.h"

struct power_draw {
    /* mean, from the GPU's energy counter; 0: not known (the counter changed less than twice: under 0.3 s) */
    double watts;
    double limit_watts; /* power limit set by the driver; 0: not known */
    double sm_mhz;      /* mean multiprocessor clock; 0: not known */
    double capped;      /* fraction of the samples, 0 to 1, in which the power limit reduced the clock */
};

struct power_meter;
/* STATUS_DEVICE in one line: the host device, no NVML, a GPU without an energy counter. */
status power_open(struct power_meter **m, const struct dev *d) WARN_UNUSED;
/* The same for the GPU at a PCI address ("0000:18:00.0"). */
status power_open_at(struct power_meter **m, const char *address) WARN_UNUSED;
/* The calls below accept NULL; the results are then "not known". */
void power_close(struct power_meter *m);
/* Between begin and end a thread reads the counters every few milliseconds; nothing is queued on the GPU. */
void power_begin(struct power_meter *m);
void power_end(struct power_meter *m, struct power_draw *draw);
#endif
