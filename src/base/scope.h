/* One scope, three uses: SCOPE("block.bwd", layer) is a timer (step breakdown, Chrome trace), a frame of the error record and,
 * with CUDA, an NVTX range. Scopes nest per thread and close when the enclosing C block ends.
 *
 * Cost: two pointer writes when nobody listens; two clock reads and a call when a sink does. */
#ifndef INGOT_BASE_SCOPE_H
#define INGOT_BASE_SCOPE_H
#include <stddef.h>
#include <stdint.h>

struct scope_event {        /* one closed scope */
    const char *name;       /* the literal given to SCOPE: compare by pointer or by text, never freed */
    int64_t idx;            /* layer, micro-batch, ...; -1 when none */
    int64_t start_ns, end_ns; /* clock_ns() */
    int thread;             /* small id: 0 is the first thread that opened a scope */
    int depth;              /* 0 outermost */
};

typedef void scope_sink_fn(const struct scope_event *event, void *ctx);

/* Receives every closed scope of every thread while set; NULL switches timing off. A scope that was open already when the sink was set
 * starts then, so that what a sink sees nests without holes. The sink is called on the thread that closes
 * the scope and must be thread safe. Set it only while no scope is open on other threads. */
void scope_sink_set(scope_sink_fn *sink, void *ctx);

/* Called at every opening and closing of a scope, on its thread: ranges for a profiler (NVTX), ids for CUPTI. `push` runs when the scope
 * is on the stack already, so scope_path() includes it. A scope that was opened without a listener is not popped. Both NULL: nobody
 * listens, and a scope costs no more than one load. One listener per process. */
void scope_range_set(void (*push)(const char *name, int64_t idx), void (*pop)(void));

/* "train.step 12 > block.bwd 3", outermost first; "" outside any scope. Writes at most `size` bytes with the terminator. */
void scope_path(char *out, size_t size);

struct scope { int pushed; };      /* 1: the range listener has been told of it */
struct scope scope_open(const char *name, int64_t idx);
void scope_close(struct scope *s);

#define SCOPE_CAT2(a, b) a##b
#define SCOPE_CAT(a, b) SCOPE_CAT2(a, b)
#define SCOPE(name, idx)                                                                                               \
    __attribute__((cleanup(scope_close), unused)) struct scope SCOPE_CAT(scope_, __LINE__) = scope_open((name), (idx))
#endif
