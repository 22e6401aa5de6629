#include "dev/nvml_standin.h"
#include "base/clock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* NVML's calls carry no context: the state is the process's, as the library's is. */
enum { CARDS_MAX = 32 };
struct nvmlDevice_st {
    struct nvml_card card;
    bool lost;
    int xid; /* an event that nobody has taken; 0: none */
    int gpm; /* what a GPM sample fails with */
    bool grows;
};
static struct {
    int init, cuda, count;
    bool no_gpm;
    char driver[96];
    double begin_s;
    struct nvmlDevice_st devices[CARDS_MAX];
} standin;

static int put_text(const char *from, char *to, unsigned bytes)
{
    snprintf(to, bytes, "%s", from);
    return from[0] ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
}
static int init(void)
{
    return standin.init;
}
static int shut_down(void)
{
    return NVML_SUCCESS;
}
static int driver(char *text, unsigned bytes)
{
    return put_text(standin.driver, text, bytes);
}
static int cuda(int *version)
{
    *version = standin.cuda;
    return NVML_SUCCESS;
}
static int count(unsigned *to)
{
    *to = (unsigned)standin.count;
    return NVML_SUCCESS;
}
static int by_index(unsigned index, nvml_device *d)
{
    if (index >= (unsigned)standin.count) return NVML_NOT_FOUND;
    *d = &standin.devices[index];
    return (*d)->lost ? NVML_GPU_LOST : NVML_SUCCESS;
}
static int by_address(const char *address, nvml_device *d)
{
    for (unsigned i = 0; i < (unsigned)standin.count; i++)
        if (strcmp(standin.devices[i].card.pci, address) == 0) return by_index(i, d);
    return NVML_NOT_FOUND;
}
static int name(nvml_device d, char *text, unsigned bytes)
{
    return put_text(d->card.name, text, bytes);
}
static int uuid(nvml_device d, char *text, unsigned bytes)
{
    return put_text(d->card.uuid, text, bytes);
}
static int vbios(nvml_device d, char *text, unsigned bytes)
{
    return put_text(d->card.vbios, text, bytes);
}
static int pci(nvml_device d, struct nvml_pci *to)
{
    *to = (struct nvml_pci){0};
    return put_text(d->card.pci, to->address, sizeof to->address);
}

/* PUT(to, value): *to = value; a value that is not known is not supported. */
#define PUT(to, value)                                                                                       \
    do {                                                                                                     \
        if (!isfinite(value)) return NVML_NOT_SUPPORTED;                                                     \
        *(to) = (__typeof__(*(to)))(value);                                                                  \
    } while (0)
#define GETTERS(X)                                                                                           \
    X(nvmlDeviceGetPowerUsage, unsigned, watts, 1e3)                                                         \
    X(nvmlDeviceGetEnforcedPowerLimit, unsigned, limit_watts, 1e3)                                           \
    X(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, default_watts, 1e3)                                \
    X(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, reasons, 1)                             \
    X(nvmlDeviceGetPersistenceMode, int, persistence, 1)                                                     \
    X(nvmlDeviceGetCurrPcieLinkWidth, unsigned, pcie_width, 1)                                               \
    X(nvmlDeviceGetMaxPcieLinkWidth, unsigned, pcie_width_max, 1)                                            \
    X(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, pcie_gen, 1)                                            \
    X(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, pcie_gen_max, 1)                                         \
    X(nvmlDeviceGetPcieReplayCounter, unsigned, pcie_replays, 1)
#define X(call, type, value, scale)                                                                          \
    static int get_##value(nvml_device d, type *to)                                                          \
    {                                                                                                        \
        PUT(to, (scale)*d->card.value);                                                                      \
        return NVML_SUCCESS;                                                                                 \
    }
GETTERS(X)
#undef X

