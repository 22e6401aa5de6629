#include "base/clock.h"
#include <time.h>

static int64_t read_ns(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
int64_t clock_ns(void)
{
    return read_ns(CLOCK_MONOTONIC);
}
double clock_s(void)
{
    return (double)clock_ns() * 1e-9;
}
double clock_cpu_s(void)
{
    return (double)read_ns(CLOCK_THREAD_CPUTIME_ID) * 1e-9;
}
double clock_wall_s(void)
{
    return (double)read_ns(CLOCK_REALTIME) * 1e-9;
}
