/* Inside monitor: its alerts. */
#ifndef INGOT_OBSERVE_MONITOR_INT_H
#define INGOT_OBSERVE_MONITOR_INT_H
#include "observe/monitor.h"
#include "observe/report_int.h"
/* Robust z of value `at`: its distance to the median of the 128 before, in their MAD. NaN: fewer before it. */
double alerts_z(const struct series *s, int64_t at);
/* Fills m->alerts; what else is in m is known. `warmup`: steps of the learning rate's warm-up. */
void alerts_find(struct monitor *m, const struct report_data *d, int64_t warmup);
#endif
