#include "base/robust.h"
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
        MEMORY_CHECK(s->x != NULL && s->y != NULL, "no memory for %lld records", (long long)s->room);
    }
    s->x[s->count] = x;
    s->y[s->count++] = y;
}

double series_last(const struct series *s)
{
    return s->count ? s->y[s->count - 1] : NAN;
}

double series_median(const struct series *s)
{
    if (s->count == 0) return NAN;
    double *sorted = malloc((size_t)s->count * sizeof *sorted);
    MEMORY_CHECK(sorted != NULL, "no memory to sort %lld records", (long long)s->count);
    memcpy(sorted, s->y, (size_t)s->count * sizeof *sorted);
    const double middle = robust_median(sorted, s->count);
    free(sorted);
    return middle;
}

void series_free(struct series *s)
{
    free(s->x);
    free(s->y);
}
