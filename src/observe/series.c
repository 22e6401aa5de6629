#include "observe/report_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void series_add(struct series *s, double x, double y)
{
    if (s->count == s->room) {
        s->room = s->room ? s->room * 2 : 64;
        s->x = realloc(s->x, (size_t)s->room * sizeof *s->x);
        s->y = realloc(s->y, (size_t)s->room * sizeof *s->y);
        CHECK(s->x != NULL && s->y != NULL, "out of memory for %lld records", (long long)s->room);
    }
    s->x[s->count] = x;
    s->y[s->count++] = y;
}

double series_last(const struct series *s)
{
    return s->count ? s->y[s->count - 1] : NAN;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
double *series_sorted(const struct series *s)
{
    double *sorted = malloc((size_t)s->count * sizeof *sorted + 1);
    CHECK(sorted != NULL, "out of memory");
    if (s->count) memcpy(sorted, s->y, (size_t)s->count * sizeof *sorted);
    qsort(sorted, (size_t)s->count, sizeof *sorted, ascending);
    return sorted;
}

double series_median(const struct series *s)
{
    double *sorted = series_sorted(s), middle = s->count ? sorted[s->count / 2] : NAN;
    free(sorted);
    return middle;
}

double *series_sums(const struct series *s)
{
    double *sums = calloc((size_t)(s->count + 1), 2 * sizeof *sums);
    CHECK(sums != NULL, "out of memory");
    for (int64_t i = 0; i < s->count; i++) {
        sums[2 * i + 2] = sums[2 * i] + s->y[i];
        sums[2 * i + 3] = sums[2 * i + 1] + s->y[i] * (double)i;
    }
    return sums;
}

void series_free(struct series *s)
{
    free(s->x);
    free(s->y);
}

double series_smooth(const struct series *s, const double *sums, int64_t i)
{
    int64_t half = s->count / 80 + 1;
    int64_t from = i > half ? i - half : 0, to = i + half < s->count ? i + half + 1 : s->count;
    double n = (double)(to - from), middle = (double)(from + to - 1) / 2;
    double sum = sums[2 * to] - sums[2 * from], moment = sums[2 * to + 1] - sums[2 * from + 1];
    double slope = n > 2 ? (moment - middle * sum) * 12 / (n * (n * n - 1)) : 0;
    return n > 2 ? sum / n + slope * ((double)i - middle) : s->y[i];
}
