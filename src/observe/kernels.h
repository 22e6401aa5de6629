/* Device times: which kernels a step ran on the GPU, when, for how long, and what they were for.
 *
 *     kernels_open();             before the first step: from here on graph nodes are known by the scope they were captured in
 *     kernels_record(true);       device activity is recorded, by CUPTI (cupti.c)
 *     kernels_flush(0);           the device is idle: what ran so far counts for no step
 *     ... a step, dev_sync ...
 *     kernels_flush(1);           what ran since the last flush, and the time since then, is one step's
 *     kernels_record(false);
 *     kernels_breakdown(&b);      breakdown_print(stdout, &b, 0)
 *     kernels_close();
 *
 * With a trace running (trace_start), every flush also writes its kernels there, one track per stream, beside the host's scopes and
 * on their clock. Recording slows a step by some percent, and the gaps between kernels most: time steps without it.
 *
 * One recording per process. All calls come from one thread; scopes and launches may be on any. */
#ifndef INGOT_OBSERVE_KERNELS_H
#define INGOT_OBSERVE_KERNELS_H
#include "base/status.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/*  part, key in JSON, text.  EXCHANGE: between ranks, where nothing is computed beside it. GAP is what is left of the step's wall time: nothing ran */
#define KERNEL_PART_LIST(X)                                                                            \
    X(PRODUCT, "products", "GEMMs")                                                                     \
    X(ATTENTION, "attention", "attention")                                                             \
    X(MEMORY, "memory_bound", "memory-bound")                                                          \
    X(OPTIMIZER, "optimizer", "optimizer")                                                             \
    X(COPY, "copies", "copies")                                                                        \
    X(EXCHANGE, "exchanges", "exposed communication")                                                  \
    X(GAP, "gaps", "gaps")
enum kernel_part {
#define X(part, key, text) KERNEL_##part,
    KERNEL_PART_LIST(X)
#undef X
    KERNEL_PART_COUNT
};

/* What a kernel is for, by its name as the driver reports it (mangled when it is C++): libraries by the words in their names, ours
 * by the function's. What is neither GEMM, attention nor optimizer is memory-bound. */
enum kernel_part kernel_part_of(const char *name);
/* "cublasLt::splitKreduce_kernel<32, 16, int, ...>" from a mangled name, without parameters; other names as they are. Cut to `size`. */
void kernel_name_short(const char *name, char *out, size_t size);

const char *kernel_part_text(enum kernel_part part);    /* "GEMMs" */
const char *kernel_part_key(enum kernel_part part);     /* "products" */

/* Which way a copy goes between host and device. */
enum kernel_link { LINK_NONE, LINK_UP, LINK_DOWN, LINK_COUNT };

/* The mean recorded step. An instant in which several kernels run counts for the one that began first, and for an exchange between ranks only
 * where nothing else runs, so the parts add up to the step; `percent` of the parts is in tenths that add to exactly 100. */
enum { BREAKDOWN_KERNELS = 20, KERNEL_NAME_BYTES = 96 };
struct breakdown {
    int64_t steps;                  /* recorded; 0: all else is 0 */
    int64_t lost;                   /* activities that CUPTI could not record */
    double step_s, busy_s;          /* wall time of a step; something ran */
    double exchange_s;              /* exchanges between ranks were under way, hidden or not */
    struct breakdown_part {
        double seconds, percent, kernels; /* per step */
    } parts[KERNEL_PART_COUNT];
    struct breakdown_link {
        double bytes, seconds, copies; /* per step; seconds: in which a copy that way was under way, whatever ran beside it */
    } links[LINK_COUNT];
    double link_rate;               /* bytes/s each way that the link allows, for print and JSON: the caller's; 0: not known */
    int kernel_count;               /* of the list below; the kernels that cost most, most first */
    int kernel_kinds;               /* different kernels that ran */
    struct breakdown_kernel {
        char name[KERNEL_NAME_BYTES]; /* short */
        enum kernel_part part;
        double calls, mean_s, percent; /* per step; of one call, alone; of the step */
    } kernels[BREAKDOWN_KERNELS];
};
/* `plain_s`: the step's time without recording, 0 when not known; the gaps of that step are then shown too. */
void breakdown_print(FILE *out, const struct breakdown *b, double plain_s);
json_t *breakdown_json(const struct breakdown *b, double plain_s); /* caller decrefs */

/* STATUS_DEVICE with one line when device activity cannot be recorded (no CUDA in this build, no libcupti, another profiler is
 * attached); the run can go on, all other calls then do nothing. */
status kernels_open(void) WARN_UNUSED;
status kernels_record(bool on) WARN_UNUSED;
/* The device must be idle (dev_sync). What ran, and the time that passed, since the last flush or kernels_record(true) is that of
 * `steps` steps; 0: of none, it is left out of the breakdown. */
void kernels_flush(int64_t steps);
void kernels_breakdown(struct breakdown *out);
void kernels_close(void);
#endif
