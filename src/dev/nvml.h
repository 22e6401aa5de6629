/* NVIDIA's management library, which comes with the driver: loaded by name, each call optional. What a GPU, a driver
 * or a container does not answer is "not known", never an error.
 *
 * For tests a stand-in takes its place: the file of INGOT_NVML_SCRIPT, or a text. Its lines:
 *     driver=580.95.05              of the library; also: cuda=13000, init=CODE (what nvmlInit returns)
 *     cards=8                       how many there are, all alike and sound
 *     card N|* NAME=VALUE ...       a value of NVML_VALUES; nan: not supported; also uuid=, vbios=, name= (to the end
 *                                   of the line), lost=1 (every call fails as for a GPU that fell off the bus), xid=N
 *                                   (an event, once), gpm=CODE (why it takes no GPM sample; 3: it has none),
 *                                   grows=1 (joules by its watts, hw_thermal_s by one second per second)
 *     gpm=0                         the library has no calls of GPM */
#ifndef INGOT_DEV_NVML_H
#define INGOT_DEV_NVML_H
#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

/* Signatures and constants are those of nvml.h, which only the toolkit has: NVIDIA's NVML API reference. */
typedef struct nvmlDevice_st *nvml_device;
enum { NVML_SUCCESS = 0, NVML_NOT_SUPPORTED = 3, NVML_NOT_FOUND = 6, NVML_GPU_LOST = 15, NVML_LIB_MISMATCH = 18 };
enum { NVML_CLOCK_SM = 1, NVML_CLOCK_MEM = 2 };
/* clocks' event reasons */
enum { NVML_REASON_POWER_CAP = 0x4, NVML_REASON_HW_SLOWDOWN = 0x8, NVML_REASON_SW_THERMAL = 0x20, NVML_REASON_HW_THERMAL = 0x40, NVML_REASON_POWER_BRAKE = 0x80 };
struct nvml_field { /* nvmlFieldValue_t */
    unsigned id, scope;
    long long timestamp, latency_us;
    int type, code;
    union {
        double d;
        unsigned u;
        unsigned long ul;
        unsigned long long ull;
        long long sll;
        int i;
        unsigned short us;
    } value;
};
struct nvml_pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char address[32]; };
struct nvml_memory { unsigned long long total, free, used; };
struct nvml_process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };
struct nvml_utilization { unsigned gpu, memory; };
struct nvml_event { nvml_device device; unsigned long long type, data; unsigned gpu_instance, compute_instance; };
enum { NVML_EVENT_XID = 0x8 };
struct nvml_fabric { unsigned char cluster[16]; int code; unsigned clique; unsigned char state; };
/* GPM: activity of units between two samples, in percent. A call fills `count` metrics; nvml.h's array has 98 of them in
 * its first versions, more in later ones. */
