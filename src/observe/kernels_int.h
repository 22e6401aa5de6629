/* Private to the recording of device times: activities, their source, and their sums. */
#ifndef INGOT_OBSERVE_KERNELS_INT_H
#define INGOT_OBSERVE_KERNELS_INT_H
#include "observe/kernels.h"

/* A set of strings: equal texts have the same number, counted from 0. */
enum { NAMES_MAX = 4096 };
struct names {
    int count;
    int *slots;         /* hash table of numbers + 1; NULL before the first name */
    char **text;
};
/* Returns the number of a text, adding it if new; -1 when the set is full. */
int names_find(struct names *n, const char *text);
void names_free(struct names *n);

/* One activity that ran on the device. */
struct activity {
    int64_t start_ns, end_ns;   /* clock_ns() */
    uint64_t node;              /* graph node; 0: not launched by a graph */
    uint32_t stream, correlation;
    int name;                   /* number in a set of names */
    int scope;                  /* number in the set of scopes; -1: not known */
    enum kernel_link link;      /* direction of a copy */
    uint64_t bytes;             /* size of a copy between host and device */
};

/* breakdown.c: sums over all recorded steps. */
struct breakdown_sum {
    int64_t steps, wall_ns, lost;
    int64_t part_ns[KERNEL_PART_COUNT], part_count[KERNEL_PART_COUNT];
    int64_t communication_ns; /* time of communication between ranks, overlapped or not */
    int64_t link_ns[LINK_COUNT], link_count[LINK_COUNT];
    double link_bytes[LINK_COUNT];
    struct breakdown_row {
        int64_t count, ns, alone_ns; /* ns: share of the step; alone_ns: duration of the kernel, whatever else ran */
    } rows[NAMES_MAX];               /* indexed by name */
};
/* Adds the activities of an interval of `wall_ns`, which covers `steps` steps; sorts `a` by start. parts[name] is the
 * part of a name. */
void breakdown_add(struct breakdown_sum *sum, struct activity *a, int64_t count, const enum kernel_part *parts,
                   int64_t wall_ns,
                   int64_t steps);
void breakdown_mean(struct breakdown *out, const struct breakdown_sum *sum, const struct names *names,
                    const enum kernel_part *parts);

/* kernels.c calls the source; the source calls the functions below, on any thread. */
struct kernel_source {
    status (*open)(void);
    status (*record)(bool on);
    void (*flush)(void);    /* delivers all completed activities before it returns */
    void (*close)(void);
};
/* Adds one activity. Name and clock are those of the source: offset_ns is added to both times. */
void kernels_put(const char *name, struct activity a, int64_t offset_ns);
void kernels_put_link(uint32_t correlation, int scope);     /* activities that this call launched belong to `scope` */
/* a graph node belongs to `scope`; the first call for a node counts */
void kernels_put_node(uint64_t node, int scope);
/* a node of the executable graph has the scope of its original */
void kernels_put_clone(uint64_t node, uint64_t original);
void kernels_put_lost(int64_t count);
/* number of the calling thread's scope path without the outermost index; -1: the set is full */
int kernels_scope(void);
/* The CUPTI source (cupti.c, in a build with CUDA); NULL when the toolkit has no CUPTI headers. */
const struct kernel_source *cuda_kernel_source(void);
/* For tests: kernels_open with another source. */
status kernels_open_source(const struct kernel_source *source) WARN_UNUSED;
#endif
