#include "base/robust.h"
#include "base/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double robust_median(double *v, int64_t count)
{
    qsort(v, (size_t)count, sizeof *v, ascending);
    return count ? v[count / 2] : (double)NAN;
}

double robust_z(const double *before, int count, double value, double *middle_of)
{
    double v[ROBUST_MAX], d[ROBUST_MAX];
    CHECK(count <= ROBUST_MAX, "%d values", count);
    if (count == 0) return NAN;
    memcpy(v, before, (size_t)count * sizeof *v);
    const double middle = robust_median(v, count);
    if (middle_of) *middle_of = middle;
    for (int i = 0; i < count; i++) d[i] = fabs(v[i] - middle);
    const double sigma = fmax(1.4826 * robust_median(d, count), 1e-3 * fabs(middle));
    return sigma > 0 ? (value - middle) / sigma : 0;
}
