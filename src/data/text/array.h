/* Growing arrays. */
#ifndef INGOT_DATA_TEXT_ARRAY_H
#define INGOT_DATA_TEXT_ARRAY_H
#include "base/status.h"
#include <stddef.h>

/* Makes room for `need` elements of `size` bytes in *data (a pointer to any T *; NULL with *cap 0 at first);
 * grows at least by half. The array is unchanged when there is no memory: STATUS_FIT. */
status array_grow(void *data, size_t *cap, size_t need, size_t size) WARN_UNUSED;
/* calloc with a status: *data is a pointer to any T *. STATUS_FIT. */
status array_new(void *data, size_t count, size_t size) WARN_UNUSED;
/* For tables that are read all over: every byte is `fill`; from 2 MiB on in huge pages, where a look-up costs one
 * access to memory instead of two. Aligned to 64; free() it. STATUS_FIT. */
status array_new_table(void *data, size_t count, size_t size, int fill) WARN_UNUSED;
#endif