enum { NVML_GPM_SM = 2, NVML_GPM_OCCUPANCY = 3, NVML_GPM_TENSOR = 5, NVML_GPM_DRAM = 10, NVML_GPM_METRICS = 98 };
struct nvml_gpm_sample;
struct nvml_gpm_metric { unsigned id; int code; double value; char *short_name, *long_name, *unit; };
struct nvml_gpm_metrics { unsigned version, count; struct nvml_gpm_sample *older, *newer; struct nvml_gpm_metric list[NVML_GPM_METRICS]; };
struct nvml_gpm_support { unsigned version, supported; };
#define NVML_CALLS(X)                                                                                                  \
    X(nvmlInit_v2, (void))                                                                                             \
    X(nvmlShutdown, (void))                                                                                            \
    X(nvmlSystemGetDriverVersion, (char *text, unsigned bytes))                                                        \
    X(nvmlSystemGetCudaDriverVersion_v2, (int *version))                                                               \
    X(nvmlDeviceGetCount_v2, (unsigned *count))                                                                        \
    X(nvmlDeviceGetHandleByIndex_v2, (unsigned index, nvml_device *device))                                            \
    X(nvmlDeviceGetHandleByPciBusId_v2, (const char *address, nvml_device *device))                                    \
    X(nvmlDeviceGetName, (nvml_device device, char *text, unsigned bytes))                                             \
    X(nvmlDeviceGetUUID, (nvml_device device, char *text, unsigned bytes))                                             \
    X(nvmlDeviceGetVbiosVersion, (nvml_device device, char *text, unsigned bytes))                                     \
    X(nvmlDeviceGetPciInfo_v3, (nvml_device device, struct nvml_pci *pci))                                             \
    X(nvmlDeviceGetTotalEnergyConsumption, (nvml_device device, unsigned long long *millijoules))                      \
    X(nvmlDeviceGetPowerUsage, (nvml_device device, unsigned *milliwatts))                                             \
    X(nvmlDeviceGetEnforcedPowerLimit, (nvml_device device, unsigned *milliwatts))                                     \
    X(nvmlDeviceGetPowerManagementDefaultLimit, (nvml_device device, unsigned *milliwatts))                            \
    X(nvmlDeviceGetClockInfo, (nvml_device device, int type, unsigned *mhz))                                           \
    X(nvmlDeviceGetMaxClockInfo, (nvml_device device, int type, unsigned *mhz))                                        \
    X(nvmlDeviceGetCurrentClocksThrottleReasons, (nvml_device device, unsigned long long *reasons))                    \
    X(nvmlDeviceGetTemperature, (nvml_device device, int sensor, unsigned *celsius))                                   \
    X(nvmlDeviceGetTemperatureThreshold, (nvml_device device, int type, unsigned *celsius))                            \
    X(nvmlDeviceGetUtilizationRates, (nvml_device device, struct nvml_utilization *percent))                           \
    X(nvmlDeviceGetMemoryInfo, (nvml_device device, struct nvml_memory *bytes))                                        \
    X(nvmlDeviceGetComputeRunningProcesses_v3, (nvml_device device, unsigned *count, struct nvml_process *list))       \
    X(nvmlDeviceGetPersistenceMode, (nvml_device device, int *on))                                                     \
    X(nvmlDeviceGetMigMode, (nvml_device device, unsigned *now, unsigned *pending))                                    \
    X(nvmlDeviceGetEccMode, (nvml_device device, int *now, int *pending))                                              \
    X(nvmlDeviceGetTotalEccErrors, (nvml_device device, int type, int counter, unsigned long long *count))             \
    X(nvmlDeviceGetRemappedRows, (nvml_device device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)) \
    X(nvmlDeviceGetCurrPcieLinkWidth, (nvml_device device, unsigned *lanes))                                           \
    X(nvmlDeviceGetMaxPcieLinkWidth, (nvml_device device, unsigned *lanes))                                            \
    X(nvmlDeviceGetCurrPcieLinkGeneration, (nvml_device device, unsigned *generation))                                 \
    X(nvmlDeviceGetMaxPcieLinkGeneration, (nvml_device device, unsigned *generation))                                  \
    X(nvmlDeviceGetPcieReplayCounter, (nvml_device device, unsigned *count))                                           \
    X(nvmlDeviceGetGpuFabricInfo, (nvml_device device, struct nvml_fabric *fabric))                                    \
    X(nvmlDeviceGetFieldValues, (nvml_device device, int count, struct nvml_field *fields))                            \
    X(nvmlEventSetCreate, (void **set))                                                                                \
    X(nvmlEventSetWait_v2, (void *set, struct nvml_event *event, unsigned wait_ms))                                    \
    X(nvmlEventSetFree, (void *set))                                                                                   \
    X(nvmlDeviceRegisterEvents, (nvml_device device, unsigned long long types, void *set))                             \
    X(nvmlGpmQueryDeviceSupport, (nvml_device device, struct nvml_gpm_support *support))                               \
    X(nvmlGpmSampleAlloc, (struct nvml_gpm_sample **sample))                                                           \
    X(nvmlGpmSampleFree, (struct nvml_gpm_sample *sample))                                                             \
    X(nvmlGpmSampleGet, (nvml_device device, struct nvml_gpm_sample *sample))                                          \
    X(nvmlGpmMetricsGet, (struct nvml_gpm_metrics *metrics))

enum { NVML_GPUS_MAX = 32 };
#define NVML_GPM_REST_S 0.1 /* the GPU refreshes its counters about as often */
struct nvml {
    void *library; /* NULL: the stand-in */
    bool begun;
    void *events; /* NULL: not registered */
    struct nvml_activity *activity; /* [NVML_GPUS_MAX], of nvml_activity; NULL: it was not asked */
#define X(name, arguments) int(*name) arguments;
    NVML_CALLS(X) /* NULL: the library has no such call */
#undef X
};
/* STATUS_DEVICE in one line: there is no library, or it cannot begin. *n is NULL then, and *code (may be NULL) what nvmlInit
 * returned, 0 without a library. */
