#include "dev/power.h"
#include "base/clock.h"
#include "dev/nvml.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

struct power_meter {
    struct nvml *nvml;
    nvml_device device;
    pthread_t thread;
    bool running; /* thread started */
    atomic_bool stop;
    /* owned by the thread until it has ended */
    unsigned long long counter;  /* millijoules at the last read */
    int changes;                 /* of the counter, which the GPU updates about ten times per second */
    double first_s, last_s;      /* time of the first and of the last change */
    double first_mj, last_mj;    /* value at those times */
    double samples, mhz, capped; /* sums */
};

static status device_find(struct power_meter *m, const char *address)
{
    const struct nvml *n = m->nvml;
    if (!n->nvmlDeviceGetHandleByPciBusId_v2 || !n->nvmlDeviceGetTotalEnergyConsumption ||
        !n->nvmlDeviceGetClockInfo || !n->nvmlDeviceGetCurrentClocksThrottleReasons ||
        !n->nvmlDeviceGetEnforcedPowerLimit)
        return FAIL(STATUS_DEVICE, "no power readings: libnvidia-ml.so.1 is too old for them");
    int code = n->nvmlDeviceGetHandleByPciBusId_v2(address, &m->device);
    if (code != NVML_SUCCESS)
        return FAIL(STATUS_DEVICE, "no power readings: NVML does not know a GPU at %s (error %d)", address,
                    code);
    code = n->nvmlDeviceGetTotalEnergyConsumption(m->device, &m->counter);
    if (code != NVML_SUCCESS)
        return FAIL(STATUS_DEVICE, "no power readings: the GPU at %s has no energy counter (NVML error %d)",
                    address, code);
    return STATUS_OK;
}

status power_open_at(struct power_meter **out, const char *address)
{
    *out = NULL;
    struct power_meter *m = calloc(1, sizeof *m);
    if (m == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for a power meter");
    status st = nvml_open(&m->nvml, NULL);
    if (st != STATUS_OK) st = status_wrap(st, "no power readings");
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
    nvml_close(m->nvml);
    free(m);
}

static void sample(struct power_meter *m)
{
    unsigned long long mj, reasons = 0;
    unsigned mhz = 0;
    if (m->nvml->nvmlDeviceGetTotalEnergyConsumption(m->device, &mj) == NVML_SUCCESS && mj != m->counter) {
        m->counter = mj;
        m->last_s = clock_s();
        m->last_mj = (double)mj;
        if (m->changes++ == 0) m->first_s = m->last_s, m->first_mj = m->last_mj;
    }
    if (m->nvml->nvmlDeviceGetClockInfo(m->device, NVML_CLOCK_SM, &mhz) != NVML_SUCCESS) return;
    if (m->nvml->nvmlDeviceGetCurrentClocksThrottleReasons(m->device, &reasons) != NVML_SUCCESS) reasons = 0;
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
    if (m->nvml->nvmlDeviceGetTotalEnergyConsumption(m->device, &m->counter) != NVML_SUCCESS) return;
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
    if (m->nvml->nvmlDeviceGetEnforcedPowerLimit(m->device, &limit) == NVML_SUCCESS)
        draw->limit_watts = 1e-3 * limit;
    if (m->changes > 1) draw->watts = 1e-3 * (m->last_mj - m->first_mj) / (m->last_s - m->first_s);
    if (m->samples > 0) draw->sm_mhz = m->mhz / m->samples, draw->capped = m->capped / m->samples;
}