/* Seconds in which its counters have grown. */
static double grown(const struct nvmlDevice_st *d)
{
    return d->grows ? clock_s() - standin.begin_s : 0;
}
static int energy(nvml_device d, unsigned long long *millijoules)
{
    PUT(millijoules, 1e3 * (d->card.joules + grown(d) * d->card.watts));
    return NVML_SUCCESS;
}
static int clock_now(nvml_device d, int type, unsigned *mhz)
{
    PUT(mhz, type == NVML_CLOCK_SM ? d->card.sm_mhz : d->card.memory_mhz);
    return NVML_SUCCESS;
}
static int clock_max(nvml_device d, int type, unsigned *mhz)
{
    PUT(mhz, type == NVML_CLOCK_SM ? d->card.sm_max_mhz : (double)NAN);
    return NVML_SUCCESS;
}
static int temperature(nvml_device d, int sensor, unsigned *celsius)
{
    PUT(celsius, sensor == 0 ? d->card.celsius : (double)NAN);
    return NVML_SUCCESS;
}
static int threshold(nvml_device d, int type, unsigned *celsius)
{
    PUT(celsius, type == 1 ? d->card.slowdown_celsius : (double)NAN);
    return NVML_SUCCESS;
}
static int busy(nvml_device d, struct nvml_utilization *percent)
{
    PUT(&percent->gpu, d->card.gpu_busy);
    percent->memory = 0;
    return NVML_SUCCESS;
}
static int memory(nvml_device d, struct nvml_memory *m)
{
    PUT(&m->total, d->card.memory_total);
    PUT(&m->used, d->card.memory_used);
    m->free = m->total - m->used;
    return NVML_SUCCESS;
}
static int processes(nvml_device d, unsigned *to, struct nvml_process *list)
{
    (void)list;
    PUT(to, d->card.processes);
    return NVML_SUCCESS;
}
static int mig(nvml_device d, unsigned *now, unsigned *pending)
{
    PUT(now, d->card.mig);
    *pending = *now;
    return NVML_SUCCESS;
}
static int ecc_mode(nvml_device d, int *now, int *pending)
{
    PUT(now, d->card.ecc_on);
    *pending = *now;
    return NVML_SUCCESS;
}
static int ecc_errors(nvml_device d, int type, int counter, unsigned long long *to)
{
    (void)counter;
    PUT(to, type == 1 ? d->card.ecc_uncorrected : d->card.ecc_corrected);
    return NVML_SUCCESS;
}
static int rows(nvml_device d, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                unsigned *failed)
{
    PUT(corrected, d->card.rows_corrected);
    PUT(uncorrected, d->card.rows_uncorrected);
    PUT(pending, d->card.rows_pending);
    PUT(failed, d->card.rows_failed);
    return NVML_SUCCESS;
}
static int fabric(nvml_device d, struct nvml_fabric *to)
{
    *to = (struct nvml_fabric){0};
    PUT(&to->state, d->card.fabric);
    return NVML_SUCCESS;
}

/* Link errors are all of link 0; the first links are the active ones. */
static double field_of(const struct nvmlDevice_st *d, unsigned id, unsigned link)
{
    const struct nvml_card *c = &d->card;
    switch (id) {
    case 82: return c->memory_celsius;
    case 74: return 1e9 * c->power_cap_s;
    case 269: return 1e9 * c->sw_thermal_s;
    case 270: return 1e9 * (c->hw_thermal_s + grown(d));
    case 271: return 1e9 * c->power_brake_s;
    case 230: return c->recovery;
    case 91: return c->links;
    case 165: return link < c->links_active;
    case 161: return link ? 0 : c->link_errors;
    case 138: return c->link_tx / 1024 / c->links;
    case 139: return c->link_rx / 1024 / c->links;
    default: return NAN;
    }
}
static int fields(nvml_device d, int n, struct nvml_field *f)
{
    for (int i = 0; i < n; i++) {
        const double value = field_of(d, f[i].id, f[i].scope);
        f[i].type = 3;
        f[i].code = isfinite(value) ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
        f[i].value.ull = isfinite(value) ? (unsigned long long)value : 0;
    }
    return NVML_SUCCESS;
}

static int events_create(void **set)
{
    *set = standin.devices;
    return NVML_SUCCESS;
}
static int events_register(nvml_device d, unsigned long long types, void *set)
{
    return d && set && types == NVML_EVENT_XID ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
}
static int events_wait(void *set, struct nvml_event *e, unsigned wait_ms)
{
    (void)set, (void)wait_ms;
    for (int i = 0; i < standin.count; i++) {
        struct nvmlDevice_st *d = &standin.devices[i];
        if (d->xid == 0) continue;
        *e = (struct nvml_event){.device = d, .type = NVML_EVENT_XID, .data = (unsigned)d->xid};
        d->xid = 0;
        return NVML_SUCCESS;
    }
    return NVML_NOT_FOUND; /* NVML says timeout */
}
static int events_free(void *set)
{
    return set ? NVML_SUCCESS : NVML_NOT_FOUND;
}

/* ---- GPM: a sample holds what the units have worked, in seconds of percent */

