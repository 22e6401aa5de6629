/* Arenas: memory by lifetime, laid out once.
 *
 *   counting   base == NULL: take() only adds up. The planner runs the same layout code as the run, so they cannot disagree.
 *   real       arena_reserve() got `size` bytes; take() deals them out, aligned to ARENA_ALIGN.
 *   sealed     after start-up a take() is our bug and aborts.
 *
 * An arena is also a stack: arena_mark() and arena_release() bracket what lives shorter; `peak` keeps the high-water mark, which
 * is what the planner reports. Owners free arenas; nobody frees what lies in them. Debug builds (INGOT_DEBUG) fill released
 * memory with 0xFF, a NaN in f64, f32 and bf16, so that stale reads announce themselves. */
#ifndef INGOT_BASE_ARENA_H
#define INGOT_BASE_ARENA_H
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ARENA_ALIGN = 256 }; /* what GPU libraries like; four cache lines */
/* A counting arena stops there: that fits no machine, and the sum of a few arenas does not overflow. */
#define ARENA_BYTES_MAX ((size_t)1 << 60)

struct arena {
    const char *name;   /* for messages and for the plan */
    char *base;         /* NULL: counting */
    size_t size, used, peak; /* bytes */
    bool sealed;
    const char *peak_what; /* the take() that set the peak */
    void (*release)(void *base, size_t size); /* NULL: the system's memory; else not the host's, never touched here */
};

/* A real arena of `size` bytes from the system, zero-filled, in huge pages where there are any. STATUS_FIT when there is no memory. */
status arena_reserve(struct arena *a, const char *name, size_t size) WARN_UNUSED;
/* The same over memory that somebody else got, such as a GPU's: `release` frees it in arena_free. */
void arena_attach(struct arena *a, const char *name, void *base, size_t size, void (*release)(void *base, size_t size));
void arena_free(struct arena *a);

/* `bytes` from the arena, aligned; NULL in a counting arena. `what` is a literal that names the use. */
void *arena_take(struct arena *a, size_t bytes, const char *what);
/* `bytes` from offset `at` on, a multiple of ARENA_ALIGN, over what was taken there before: for what is needed when that no longer is. */
void *arena_overlay(struct arena *a, size_t at, size_t bytes, const char *what);

size_t arena_mark(const struct arena *a);
void arena_release(struct arena *a, size_t mark);
#endif