status nvml_open(struct nvml **n, int *code) WARN_UNUSED;
/* The stand-in with a script; one at a time in a process. */
status nvml_open_script(struct nvml **n, const char *script, int *code) WARN_UNUSED;
void nvml_close(struct nvml *n); /* NULL: nothing */

/*    name              what                                                               unit */
#define NVML_VALUES(X)                                                                                                 \
    X(sm_mhz)            /* multiprocessor clock                                           MHz */                      \
    X(sm_max_mhz)                                                                                                      \
    X(memory_mhz)                                                                                                      \
    X(watts)             /* draw                                                           W */                        \
    X(limit_watts)       /* enforced limit */                                                                          \
    X(default_watts)     /* limit when nobody sets one */                                                              \
    X(joules)            /* energy counter                                                 J */                        \
    X(celsius)                                                                                                         \
    X(memory_celsius)                                                                                                  \
    X(slowdown_celsius)  /* where the hardware slows down */                                                           \
    X(reasons)           /* clocks' event reasons now, a mask */                                                       \
    X(power_cap_s)       /* counters of time in a reason                                   s */                        \
    X(sw_thermal_s)                                                                                                    \
    X(hw_thermal_s)                                                                                                    \
    X(power_brake_s)                                                                                                   \
    X(gpu_busy)          /* time in which a kernel ran                                     % */                        \
    X(sm_percent)        /* multiprocessors that were busy; this and the next: nvml_activity % */                      \
    X(occupancy_percent) /* warps of those that fit */                                                                 \
    X(tensor_percent)    /* time in which the tensor cores worked */                                                   \
    X(dram_percent)      /* of the memory's bandwidth */                                                               \
    X(memory_used)       /*                                                                bytes */                    \
    X(memory_total)                                                                                                    \
    X(processes)                                                                                                       \
    X(persistence)       /* 0, 1 */                                                                                    \
    X(mig)               /* 0, 1 */                                                                                    \
    X(ecc_on)            /* 0, 1 */                                                                                    \
    X(ecc_uncorrected)   /* since the driver was loaded */                                                             \
    X(ecc_corrected)                                                                                                   \
    X(rows_corrected)    /* rows remapped because of corrected errors */                                               \
    X(rows_uncorrected)                                                                                                \
    X(rows_pending)      /* a remap waits for a reset */                                                               \
    X(rows_failed)       /* a remap failed */                                                                          \
    X(recovery)          /* recovery action: 0 none, 1 reset, 2 reboot, 3 drain, 4 drain and reset */                  \
    X(pcie_width)        /* lanes */                                                                                   \
    X(pcie_width_max)                                                                                                  \
    X(pcie_gen)          /* falls when idle */                                                                         \
    X(pcie_gen_max)                                                                                                    \
    X(pcie_replays)                                                                                                    \
    X(links)             /* NVLinks */                                                                                 \
    X(links_active)                                                                                                    \
    X(link_errors)       /* replays, recoveries and CRC errors of all NVLinks */                                       \
    X(link_tx)           /* data counter                                                   bytes */                    \
    X(link_rx)                                                                                                         \
    X(fabric)            /* 0 not supported, 1 not started, 2 in progress, 3 completed */

struct nvml_card {
    int code; /* NVML's error for a GPU that does not answer */
    char name[96], uuid[96], vbios[32], pci[32]; /* "": not known */
#define X(name) double name; /* NaN: not known */
    NVML_VALUES(X)
#undef X
};
int nvml_count(const struct nvml *n); /* GPUs; -1: not known */
void nvml_read(const struct nvml *n, int index, struct nvml_card *c);
/* Adds the four percentages of GPM (Hopper and newer): means of the time since the call before. The first call has none,
 * nor has a GPU, a driver or a user that GPM refuses. Within NVML_GPM_REST_S of a sample the last values stand. */
void nvml_activity(struct nvml *n, int index, struct nvml_card *c);
void nvml_activity_close(struct nvml *n); /* nvml_close does it */
/* Xid errors: those after nvml_events_open are told once each, by their GPU's index; 0: no more now. A driver without
 * events tells none. */
struct nvml_xid { int gpu, number; };
void nvml_events_open(struct nvml *n);
int nvml_events_next(struct nvml *n, struct nvml_xid *xid);
/* A value by its name; NULL: none. */
double *nvml_value(struct nvml_card *c, const char *name);
const char *nvml_driver(const struct nvml *n, char text[96]); /* "" : not known */
int nvml_cuda(const struct nvml *n); /* the newest CUDA of the driver: 13000; 0: not known */
#endif
