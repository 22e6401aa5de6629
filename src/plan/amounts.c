#include "plan/amounts.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>

const char *amount_number(char buf[32], double n)
{
    if (n >= 100 || n == 0) return text_count(buf, n);
    if (n < 1e-4)
        snprintf(buf, 32, "<0.0001");
    else
        snprintf(buf, 32, n >= 10 ? "%.1f" : n >= 0.1 ? "%.2f" : "%.2g", n);
    return buf;
}

const char *amount_rate(char buf[32], double bytes_per_s)
{
    static const char *const units[] = {"B/s", "kB/s", "MB/s", "GB/s", "TB/s"};
    int unit = 0;
    for (; bytes_per_s >= 999.5 && unit < 4; unit++) bytes_per_s /= 1000;
    snprintf(buf, 32, bytes_per_s < 999.5 ? "%.3g %s" : "%.0f %s", bytes_per_s, units[unit]);
    return buf;
}

const char *amount_failures(char buf[64], double failures)
{
    char text[32];
    if (failures < 0.1 && failures > 0)
        snprintf(buf, 64, "one in %s such runs", text_count(text, 1 / failures));
    else
        snprintf(buf, 64, failures >= 1000 ? "%.0f expected" : "%.1f expected", failures);
    return buf;
}

const char *amount_checkpoints(char buf[AMOUNT_CHECKPOINTS], const struct outlook *o)
{
    char a[32], b[32], c[32];
    const double interval = o->goodput.interval, steps = round(interval / o->step);
    if (o->checkpoints < 1) {
        snprintf(buf, AMOUNT_CHECKPOINTS, "one at the end is enough: %s", text_bytes(a, o->checkpoint_bytes));
        return buf;
    }
    const int used = snprintf(buf, AMOUNT_CHECKPOINTS, "every %s of work (%.0f step%s): %.0f of %s; ",
                              text_time(a, interval), steps, steps > 1 ? "s" : "", o->checkpoints,
                              text_bytes(b, o->checkpoint_bytes));
    if (o->job.stall > 0)
        snprintf(buf + used, (size_t)(AMOUNT_CHECKPOINTS - used), "training stands still for %s each",
                 text_time(c, o->job.stall));
    else
        snprintf(buf + used, (size_t)(AMOUNT_CHECKPOINTS - used), "training goes on meanwhile");
    return buf;
}
