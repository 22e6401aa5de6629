/* Arenas: memory grouped by lifetime, laid out once at start.
 *
 *   counting   base == NULL: arena_take() only adds up sizes. The planner runs the layout code of the run itself; plan
 *              and run therefore agree.
 *   real       arena_reserve() allocated `size` bytes; arena_take() hands them out, aligned to ARENA_ALIGN.
 *   sealed     after start-up an arena_take() is a bug in ingot and aborts.
 *
 * An arena is also a stack: arena_mark() and arena_release() bracket allocations of shorter lifetime. `peak` is the
 * high-water mark, which the planner reports. The owner of an arena frees it; what was taken from it is never freed
 * on its own. Debug builds (INGOT_DEBUG) fill released memory with 0xFF, a NaN in f64, f32 and bf16, which makes
 * stale reads visible. */
#ifndef INGOT_BASE_ARENA_H
#define INGOT_BASE_ARENA_H
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ARENA_ALIGN = 256 }; /* the alignment that GPU libraries expect; four cache lines */
/* Limit of a counting arena: more than any machine has, and the sum of a few arenas does not overflow. */
#define ARENA_BYTES_MAX ((size_t)1 << 60)

struct arena {
    const char *name;   /* for messages and for the plan */
    char *base;         /* NULL: counting */
    size_t size, used, peak; /* bytes */
    bool sealed;
    const char *peak_what; /* the take() that set the peak */
    /* NULL: host memory of the system; else device memory, which the arena never reads or writes */
    void (*release)(void *base, size_t size);
};

/* Allocates a real arena of `size` zeroed bytes from the system, in huge pages where available. STATUS_OUT_OF_MEMORY
 * without memory. */
status arena_reserve(struct arena *a, const char *name, size_t size) WARN_UNUSED;
/* Makes an arena over memory that the caller allocated, such as a GPU's. arena_free calls `release` to free it. */
void arena_attach(struct arena *a, const char *name, void *base, size_t size, void (*release)(void *base, size_t size));
void arena_free(struct arena *a);

/* Takes `bytes` from the arena, aligned; returns NULL in a counting arena. `what` is a string literal that names the
 * use. */
void *arena_take(struct arena *a, size_t bytes, const char *what);
/* Reuses `bytes` from offset `at` (a multiple of ARENA_ALIGN) of memory taken earlier. The two uses must not overlap
 * in time. */
void *arena_overlay(struct arena *a, size_t at, size_t bytes, const char *what);

size_t arena_mark(const struct arena *a);
void arena_release(struct arena *a, size_t mark);
#endif
