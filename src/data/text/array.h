/* Growing arrays. */
#ifndef INGOT_DATA_TEXT_ARRAY_H
#define INGOT_DATA_TEXT_ARRAY_H
#include "base/status.h"
#include <stddef.h>

/* Grows *data (a pointer to any T *; NULL with *cap 0 at first) to a capacity of at least `need` elements of `size`
 * bytes, by at least half. STATUS_OUT_OF_MEMORY without memory; the array is then unchanged. */
status array_grow(void *data, size_t *cap, size_t need, size_t size) WARN_UNUSED;
/* calloc with a status: *data is a pointer to any T *. STATUS_OUT_OF_MEMORY. */
status array_new(void *data, size_t count, size_t size) WARN_UNUSED;
/* Allocates a table with random access; every byte is `fill`. From 2 MiB on it uses huge pages, where a look-up costs
 * one memory access instead of two. Aligned to 64; the caller calls free(). STATUS_OUT_OF_MEMORY. */
status array_new_table(void *data, size_t count, size_t size, int fill) WARN_UNUSED;
#endif
