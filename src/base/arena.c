#include "base/arena.h"

#include <string.h>
#include <sys/mman.h>

static size_t align_up(size_t n)
{
    return (n + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
}

status arena_reserve(struct arena *a, const char *name, size_t size)
{
    *a = (struct arena){.name = name, .size = align_up(size)};
    if (size == 0) return STATUS_OK;
    void *p = mmap(NULL, a->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return FAIL(STATUS_OUT_OF_MEMORY,
                    "no memory for the %s arena: %.1f MiB; `ingot plan` shows what takes it", name,
                    (double)size / 1048576);
    madvise(p, a->size, MADV_HUGEPAGE); /* a hint: its failure costs speed, not correctness */
    a->base = p;
    return STATUS_OK;
}

void arena_attach(struct arena *a, const char *name, void *base, size_t size,
                  void (*release)(void *base, size_t size))
{
    CHECK((base != NULL) == (size > 0), "%s: %zu bytes at %p", name, size, base);
    CHECK(size == align_up(size), "%s: %zu bytes are not aligned", name, size);
    *a = (struct arena){.name = name, .base = base, .size = size, .release = release};
}

void arena_free(struct arena *a)
{
    if (a->base && a->release)
        a->release(a->base, a->size);
    else if (a->base)
        munmap(a->base, a->size);
    *a = (struct arena){.name = a->name};
}

static void *take_at(struct arena *a, size_t at, size_t bytes, const char *what)
{
    CHECK(!a->sealed, "%s: '%s' asks for %zu bytes after start-up", a->name, what, bytes);
    if (bytes > ARENA_BYTES_MAX - at) {
        CHECK(a->base == NULL, "%s: '%s' asks for %zu bytes", a->name, what, bytes);
        bytes = ARENA_BYTES_MAX - at;
    }
    const size_t end = at + align_up(bytes);
    if (end > a->used) a->used = end;
    if (a->used > a->peak) a->peak = a->used, a->peak_what = what;
    if (a->base == NULL) {
        CHECK(a->size == 0, "%s: a reserved arena lost its memory", a->name);
        return NULL;
    }
    CHECK(a->used <= a->size, "%s: '%s' needs %zu of %zu bytes: plan and layout disagree", a->name, what,
          a->used, a->size);
    return a->base + at;
}

void *arena_take(struct arena *a, size_t bytes, const char *what)
{
    return take_at(a, align_up(a->used), bytes, what);
}

void *arena_overlay(struct arena *a, size_t at, size_t bytes, const char *what)
{
    CHECK(at == align_up(at) && at <= a->used, "%s: '%s' at %zu of %zu bytes", a->name, what, at, a->used);
    return take_at(a, at, bytes, what);
}

size_t arena_mark(const struct arena *a)
{
    return a->used;
}

void arena_release(struct arena *a, size_t mark)
{
    CHECK(mark <= a->used, "%s: released to %zu of %zu", a->name, mark, a->used);
#ifdef INGOT_DEBUG
    if (a->base && !a->release) memset(a->base + mark, 0xFF, a->used - mark);
#endif
    a->used = mark;
}
