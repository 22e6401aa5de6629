/* Reads the records of hosts (gpu-HOST.jsonl) of a run directory: the newest line of each GPU and host, and sums over the
 * last ten minutes. */
#ifndef INGOT_OBSERVE_HOST_LINES_H
#define INGOT_OBSERVE_HOST_LINES_H
#include <stdint.h>

enum { HOST_LINES_HOSTS = 64, HOST_LINES_GPUS = 32, HOST_LINES_XIDS = 32 };
#define HOST_LINES_WINDOW_S 600.0

/*    key of a line; NaN: absent */
#define GPU_LINE_VALUES(X)                                                                                   \
    X(watts) X(limit_watts) X(sm_mhz) X(busy_percent) X(sm_percent) X(occupancy_percent) X(tensor_percent)   \
    X(dram_percent) X(celsius) X(memory_celsius) X(memory_used)                                              \
    X(memory_total) X(reasons) X(ecc_uncorrected) X(rows_pending) X(rows_failed) X(links_active)             \
    X(link_errors) X(nvml_error)
struct gpu_lines {
    int index;
    char uuid[96], pci[32];
    double time;            /* of the newest line; NaN: none */
#define X(name) double name;
    GPU_LINE_VALUES(X)
#undef X
    /* over the last HOST_LINES_WINDOW_S before the newest line */
    double window_s;        /* that there are lines of */
    double throttled_s;     /* thermal slowdown and power brake */
    double capped_s;        /* power cap */
    double mhz_60;          /* mean clock of the last minute; NaN: not known */
    double links_most;      /* active links at best, in the whole record */
    double errors_from, ecc_from; /* counters at the begin of the window */
};
struct xid_line { double time; int gpu, xid; };
struct host_lines {
    char host[128];
    double time, cpu_percent, load, memory_available, disk_free; /* of the newest line; NaN: none */
    struct gpu_lines gpu[HOST_LINES_GPUS];
    int gpus;
    struct xid_line xid[HOST_LINES_XIDS]; /* the newest */
    int xids;
};
/* All hosts of a run, sorted by name; *list is the caller's. Returns their number. Lines that cannot be read are left
 * out. */
int host_lines_read(const char *run_dir, struct host_lines **list);
/* The same from the last tail_bytes of each file; list [HOST_LINES_HOSTS]. */
int host_lines_tail(const char *run_dir, long tail_bytes, struct host_lines *list);
/* Energy that the GPUs of a run have counted, over all of its record; NaN: none has. */
double host_lines_joules(const char *run_dir);
#endif
