/* Time. Deadlines, durations and traces use the monotonic clock; the wall clock is for display and file names only. */
#ifndef INGOT_BASE_CLOCK_H
#define INGOT_BASE_CLOCK_H
#include <stdint.h>
int64_t clock_ns(void);        /* CLOCK_MONOTONIC, nanoseconds */
double clock_s(void);          /* the same in seconds */
double clock_cpu_s(void);      /* CPU time of this thread alone */
double clock_wall_s(void);     /* seconds since 1970, UTC */
#endif
