/* Inside monitor: what its alerts are found by, which training shares (alert_rules.c). */
#ifndef INGOT_OBSERVE_MONITOR_INT_H
#define INGOT_OBSERVE_MONITOR_INT_H
#include "observe/monitor.h"
#include "observe/report_int.h"
enum { ALERTS_Z_WINDOW = 128, ALERTS_Z_BEGIN = 200 };
/* Robust z of a value: its distance to the median of those before it, in their MAD. */
double alerts_z_of(const double before[ALERTS_Z_WINDOW], double value, double *middle);
/* alert_spike.c: a curve's spikes. Begin with .from -1. */
enum { ALERTS_Z_RECENT = 5 };
struct alert_z {
    int64_t step;
    double z, value;
};
struct alert_spike {
    bool in_log;                    /* of the logarithm, as of a gradient norm */
    double before[ALERTS_Z_WINDOW]; /* a ring of the newest `held` values; the order does not matter for z */
    int64_t at[ALERTS_Z_WINDOW];    /* their steps */
    int next, held;
    struct alert_z recent[ALERTS_Z_RECENT]; /* those judged last, the newest first */
    int64_t from;                   /* first step of the spike that lasts; -1: none */
    double top, value, middle;      /* the highest z and its value; the median before it */
    int64_t steps;                  /* of the one that has ended */
};
enum alert_spike_says { SPIKE_NOTHING, SPIKE_BEGINS, SPIKE_ENDS };
/* The next value; none counts up to step `begin`. */
enum alert_spike_says alert_spike_feed(struct alert_spike *k, int64_t step, double value, int64_t begin);
/* The run has gone back to the state after step `step`: later values are forgotten. True: a spike lasted. */
bool alert_spike_back(struct alert_spike *k, int64_t step);
/* Robust z of value `at` of a series. NaN: fewer than ALERTS_Z_WINDOW are before it. */
double alerts_z(const struct series *s, int64_t at);
/* Fills m->alerts; what else is in m is known. `warmup`: steps of the learning rate's warm-up. */
void alerts_find(struct monitor *m, const struct report_data *d, int64_t warmup);
/* Of a run whose training writes its alerts: what it cannot say itself, that it stands still or is gone. */
void alerts_find_state(struct monitor *m);
/* What is wrong with a host now: its GPUs, Xids, the disk. */
void alerts_of_host(struct alert_list *l, const struct host_lines *h, double checkpoint_bytes);
/* The median clock of a host's GPUs over the last minute; NaN: not known. */
double alerts_host_mhz(const struct host_lines *h);
#endif