enum { GPM_VALUES = 4 };
static const unsigned gpm_ids[GPM_VALUES] = {NVML_GPM_SM, NVML_GPM_OCCUPANCY, NVML_GPM_TENSOR, NVML_GPM_DRAM};
struct nvml_gpm_sample {
    double time, worked[GPM_VALUES];
};
static int gpm_support(nvml_device d, struct nvml_gpm_support *to)
{
    to->supported = d->gpm != NVML_NOT_SUPPORTED;
    return to->version == 1 ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
}
static int gpm_alloc(struct nvml_gpm_sample **sample)
{
    *sample = calloc(1, sizeof **sample);
    return *sample ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
}
static int gpm_free(struct nvml_gpm_sample *sample)
{
    free(sample);
    return NVML_SUCCESS;
}
static int gpm_get(nvml_device d, struct nvml_gpm_sample *sample)
{
    const struct nvml_card *c = &d->card;
    const double values[GPM_VALUES] = {c->sm_percent, c->occupancy_percent, c->tensor_percent,
                                       c->dram_percent};
    if (d->gpm != NVML_SUCCESS) return d->gpm;
    sample->time = clock_s();
    for (int i = 0; i < GPM_VALUES; i++) sample->worked[i] = values[i] * sample->time;
    return NVML_SUCCESS;
}
static int gpm_metrics(struct nvml_gpm_metrics *m)
{
    const double seconds = m->newer->time - m->older->time;
    if (m->version != 1 || m->older->time == 0 || seconds < NVML_GPM_REST_S) return NVML_NOT_SUPPORTED;
    for (unsigned k = 0; k < m->count; k++)
        for (int i = 0; i < GPM_VALUES; i++) {
            if (m->list[k].id != gpm_ids[i]) continue;
            m->list[k].value = (m->newer->worked[i] - m->older->worked[i]) / seconds;
            m->list[k].code = isfinite(m->list[k].value) ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
        }
    return NVML_SUCCESS;
}

/* ---- the script */

/* A sound H200 of a node of eight, at rest. */
static struct nvmlDevice_st sound(int index)
{
    struct nvml_card c = {.name = "NVIDIA H200",
                          .vbios = "96.00.BC.00.01",
                          .sm_mhz = 345,
                          .sm_max_mhz = 1980,
                          .memory_mhz = 3201,
                          .watts = 76,
                          .limit_watts = 700,
                          .default_watts = 700,
                          .joules = 1e6,
                          .celsius = 31,
                          .memory_celsius = 38,
                          .slowdown_celsius = 89,
                          .reasons = 1,
                          .memory_total = 150e9,
                          .memory_used = 0.6e9,
                          .persistence = 1,
                          .ecc_on = 1,
                          .pcie_width = 16,
                          .pcie_width_max = 16,
                          .pcie_gen = 5,
                          .pcie_gen_max = 5,
                          .links = 18,
                          .links_active = 18,
                          .fabric = 3};
    snprintf(c.uuid, sizeof c.uuid, "GPU-%08x-0000-0000-0000-000000000000", 0x5a000000u + (unsigned)index);
    snprintf(c.pci, sizeof c.pci, "00000000:%02X:00.0", 0x18 + index);
    return (struct nvmlDevice_st){.card = c};
}

/* NAME=VALUE of one card; false: no such name. */
static bool card_set(struct nvmlDevice_st *d, const char *name, const char *value)
{
    struct nvml_card *c = &d->card;
    double *to = nvml_value(c, name);
    if (to)
        *to = strtod(value, NULL);
    else if (strcmp(name, "lost") == 0)
        d->lost = value[0] == '1';
    else if (strcmp(name, "xid") == 0)
        d->xid = (int)strtol(value, NULL, 10);
    else if (strcmp(name, "gpm") == 0)
        d->gpm = (int)strtol(value, NULL, 10);
    else if (strcmp(name, "grows") == 0)
        d->grows = value[0] == '1';
    else if (strcmp(name, "name") == 0)
        put_text(value, c->name, sizeof c->name);
    else if (strcmp(name, "uuid") == 0)
        put_text(value, c->uuid, sizeof c->uuid);
    else if (strcmp(name, "vbios") == 0)
        put_text(value, c->vbios, sizeof c->vbios);
    else
        return false;
    return true;
}

