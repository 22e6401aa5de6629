/* Packing buffers of the fast CPU kernels. The size of a packed operand depends on shapes that only the call knows.
 * So each thread keeps one growing buffer per slot and allocates it when a shape first occurs. This is the only
 * exception to "a step allocates nothing", and only the first step allocates. A buffer is valid until the same thread
 * requests the same slot again; its contents are undefined. */
#ifndef INGOT_OPS_CPU_WORKSPACE_H
#define INGOT_OPS_CPU_WORKSPACE_H
#include <stddef.h>

enum workspace_slot {
    WORKSPACE_SHARED, /* packed and read by all threads; belongs to the thread that called the op */
    WORKSPACE_MINE,   /* private to one thread */
    WORKSPACE_DECODED, /* codes of experts as values; belongs to the thread that called the op */
    WORKSPACE_SLOTS
};
void *workspace_get(enum workspace_slot slot, size_t bytes); /* 64-byte aligned, never NULL */
#endif
