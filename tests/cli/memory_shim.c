/* Preloaded into ingot: the k-th request for memory is refused.
 *
 *   MEMORY_FAULT=K         the K-th, from 1, of malloc, calloc, realloc, aligned_alloc, posix_memalign, strdup, mmap together
 *   MEMORY_FAULT=K:on      that one and all later ones
 *   MEMORY_COUNT=FILE      writes at the end how many there were
 *
 * Requests of the dynamic loader and before main, of the C library for itself, and of threads' stacks do not come here. */
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *p, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);

static _Atomic long calls;
static long at = -1;
static bool from_there_on;

__attribute__((constructor)) static void begin(void)
{
    const char *fault = getenv("MEMORY_FAULT");
    char *end;
    atomic_store(&calls, 0);
    if (fault == NULL) return;
    at = strtol(fault, &end, 10);
    from_there_on = strcmp(end, ":on") == 0;
}

__attribute__((destructor)) static void end(void)
{
    const long count = atomic_load(&calls);
    const char *path = getenv("MEMORY_COUNT");
    FILE *f = path ? fopen(path, "w") : NULL;
    if (f == NULL) return;
    fprintf(f, "%ld\n", count);
    fclose(f);
}

static bool refused(void)
{
    const long call = atomic_fetch_add(&calls, 1) + 1;
    if (at < 0 || (from_there_on ? call < at : call != at)) return false;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t bytes)
{
    return refused() ? NULL : __libc_malloc(bytes);
}
void *calloc(size_t count, size_t size)
{
    return refused() ? NULL : __libc_calloc(count, size);
}
void *realloc(void *p, size_t bytes)
{
    return refused() ? NULL : __libc_realloc(p, bytes);
}
void *aligned_alloc(size_t align, size_t bytes)
{
    return refused() ? NULL : __libc_memalign(align, bytes);
}
int posix_memalign(void **p, size_t align, size_t bytes)
{
    *p = refused() ? NULL : __libc_memalign(align, bytes);
    return *p ? 0 : ENOMEM;
}
char *strdup(const char *text)
{
    char *copy = refused() ? NULL : __libc_malloc(strlen(text) + 1);
    return copy ? memcpy(copy, text, strlen(text) + 1) : NULL;
}
void *mmap(void *where, size_t bytes, int protection, int flags, int fd, off_t from)
{
    return refused() ? MAP_FAILED : (void *)syscall(SYS_mmap, where, bytes, protection, flags, fd, from);
}
