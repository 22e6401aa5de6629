/* Packing buffers of the fast CPU kernels. A kernel's packed operands depend on shapes that only the call knows, so each thread
 * keeps one growing buffer per use, allocated when a shape is first met: the one exception to "a step allocates nothing", and it
 * ends with the first step. A buffer is valid until the same thread asks for the same slot again; contents are undefined. */
#ifndef INGOT_OPS_CPU_WORKSPACE_H
#define INGOT_OPS_CPU_WORKSPACE_H
#include <stddef.h>

enum workspace_slot {
    WORKSPACE_SHARED, /* packed by the team, read by the team; belongs to the thread that called the op */
    WORKSPACE_MINE,   /* one worker's own */
    WORKSPACE_SLOTS
};
void *workspace_get(enum workspace_slot slot, size_t bytes); /* 64-byte aligned, never NULL */
#endif
