#include "ops/cpu/workspace.h"
#include "base/status.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Per thread and kept between calls, hence file scope; freed when the thread exits. */
struct buffers {
    void *base[WORKSPACE_SLOTS];
    size_t bytes[WORKSPACE_SLOTS];
};
static _Thread_local struct buffers *mine;
static pthread_key_t buffers_key;
static pthread_once_t buffers_once = PTHREAD_ONCE_INIT;

static void buffers_free(void *p)
{
    struct buffers *b = p;
    for (int i = 0; i < WORKSPACE_SLOTS; i++) free(b->base[i]);
    free(b);
}

static void key_make(void)
{
    CHECK(pthread_key_create(&buffers_key, buffers_free) == 0, "no thread-specific keys left");
}

void *workspace_get(enum workspace_slot slot, size_t bytes)
{
    const size_t page = (size_t)2 << 20;
    if (!mine) {
        pthread_once(&buffers_once, key_make);
        mine = calloc(1, sizeof *mine);
        MEMORY_CHECK(mine != NULL, "no memory for packing buffers");
        MEMORY_CHECK(pthread_setspecific(buffers_key, mine) == 0, "no memory for packing buffers");
    }
    if (bytes > mine->bytes[slot] || !mine->base[slot]) {
        size_t size = (bytes + page) / page * page;
        free(mine->base[slot]);
        mine->base[slot] = aligned_alloc(page, size);
        MEMORY_CHECK(mine->base[slot] != NULL, "no memory for a packing buffer of %zu bytes", size);
        (void)madvise(mine->base[slot], size, MADV_HUGEPAGE); /* a hint; small pages work too */
        mine->bytes[slot] = size;
    }
    return mine->base[slot];
}
