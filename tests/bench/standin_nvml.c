/* A stand-in for NVIDIA's management library: one GPU at 0000:18:00.0, which draws 640 W, runs at 1400 MHz and is held down by its
 * power limit in every second sample. The one at bus 19 has no counter. */
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, CLOCK_SM = 1, POWER_CAP = 4 };
typedef struct gpu gpu;
struct gpu {
    int bus;
};

int nvmlInit_v2(void);
int nvmlInit_v2(void)
{
    return SUCCESS;
}
int nvmlShutdown(void);
int nvmlShutdown(void)
{
    return SUCCESS;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *address, gpu **out);
int nvmlDeviceGetHandleByPciBusId_v2(const char *address, gpu **out)
{
    static gpu gpus[] = {{18}, {19}};
    *out = strcmp(address, "0000:18:00.0") == 0   ? &gpus[0]
           : strcmp(address, "0000:19:00.0") == 0 ? &gpus[1]
                                                  : NULL;
    return *out ? SUCCESS : NOT_FOUND;
}
int nvmlDeviceGetTotalEnergyConsumption(gpu *c, unsigned long long *mj);
int nvmlDeviceGetTotalEnergyConsumption(gpu *c, unsigned long long *mj)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    *mj = (unsigned long long)t.tv_sec * 640000 + (unsigned long long)t.tv_nsec / 1000000 * 640;
    return c->bus == 18 ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetEnforcedPowerLimit(gpu *c, unsigned *mw);
int nvmlDeviceGetEnforcedPowerLimit(gpu *c, unsigned *mw)
{
    *mw = 700000;
    return c->bus == 18 ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetClockInfo(gpu *c, int type, unsigned *mhz);
int nvmlDeviceGetClockInfo(gpu *c, int type, unsigned *mhz)
{
    *mhz = 1400;
    return c->bus == 18 && type == CLOCK_SM ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(gpu *c, unsigned long long *reasons);
int nvmlDeviceGetCurrentClocksThrottleReasons(gpu *c, unsigned long long *reasons)
{
    static unsigned calls;
    *reasons = calls++ % 2 ? POWER_CAP | 1 : 1;
    return c->bus == 18 ? SUCCESS : NOT_SUPPORTED;
}
