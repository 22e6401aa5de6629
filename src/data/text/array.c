#include "data/text/array.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* `data` points to a pointer of another type: memcpy is the only portable way to read and write it. */
status array_grow(void *data, size_t *cap, size_t need, size_t size)
{
    if (need <= *cap) return STATUS_OK;
    size_t want = *cap + *cap / 2 + 16, bytes;
    if (want < need) want = need;
    void *old, *new = NULL;
    memcpy(&old, data, sizeof old);
    if (!__builtin_mul_overflow(want, size, &bytes)) new = realloc(old, bytes);
    if (new == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %zu elements of %zu bytes", want, size);
    memcpy(data, &new, sizeof new);
    *cap = want;
    return STATUS_OK;
}

status array_new(void *data, size_t count, size_t size)
{
    void *new = calloc(count != 0 ? count : 1, size);
    if (new == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %zu elements of %zu bytes", count, size);
    memcpy(data, &new, sizeof new);
    return STATUS_OK;
}

status array_new_table(void *data, size_t count, size_t size, int fill)
{
    const size_t huge = 2 << 20;
    size_t bytes = 0, align = 64;
    void *new = NULL;
    if (!__builtin_mul_overflow(count, size, &bytes) && bytes < SIZE_MAX / 2) {
        if (bytes >= huge) align = huge;
        bytes = (bytes + align - 1) / align * align;
        new = aligned_alloc(align, bytes != 0 ? bytes : align);
    }
    if (new == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %zu elements of %zu bytes", count, size);
    if (align == huge) (void)madvise(new, bytes, MADV_HUGEPAGE); /* a hint: small pages work too */
    memset(new, fill, bytes);
    memcpy(data, &new, sizeof new);
    return STATUS_OK;
}
