/* One scope, three uses: SCOPE("block.bwd", layer) is a timer (step breakdown, Chrome trace), a frame of the error
 * record and, with CUDA, an NVTX range. Scopes nest per thread and close when the enclosing C block ends.
 *
 * Cost: two pointer writes without a sink; two clock reads and a call with one. */
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

/* Sets the sink that receives every closed scope of every thread; NULL switches timing off. For a scope that was
 * already open, time starts when the sink is set; scopes therefore nest without gaps. The sink is called on the
 * thread that closes the scope and must be thread safe. Set it only while no other thread has a scope open. */
void scope_sink_set(scope_sink_fn *sink, void *ctx);

/* Sets a listener for every opening and closing of a scope, on its thread: ranges for a profiler (NVTX), ids for
 * CUPTI. `push` runs after the scope is on the stack; scope_path() includes it. A scope opened without a listener is
 * not popped. Both NULL: no listener, and a scope costs at most one load. One listener per process. */
void scope_range_set(void (*push)(const char *name, int64_t idx), void (*pop)(void));

/* "train.step 12 > block.bwd 3", outermost first; "" outside any scope. Writes at most `size` bytes with the
 * terminator. */
void scope_path(char *out, size_t size);

/* Of the open scopes of this thread, the name of the outermost one that is in `names`; NULL: none is. */
const char *scope_within(const char *const *names, int count);

struct scope { int pushed; };      /* 1: the range listener's push was called */
struct scope scope_open(const char *name, int64_t idx);
void scope_close(struct scope *s);

#define SCOPE_CAT2(a, b) a##b
#define SCOPE_CAT(a, b) SCOPE_CAT2(a, b)
#define SCOPE(name, idx)                                                                                               \
    __attribute__((cleanup(scope_close), unused)) struct scope SCOPE_CAT(scope_, __LINE__) = scope_open((name), (idx))
#endif
