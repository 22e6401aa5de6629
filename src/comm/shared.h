/* shared: memory that all ranks of a host map. For what goes between them without a collective, such as by threads. */
#ifndef INGOT_COMM_SHARED_H
#define INGOT_COMM_SHARED_H
#include "comm/comm.h"

/* Collective over the world, whose ranks are on one host (comm_job(world).memory). *base [bytes], zeroed, on all ranks
 * the same memory; it is reserved, so that a later access cannot fail. On all ranks alike STATUS_FIT when it is
 * refused. It goes away when the last rank has unmapped it or ended. */
status comm_shared_open(struct comm *world, size_t bytes, void **base) WARN_UNUSED;
void comm_shared_close(void *base, size_t bytes); /* NULL is fine */
/* Whether the ranks end because of an error of one of them; on any thread. NULL: no. */
bool comm_aborted(const struct comm *world);
#endif
