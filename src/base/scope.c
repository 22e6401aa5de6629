#include "base/scope.h"
#include "base/clock.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { DEPTH_MAX = 32 };
struct frame {
    const char *name;
    int64_t idx, start_ns;
};
static _Thread_local struct frame frames[DEPTH_MAX];
static _Thread_local int depth;
static _Thread_local int thread_id = -1;
static atomic_int thread_count;

/* The sink is process-wide: a trace shows all threads of the run. */
static scope_sink_fn *_Atomic sink_fn;
static void *_Atomic sink_ctx;
static _Atomic int64_t sink_set_ns; /* starts of the scopes that are open */

/* The range listener is process-wide for the same reason. */
static void (*_Atomic range_push)(const char *name, int64_t idx);
static void (*_Atomic range_pop)(void);

void scope_sink_set(scope_sink_fn *sink, void *ctx)
{
    sink_fn = NULL;
    sink_ctx = ctx;
    sink_set_ns = clock_ns();
    sink_fn = sink;
}

void scope_range_set(void (*push)(const char *name, int64_t idx), void (*pop)(void))
{
    range_push = NULL;
    range_pop = pop;
    range_push = push;
}

struct scope scope_open(const char *name, int64_t idx)
{
    if (depth < DEPTH_MAX) frames[depth] = (struct frame){name, idx, sink_fn ? clock_ns() : 0};
    depth++;
    void (*push)(const char *, int64_t) = atomic_load_explicit(&range_push, memory_order_acquire);
    if (push) push(name, idx);
    return (struct scope){push != NULL};
}

void scope_close(struct scope *s)
{
    void (*pop)(void) = s->pushed ? range_pop : NULL;
    if (pop) pop();
    depth--;
    scope_sink_fn *fn = sink_fn;
    if (fn == NULL || depth >= DEPTH_MAX) return;
    if (thread_id < 0) thread_id = atomic_fetch_add(&thread_count, 1);
    const struct frame *f = &frames[depth];
    int64_t start_ns = f->start_ns ? f->start_ns : sink_set_ns;
    fn(&(struct scope_event){f->name, f->idx, start_ns, clock_ns(), thread_id, depth}, sink_ctx);
}

void scope_path(char *out, size_t size)
{
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < depth && i < DEPTH_MAX && at + 1 < size; i++) {
        const char *sep = i ? " > " : "";
        int n = frames[i].idx >= 0 ? snprintf(out + at, size - at, "%s%s %lld", sep, frames[i].name,
                                              (long long)frames[i].idx)
                                   : snprintf(out + at, size - at, "%s%s", sep, frames[i].name);
        if (n < 0) break;
        at += (size_t)n < size - at ? (size_t)n : size - at - 1;
    }
}

const char *scope_within(const char *const *names, int count)
{
    for (int i = 0; i < depth && i < DEPTH_MAX; i++)
        for (int k = 0; k < count; k++)
            if (strcmp(frames[i].name, names[k]) == 0) return names[k];
    return NULL;
}
