/* goodput: the share of wall time in which a job trains, with failures and checkpoints; the best checkpoint interval.
 *
 * Failures are a Poisson process of rate L = devices / mtbf. A job works for `interval` seconds, stalls for a
 * checkpoint, and goes on; the checkpoint counts once it is written, `write` seconds later. A failure costs the time to
 * detect it, the restart (a failure in the restart starts detection again; one during detection costs nothing more),
 * and the work since the last written checkpoint. Then an interval takes, in the mean,
 *     e^(L write) (e^(L (interval + stall)) - 1) (1/L + down),  down = detect e^(L restart) + (e^(L restart) - 1) / L
 * seconds of wall time. This is exact for write <= interval + stall; Daly's formula (FGCS 22, 2006) is its case write
 * 0, detect 0. The best interval solves L interval = 1 - e^(-L (interval + stall)): Young's sqrt(2 stall / L) for few
 * failures. Everything is in seconds. */
#ifndef INGOT_PLAN_GOODPUT_H
#define INGOT_PLAN_GOODPUT_H

/* Llama 3 405B: 419 unplanned interruptions of 16,384 H100s in 54 days (arXiv:2407.21783, table 5), so one in 50,677
 * device hours. */
#define GOODPUT_MTBF_HOURS 50677.0

struct goodput_job {
    double devices;             /* > 0 */
    double mtbf;                /* device-seconds between two failures that stop the job; INFINITY: nothing fails */
    double detect;              /* from a failure until it is noticed */
    double restart;             /* from then until training goes on from the checkpoint */
    double stall;               /* that training stands still for a checkpoint */
    double write;               /* from the end of the stall until the checkpoint is written, beside training */
    double least;               /* shortest interval, such as one step */
};
struct goodput {
    double interval;            /* work between two checkpoints; INFINITY: none is needed */
    double trains, stalls, detects, restarts, repeats; /* shares of wall time, which sum to 1; repeats: lost work */
    double failures;            /* per second of wall time, those that are detected */
};

/* The interval with the highest goodput, not below `least` and not below what `write` allows (one checkpoint is written
 * at a time). INFINITY: nothing fails. */
double goodput_interval(const struct goodput_job *j);
/* `interval` 0: the best one. An interval shorter than `write` allows is lengthened. A job that fails faster than it
 * restarts has trains 0. */
struct goodput goodput_of(const struct goodput_job *j, double interval);
#endif
