#include "observe/observe_int.h"

#include <math.h>

/* Largest remainder: rounds all down to tenths, then gives the remaining tenths to those that lost most. */
void percent_list(double *percent, const double *share, int count)
{
    double total = 0, lost[PERCENTS_MAX];
    int left = 1000;
    CHECK(count <= PERCENTS_MAX, "%d shares, at most %d", count, PERCENTS_MAX);
    for (int i = 0; i < count; i++) total += share[i];
    for (int i = 0; i < count; i++) {
        double tenths = total > 0 ? share[i] / total * 1000 : 0;
        percent[i] = floor(tenths);
        lost[i] = tenths - percent[i];
        left -= (int)percent[i];
    }
    for (; total > 0 && left > 0; left--) {
        int most = 0;
        for (int i = 1; i < count; i++)
            if (lost[i] > lost[most]) most = i;
        percent[most] += 1;
        lost[most] = -1;
    }
    for (int i = 0; i < count; i++) percent[i] /= 10;
}