/* "N|* NAME=VALUE ..." */
static bool card_line(char *line)
{
    char *at = line + strcspn(line, " ");
    const int which = line[0] == '*' ? -1 : (int)strtol(line, NULL, 10);
    while (*(at += strspn(at, " "))) {
        char *word = at, *value = strchr(at, '=');
        if (value == NULL) return false;
        *value++ = 0;
        const bool rest = strcmp(word, "name") == 0;
        at = rest ? value + strlen(value) : value + strcspn(value, " ");
        if (*at) *at++ = 0;
        for (int i = 0; i < standin.count; i++)
            if ((which < 0 || which == i) && !card_set(&standin.devices[i], word, value)) return false;
    }
    return true;
}

static bool script_line(char *line)
{
    if (strncmp(line, "card ", 5) == 0) return card_line(line + 5);
    if (strncmp(line, "driver=", 7) == 0)
        return put_text(line + 7, standin.driver, sizeof standin.driver), true;
    char *value = strchr(line, '=');
    if (value == NULL) return false;
    *value++ = 0;
    const int number = (int)strtol(value, NULL, 10);
    if (strcmp(line, "init") == 0)
        standin.init = number;
    else if (strcmp(line, "cuda") == 0)
        standin.cuda = number;
    else if (strcmp(line, "gpm") == 0)
        standin.no_gpm = number == 0;
    else if (strcmp(line, "cards") == 0 && number >= 0 && number <= CARDS_MAX)
        for (standin.count = 0; standin.count < number; standin.count++)
            standin.devices[standin.count] = sound(standin.count);
    else
        return false;
    return true;
}

status nvml_standin(struct nvml *n, const char *script)
{
    char line[512];
    standin.init = standin.count = 0;
    standin.no_gpm = false;
    standin.begin_s = clock_s();
    standin.cuda = 13000;
    put_text("580.95.05", standin.driver, sizeof standin.driver);
    for (int number = 1; *script; number++) {
        const size_t length = strcspn(script, "\n");
        snprintf(line, sizeof line, "%.*s", (int)length, script);
        script += length + (script[length] == '\n');
        if (line[0] == 0 || line[0] == '#' || script_line(line)) continue;
        return FAIL(STATUS_CONFIG, "the script of the stand-in for NVML: line %d is wrong: '%s'", number,
                    line);
    }
    *n = (struct nvml){.nvmlInit_v2 = init,
                       .nvmlShutdown = shut_down,
                       .nvmlSystemGetDriverVersion = driver,
                       .nvmlSystemGetCudaDriverVersion_v2 = cuda,
                       .nvmlDeviceGetCount_v2 = count,
                       .nvmlDeviceGetHandleByIndex_v2 = by_index,
                       .nvmlDeviceGetHandleByPciBusId_v2 = by_address,
                       .nvmlDeviceGetName = name,
                       .nvmlDeviceGetUUID = uuid,
                       .nvmlDeviceGetVbiosVersion = vbios,
                       .nvmlDeviceGetPciInfo_v3 = pci,
#define X(call, type, value, scale) .call = get_##value,
                       GETTERS(X)
#undef X
                           .nvmlDeviceGetTotalEnergyConsumption = energy,
                       .nvmlDeviceGetClockInfo = clock_now,
                       .nvmlDeviceGetMaxClockInfo = clock_max,
                       .nvmlDeviceGetTemperature = temperature,
                       .nvmlDeviceGetTemperatureThreshold = threshold,
                       .nvmlDeviceGetUtilizationRates = busy,
                       .nvmlDeviceGetMemoryInfo = memory,
                       .nvmlDeviceGetComputeRunningProcesses_v3 = processes,
                       .nvmlDeviceGetMigMode = mig,
                       .nvmlDeviceGetEccMode = ecc_mode,
                       .nvmlDeviceGetTotalEccErrors = ecc_errors,
                       .nvmlDeviceGetRemappedRows = rows,
                       .nvmlDeviceGetGpuFabricInfo = fabric,
                       .nvmlDeviceGetFieldValues = fields,
                       .nvmlEventSetCreate = events_create,
                       .nvmlEventSetWait_v2 = events_wait,
                       .nvmlEventSetFree = events_free,
                       .nvmlDeviceRegisterEvents = events_register};
    if (standin.no_gpm) return STATUS_OK;
    n->nvmlGpmQueryDeviceSupport = gpm_support;
    n->nvmlGpmSampleAlloc = gpm_alloc;
    n->nvmlGpmSampleFree = gpm_free;
    n->nvmlGpmSampleGet = gpm_get;
    n->nvmlGpmMetricsGet = gpm_metrics;
    return STATUS_OK;
}
