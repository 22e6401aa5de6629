/* shared: memory that all ranks of a host map, to exchange data without a collective, for example from threads. */
#ifndef INGOT_COMM_SHARED_H
#define INGOT_COMM_SHARED_H
#include "comm/comm.h"

/* Collective over the world, whose ranks must be on one host (comm_job(world).shares_memory). *base [bytes] is zeroed
 * memory, the same on all ranks. It is reserved, so a later access cannot fail. If it is refused, all ranks return
 * STATUS_OUT_OF_MEMORY. The memory is freed when the last rank has unmapped it or ended. */
status comm_shared_open(struct comm *world, size_t bytes, void **base) WARN_UNUSED;
void comm_shared_close(void *base, size_t bytes); /* NULL is fine */
/* True if an error of one rank has aborted the job; may be called on any thread. NULL: false. */
bool comm_aborted(const struct comm *world);
#endif
