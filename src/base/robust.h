/* robust: how unusual a value is beside others, unmoved by outliers among them. */
#ifndef INGOT_BASE_ROBUST_H
#define INGOT_BASE_ROBUST_H
#include <stdint.h>

enum { ROBUST_MAX = 1024 };
/* The upper median of v[count], which it sorts ascending. NaN: count 0. */
double robust_median(double *v, int64_t count);
/* Distance of `value` to the median of `before` (at most ROBUST_MAX), in standard deviations as the median absolute
 * deviation gives them (MAD times 1.4826), at least a thousandth of the median: a flat curve has no spikes in its
 * rounding. NaN: count 0. *middle (or NULL) gets the median. */
double robust_z(const double *before, int count, double value, double *middle);
#endif
