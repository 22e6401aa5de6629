#include "dev/nvml.h"
#include "base/io.h"
#include "dev/nvml_standin.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static status begin(struct nvml **out, struct nvml *n, int *code)
{
    const int got = n->nvmlInit_v2 ? n->nvmlInit_v2() : NVML_NOT_SUPPORTED;
    if (code) *code = got;
    n->begun = got == NVML_SUCCESS;
    if (n->begun) {
        *out = n;
        return STATUS_OK;
    }
    nvml_close(n);
    return got == NVML_LIB_MISMATCH
               ? FAIL(STATUS_DEVICE,
                      "NVIDIA's kernel module and libnvidia-ml.so.1 are of different versions: "
                      "reboot, or load the module again")
               : FAIL(STATUS_DEVICE, "nvmlInit failed with %d", got);
}

status nvml_open_script(struct nvml **out, const char *script, int *code)
{
    *out = NULL;
    struct nvml *n = calloc(1, sizeof *n);
    if (n == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the stand-in of NVML");
    status st = nvml_standin(n, script);
    if (st == STATUS_OK) return begin(out, n, code);
    free(n);
    return st;
}

static status open_file(struct nvml **out, const char *path, int *code)
{
    char *script;
    size_t bytes;
    TRY(io_read_file(path, 1 << 20, &script, &bytes));
    status st = nvml_open_script(out, script, code);
    free(script);
    return st;
}

status nvml_open(struct nvml **out, int *code)
{
    const char *script = getenv("INGOT_NVML_SCRIPT");
    *out = NULL;
    if (code) *code = 0;
    if (script) return open_file(out, script, code);
    struct nvml *n = calloc(1, sizeof *n);
    if (n == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for NVML");
    n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (n->library == NULL) {
        free(n);
        return FAIL(STATUS_DEVICE, "libnvidia-ml.so.1, which comes with NVIDIA's driver, was not found");
    }
#define X(name, arguments) n->name = (__typeof__(n->name))dlsym(n->library, #name);
    NVML_CALLS(X)
#undef X
    return begin(out, n, code);
}

void nvml_close(struct nvml *n)
{
    if (n == NULL) return;
    if (n->events) n->nvmlEventSetFree(n->events);
    nvml_activity_close(n);
    if (n->begun && n->nvmlShutdown) n->nvmlShutdown();
    if (n->library) dlclose(n->library);
    free(n);
}

int nvml_count(const struct nvml *n)
{
    unsigned count;
    return n->nvmlDeviceGetCount_v2 && n->nvmlDeviceGetCount_v2(&count) == NVML_SUCCESS ? (int)count : -1;
}

const char *nvml_driver(const struct nvml *n, char text[96])
{
    if (!n->nvmlSystemGetDriverVersion || n->nvmlSystemGetDriverVersion(text, 96) != NVML_SUCCESS)
        text[0] = 0;
    return text;
}

int nvml_cuda(const struct nvml *n)
{
    int version;
    return n->nvmlSystemGetCudaDriverVersion_v2 &&
                   n->nvmlSystemGetCudaDriverVersion_v2(&version) == NVML_SUCCESS
               ? version
               : 0;
}

void nvml_events_open(struct nvml *n)
{
    nvml_device d;
    if (n->events || !n->nvmlEventSetCreate || !n->nvmlEventSetWait_v2 || !n->nvmlEventSetFree ||
        !n->nvmlDeviceRegisterEvents || n->nvmlEventSetCreate(&n->events) != NVML_SUCCESS)
        return;
    for (int i = 0; i < nvml_count(n); i++)
        if (n->nvmlDeviceGetHandleByIndex_v2((unsigned)i, &d) == NVML_SUCCESS)
            (void)n->nvmlDeviceRegisterEvents(d, NVML_EVENT_XID,
                                              n->events); /* refused: this GPU tells none */
}

int nvml_events_next(struct nvml *n, struct nvml_xid *xid)
{
    struct nvml_event e;
    nvml_device d;
    if (n->events == NULL || n->nvmlEventSetWait_v2(n->events, &e, 0) != NVML_SUCCESS) return 0;
    *xid = (struct nvml_xid){-1, (int)e.data};
    for (int i = 0; i < nvml_count(n); i++)
        if (n->nvmlDeviceGetHandleByIndex_v2((unsigned)i, &d) == NVML_SUCCESS && d == e.device) xid->gpu = i;
    return 1;
}

double *nvml_value(struct nvml_card *c, const char *name)
{
#define X(value)                                                                                             \
    if (strcmp(name, #value) == 0) return &c->value;
    NVML_VALUES(X)
#undef X
    return NULL;
}

/* ---- one GPU */

#define ASK(call, ...) (n->call != NULL && n->call(d, __VA_ARGS__) == NVML_SUCCESS)

static void read_clocks(const struct nvml *n, nvml_device d, struct nvml_card *c)
{
    unsigned u;
    unsigned long long ull;
    if (ASK(nvmlDeviceGetClockInfo, NVML_CLOCK_SM, &u)) c->sm_mhz = u;
    if (ASK(nvmlDeviceGetMaxClockInfo, NVML_CLOCK_SM, &u)) c->sm_max_mhz = u;
    if (ASK(nvmlDeviceGetClockInfo, NVML_CLOCK_MEM, &u)) c->memory_mhz = u;
    if (ASK(nvmlDeviceGetPowerUsage, &u)) c->watts = 1e-3 * u;
    if (ASK(nvmlDeviceGetEnforcedPowerLimit, &u)) c->limit_watts = 1e-3 * u;
    if (ASK(nvmlDeviceGetPowerManagementDefaultLimit, &u)) c->default_watts = 1e-3 * u;
    if (ASK(nvmlDeviceGetTotalEnergyConsumption, &ull)) c->joules = 1e-3 * (double)ull;
    if (ASK(nvmlDeviceGetCurrentClocksThrottleReasons, &ull)) c->reasons = (double)ull;
    if (ASK(nvmlDeviceGetTemperature, 0, &u)) c->celsius = u;
    if (ASK(nvmlDeviceGetTemperatureThreshold, 1, &u)) c->slowdown_celsius = u;
    struct nvml_utilization busy;
    if (ASK(nvmlDeviceGetUtilizationRates, &busy)) c->gpu_busy = busy.gpu;
}

static void read_memory(const struct nvml *n, nvml_device d, struct nvml_card *c)
{
    struct nvml_memory m;
    unsigned a, b, pending, failed;
    unsigned long long ull;
    int on, next;
    if (ASK(nvmlDeviceGetMemoryInfo, &m)) c->memory_used = (double)m.used, c->memory_total = (double)m.total;
    if (ASK(nvmlDeviceGetEccMode, &on, &next)) c->ecc_on = on;
    if (ASK(nvmlDeviceGetTotalEccErrors, 1, 0, &ull)) c->ecc_uncorrected = (double)ull;
    if (ASK(nvmlDeviceGetTotalEccErrors, 0, 0, &ull)) c->ecc_corrected = (double)ull;
    if (ASK(nvmlDeviceGetRemappedRows, &a, &b, &pending, &failed)) {
        c->rows_corrected = a;
        c->rows_uncorrected = b;
        c->rows_pending = pending;
        c->rows_failed = failed;
    }
}

static void read_place(const struct nvml *n, nvml_device d, struct nvml_card *c)
{
    struct nvml_process list[64];
    struct nvml_fabric fabric;
    unsigned u = 64, next;
    int on;
    if (ASK(nvmlDeviceGetComputeRunningProcesses_v3, &u, list)) c->processes = u;
    if (ASK(nvmlDeviceGetPersistenceMode, &on)) c->persistence = on;
    if (ASK(nvmlDeviceGetMigMode, &u, &next)) c->mig = u;
    if (ASK(nvmlDeviceGetCurrPcieLinkWidth, &u)) c->pcie_width = u;
    if (ASK(nvmlDeviceGetMaxPcieLinkWidth, &u)) c->pcie_width_max = u;
    if (ASK(nvmlDeviceGetCurrPcieLinkGeneration, &u)) c->pcie_gen = u;
    if (ASK(nvmlDeviceGetMaxPcieLinkGeneration, &u)) c->pcie_gen_max = u;
    if (ASK(nvmlDeviceGetPcieReplayCounter, &u)) c->pcie_replays = u;
    if (ASK(nvmlDeviceGetGpuFabricInfo, &fabric)) c->fabric = fabric.state;
}

static double field_number(const struct nvml_field *f)
{
    if (f->code != NVML_SUCCESS) return NAN;
    switch (f->type) {
    case 0: return f->value.d;
    case 1: return f->value.u;
    case 2: return (double)f->value.ul;
    case 3: return (double)f->value.ull;
    case 4: return (double)f->value.sll;
    case 5: return f->value.i;
    case 6: return f->value.us;
    default: return NAN;
    }
}

/* Values that only nvmlDeviceGetFieldValues has, of the whole GPU. */
static void read_fields(const struct nvml *n, nvml_device d, struct nvml_card *c)
{
    const struct {
        unsigned id;
        double *to, scale;
    } rows[] = {{82, &c->memory_celsius, 1},
                {74, &c->power_cap_s, 1e-9},
                {269, &c->sw_thermal_s, 1e-9},
                {270, &c->hw_thermal_s, 1e-9},
                {271, &c->power_brake_s, 1e-9},
                {230, &c->recovery, 1},
                {91, &c->links, 1}};
    enum { ROWS = sizeof rows / sizeof rows[0] };
    struct nvml_field fields[ROWS] = {0};
    for (int i = 0; i < ROWS; i++) fields[i].id = rows[i].id;
    if (!ASK(nvmlDeviceGetFieldValues, ROWS, fields)) return;
    for (int i = 0; i < ROWS; i++) *rows[i].to = rows[i].scale * field_number(&fields[i]);
}

/* Values per NVLink (scope: its number): state, the error counters before and from NVLink 5 on, KiB that went out and in. */
static void read_links(const struct nvml *n, nvml_device d, struct nvml_card *c)
{
    enum { STATE, REPLAY, RECOVERY, CRC, TX, RX, ROWS, LINKS_MAX = 36 };
    static const unsigned ids[ROWS] = {165, 161, 162, 163, 138, 139};
    double sums[ROWS];
    for (int i = 0; i < ROWS; i++) sums[i] = NAN;
    for (int link = 0; link < c->links && link < LINKS_MAX; link++) {
        struct nvml_field fields[ROWS] = {0};
        for (int i = 0; i < ROWS; i++) fields[i].id = ids[i], fields[i].scope = (unsigned)link;
        if (!ASK(nvmlDeviceGetFieldValues, ROWS, fields)) return;
        for (int i = 0; i < ROWS; i++) {
            const double value = field_number(&fields[i]);
            if (isfinite(value))
                sums[i] = (isfinite(sums[i]) ? sums[i] : 0) + (i == STATE ? value == 1 : value);
        }
    }
    c->links_active = sums[STATE];
    for (int i = REPLAY; i <= CRC; i++)
        if (isfinite(sums[i])) c->link_errors = (isfinite(c->link_errors) ? c->link_errors : 0) + sums[i];
    c->link_tx = 1024 * sums[TX];
    c->link_rx = 1024 * sums[RX];
}

void nvml_read(const struct nvml *n, int index, struct nvml_card *c)
{
    nvml_device d;
    struct nvml_pci pci;
    *c = (struct nvml_card){0};
#define X(name) c->name = NAN;
    NVML_VALUES(X)
#undef X
    c->code = n->nvmlDeviceGetHandleByIndex_v2 ? n->nvmlDeviceGetHandleByIndex_v2((unsigned)index, &d)
                                               : NVML_NOT_SUPPORTED;
    if (c->code != NVML_SUCCESS) return;
    if (n->nvmlDeviceGetUUID) c->code = n->nvmlDeviceGetUUID(d, c->uuid, sizeof c->uuid);
    if (c->code == NVML_NOT_SUPPORTED) c->code = NVML_SUCCESS;
    if (c->code != NVML_SUCCESS) return;
    if (!ASK(nvmlDeviceGetName, c->name, sizeof c->name)) c->name[0] = 0;
    if (!ASK(nvmlDeviceGetVbiosVersion, c->vbios, sizeof c->vbios)) c->vbios[0] = 0;
    if (ASK(nvmlDeviceGetPciInfo_v3, &pci)) memcpy(c->pci, pci.address, sizeof c->pci);
    c->pci[sizeof c->pci - 1] = 0;
    read_clocks(n, d, c);
    read_memory(n, d, c);
    read_place(n, d, c);
    read_fields(n, d, c);
    read_links(n, d, c);
}
