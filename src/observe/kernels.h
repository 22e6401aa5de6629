/* Device times: the kernels that a step ran on the GPU, with start, duration and purpose.
 *
 *     kernels_open();             before the first step: maps graph nodes to the scope of their capture from now on
 *     kernels_record(true);       CUPTI records device activity (cupti.c)
 *     kernels_flush(0);           the device is idle: activity so far counts for no step
 *     ... a step, dev_sync ...
 *     kernels_flush(1);           activity and time since the last flush count for one step
 *     kernels_record(false);
 *     kernels_breakdown(&b);      breakdown_print(stdout, &b, 0)
 *     kernels_close();
 *
 * While a trace runs (trace_start), every flush also writes its kernels to the trace: one track per stream, on the
 * clock of the host's scopes. Recording slows a step by some percent and lengthens the gaps between kernels most;
 * time steps without it.
 *
 * One recording per process. One thread makes all calls; scopes and launches may be on any thread. */
#ifndef INGOT_OBSERVE_KERNELS_H
#define INGOT_OBSERVE_KERNELS_H
#include "base/status.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* part, key in JSON, text. COMMUNICATION: communication between ranks that overlaps no computation. GAP: the rest of the
 * step's wall time, in which nothing ran */
#define KERNEL_PART_LIST(X)                                                                            \
    X(GEMM, "gemms", "GEMMs")                                                                     \
    X(ATTENTION, "attention", "attention")                                                             \
    X(MEMORY, "memory_bound", "memory-bound")                                                          \
    X(OPTIMIZER, "optimizer", "optimizer")                                                             \
    X(COPY, "copies", "copies")                                                                        \
    X(COMMUNICATION, "communication", "exposed communication")                                                  \
    X(GAP, "gaps", "gaps")
enum kernel_part {
#define X(part, key, text) KERNEL_##part,
    KERNEL_PART_LIST(X)
#undef X
    KERNEL_PART_COUNT
};

/* The part of a kernel, derived from its name as the driver reports it (mangled when it is C++): library kernels by
 * words in the name, ingot's kernels by the function. Kernels that are neither GEMM, attention nor optimizer count as
 * memory-bound. */
enum kernel_part kernel_part_of(const char *name);
/* Demangles a kernel name without its parameters: "cublasLt::splitKreduce_kernel<32, 16, int, ...>". Other names are
 * copied. Truncates to `size`. */
void kernel_name_short(const char *name, char *out, size_t size);

const char *kernel_part_text(enum kernel_part part);    /* "GEMMs" */
const char *kernel_part_key(enum kernel_part part);     /* "gemms" */

/* Direction of a copy: UP from host to device, DOWN from device to host. */
enum kernel_link { LINK_NONE, LINK_UP, LINK_DOWN, LINK_COUNT };

/* The mean recorded step. When several kernels run at once, the time counts for the kernel that began first;
 * communication between ranks counts only when nothing else runs. The parts therefore add up to the step. `percent`
 * of the parts is in tenths that add to exactly 100. */
enum { BREAKDOWN_KERNELS = 20, KERNEL_NAME_BYTES = 96 };
struct breakdown {
    int64_t steps;                  /* recorded steps; 0: all other fields are 0 */
    int64_t lost;                   /* activities that CUPTI could not record */
    double step_s, busy_s;          /* per step: wall time; time in which anything ran */
    double communication_s;              /* per step: time of communication between ranks, overlapped or not */
    struct breakdown_part {
        double seconds, percent, kernels; /* per step */
    } parts[KERNEL_PART_COUNT];
    struct breakdown_link {
        /* per step; seconds: time with a copy in this direction in progress, whatever else ran */
        double bytes, seconds, copies;
    } links[LINK_COUNT];
    /* bytes/s that the link allows in each direction, set by the caller for print and JSON; 0: not known */
    double link_rate;
    /* entries of the list below: the kernels with the highest cost, in descending order */
    int kernel_count;
    int kernel_kinds;               /* number of different kernels that ran */
    struct breakdown_kernel {
        char name[KERNEL_NAME_BYTES]; /* short */
        enum kernel_part part;
        /* calls per step; mean time of one call, whatever else ran; percent of the step */
        double calls, mean_s, percent;
    } kernels[BREAKDOWN_KERNELS];
};
/* Prints the breakdown. `plain_s` is the step time without recording, 0 when not known; with it the gaps of such a
 * step are shown too. */
void breakdown_print(FILE *out, const struct breakdown *b, double plain_s);
json_t *breakdown_json(const struct breakdown *b, double plain_s); /* the caller decrefs the result */

/* STATUS_DEVICE with one line when device activity cannot be recorded (no CUDA in this build, no libcupti, another
 * profiler attached). The run can continue: all other calls then do nothing. */
status kernels_open(void) WARN_UNUSED;
status kernels_record(bool on) WARN_UNUSED;
/* Ends an interval; the device must be idle (dev_sync). Activity and time since the last flush or
 * kernels_record(true) count for `steps` steps; 0: they are left out of the breakdown. */
void kernels_flush(int64_t steps);
void kernels_breakdown(struct breakdown *out);
void kernels_close(void);
#endif
