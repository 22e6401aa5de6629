#include "dev/power.h"
#include "base/clock.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

/* From nvml.h, which only the toolkit has: signatures and constants of NVIDIA's NVML API reference. */
typedef struct nvmlDevice_st *nvml_device;
enum { NVML_SUCCESS = 0, NVML_CLOCK_SM = 1, NVML_REASON_POWER_CAP = 4 };
#define NVML_CALLS(X)                                                                                        \
    X(nvmlInit_v2, (void))                                                                                   \
    X(nvmlShutdown, (void))                                                                                  \
    X(nvmlDeviceGetHandleByPciBusId_v2, (const char *address, nvml_device *device))                          \
    X(nvmlDeviceGetTotalEnergyConsumption, (nvml_device device, unsigned long long *millijoules))            \
    X(nvmlDeviceGetEnforcedPowerLimit, (nvml_device device, unsigned *milliwatts))                           \
    X(nvmlDeviceGetClockInfo, (nvml_device device, int type, unsigned *mhz))                                 \
    X(nvmlDeviceGetCurrentClocksThrottleReasons, (nvml_device device, unsigned long long *reasons))

struct power_meter {
    void *library;
#define X(name, arguments) int(*name) arguments;
    NVML_CALLS(X)
#undef X
    nvml_device device;
    pthread_t thread;
    bool begun, running; /* library opened; thread started */
    atomic_bool stop;
    /* owned by the thread until it has ended */
    unsigned long long counter;  /* millijoules at the last read */
    int changes;                 /* of the counter, which the GPU updates about ten times per second */
    double first_s, last_s;      /* time of the first and of the last change */
    double first_mj, last_mj;    /* value at those times */
    double samples, mhz, capped; /* sums */
};

static status library_load(struct power_meter *m)
{
    m->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (m->library == NULL)
        return FAIL(STATUS_DEVICE,
                    "no power readings: libnvidia-ml.so.1, which comes with NVIDIA's driver, was not found");
#define X(name, arguments)                                                                                   \
    m->name = (__typeof__(m->name))dlsym(m->library, #name);                                                 \
    if (m->name == NULL) return FAIL(STATUS_DEVICE, "no power readings: libnvidia-ml.so.1 has no %s", #name);
    NVML_CALLS(X)
#undef X
    return STATUS_OK;
}

static status device_find(struct power_meter *m, const char *address)
{
    int code = m->nvmlInit_v2();
    m->begun = code == NVML_SUCCESS;
    if (!m->begun) return FAIL(STATUS_DEVICE, "no power readings: nvmlInit failed with %d", code);
    code = m->nvmlDeviceGetHandleByPciBusId_v2(address, &m->device);
    if (code != NVML_SUCCESS)
        return FAIL(STATUS_DEVICE, "no power readings: NVML does not know a GPU at %s (error %d)", address,
                    code);
    code = m->nvmlDeviceGetTotalEnergyConsumption(m->device, &m->counter);
    if (code != NVML_SUCCESS)
        return FAIL(STATUS_DEVICE, "no power readings: the GPU at %s has no energy counter (NVML error %d)",
                    address, code);
    return STATUS_OK;
}

status power_open_at(struct power_meter **out, const char *address)
{
    *out = NULL;
    struct power_meter *m = calloc(1, sizeof *m);
    if (m == NULL) return FAIL(STATUS_FIT, "no memory for a power meter");
    status st = library_load(m);
    if (st == STATUS_OK) st = device_find(m, address);
    if (st != STATUS_OK)
        power_close(m);
    else
        *out = m;
    return st;
}

status power_open(struct power_meter **m, const struct dev *d)
{
    char address[DEV_ADDRESS];
    *m = NULL;
    if (d->kind != DEV_CUDA) return FAIL(STATUS_DEVICE, "no power readings: %s is not a GPU", d->name);
    TRY(dev_address(d, address));
    return power_open_at(m, address);
}

void power_close(struct power_meter *m)
{
    struct power_draw unread;
    if (m == NULL) return;
    power_end(m, &unread);
    if (m->begun) m->nvmlShutdown();
    if (m->library) dlclose(m->library);
    free(m);
}

static void sample(struct power_meter *m)
{
    unsigned long long mj, reasons = 0;
    unsigned mhz = 0;
    if (m->nvmlDeviceGetTotalEnergyConsumption(m->device, &mj) == NVML_SUCCESS && mj != m->counter) {
        m->counter = mj;
        m->last_s = clock_s();
        m->last_mj = (double)mj;
        if (m->changes++ == 0) m->first_s = m->last_s, m->first_mj = m->last_mj;
    }
    if (m->nvmlDeviceGetClockInfo(m->device, NVML_CLOCK_SM, &mhz) != NVML_SUCCESS) return;
    if (m->nvmlDeviceGetCurrentClocksThrottleReasons(m->device, &reasons) != NVML_SUCCESS) reasons = 0;
    m->samples++;
    m->mhz += mhz;
    m->capped += (reasons & NVML_REASON_POWER_CAP) != 0;
}

static void *watch(void *meter)
{
    struct power_meter *m = meter;
    const struct timespec pause = {.tv_nsec = 4000000};
    while (!atomic_load(&m->stop)) {
        sample(m);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

void power_begin(struct power_meter *m)
{
    if (m == NULL || m->running) return;
    m->changes = 0;
    m->samples = m->mhz = m->capped = 0;
    if (m->nvmlDeviceGetTotalEnergyConsumption(m->device, &m->counter) != NVML_SUCCESS) return;
    atomic_store(&m->stop, false);
    m->running = pthread_create(&m->thread, NULL, watch, m) == 0;
}

void power_end(struct power_meter *m, struct power_draw *draw)
{
    *draw = (struct power_draw){0};
    if (m == NULL || !m->running) return;
    atomic_store(&m->stop, true);
    pthread_join(m->thread, NULL);
    m->running = false;
    unsigned limit;
    if (m->nvmlDeviceGetEnforcedPowerLimit(m->device, &limit) == NVML_SUCCESS)
        draw->limit_watts = 1e-3 * limit;
    if (m->changes > 1) draw->watts = 1e-3 * (m->last_mj - m->first_mj) / (m->last_s - m->first_s);
    if (m->samples > 0) draw->sm_mhz = m->mhz / m->samples, draw->capped = m->capped / m->samples;
}
