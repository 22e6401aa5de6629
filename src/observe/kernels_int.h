/* Private to the recording of device times: activities, where they come from, and their sums. */
#ifndef INGOT_OBSERVE_KERNELS_INT_H
#define INGOT_OBSERVE_KERNELS_INT_H
#include "observe/kernels.h"

/* A set of strings: equal texts have one number, from 0 on. */
enum { NAMES_MAX = 4096 };
struct names {
    int count;
    int *slots;         /* hash table of numbers + 1; NULL before the first name */
    char **text;
};
/* -1 when the set is full. */
int names_find(struct names *n, const char *text);
void names_free(struct names *n);

/* One thing that ran on the device. */
struct activity {
    int64_t start_ns, end_ns;   /* clock_ns() */
    uint64_t node;              /* of a graph; 0: not launched by one */
    uint32_t stream, correlation;
    int name;                   /* in a set of names */
    int scope;                  /* in another; -1: not known */
    enum kernel_link link;      /* of a copy */
    uint64_t bytes;             /* of a copy with a link */
};

/* breakdown.c: sums over all recorded steps. */
struct breakdown_sum {
    int64_t steps, wall_ns, lost;
    int64_t part_ns[KERNEL_PART_COUNT], part_count[KERNEL_PART_COUNT];
    int64_t exchange_ns; /* exchanges were under way, hidden or not */
    int64_t link_ns[LINK_COUNT], link_count[LINK_COUNT];
    double link_bytes[LINK_COUNT];
    struct breakdown_row {
        int64_t count, ns, alone_ns; /* ns: of the step, alone_ns: of the kernel, whatever ran beside it */
    } rows[NAMES_MAX];               /* by name */
};
/* Adds what ran in `wall_ns`, which is the time of `steps` steps; sorts `a` by start. parts[name] says what a name is for. */
void breakdown_add(struct breakdown_sum *sum, struct activity *a, int64_t count, const enum kernel_part *parts, int64_t wall_ns,
                   int64_t steps);
void breakdown_mean(struct breakdown *out, const struct breakdown_sum *sum, const struct names *names,
                    const enum kernel_part *parts);

/* kernels.c calls the source, the source calls these, on any thread: */
struct kernel_source {
    status (*open)(void);
    status (*record)(bool on);
    void (*flush)(void);    /* delivers all that is done; returns when it is delivered */
    void (*close)(void);
};
/* One activity; name and clock are still the source's: offset_ns is added to both times. */
void kernels_put(const char *name, struct activity a, int64_t offset_ns);
void kernels_put_link(uint32_t correlation, int scope);     /* what that call launched is of this scope */
void kernels_put_node(uint64_t node, int scope);            /* a graph's node; the first scope that is said for it counts */
void kernels_put_clone(uint64_t node, uint64_t original);   /* a node of the executable graph: of the original's scope */
void kernels_put_lost(int64_t count);
int kernels_scope(void);        /* number of the calling thread's scope path, without the outermost index; -1: the set is full */
/* CUPTI (cupti.c, in a build with CUDA); NULL when the toolkit had no headers of it. */
const struct kernel_source *cuda_kernel_source(void);
/* For tests: kernels_open with another source. */
status kernels_open_source(const struct kernel_source *source) WARN_UNUSED;
#endif
