/* transport: moves data between ranks through host memory. There are two tables of functions: shared memory on one
 * host, and Open MPI between hosts.
 *
 * A collective or message is synchronous: its data have arrived when the function returns. Every wait ends: STATUS_COMM
 * when a rank dies, hangs or aborts (health/heartbeat.h). To add a transport: docs/howto/transport.md. GPUs have
 * gpu/device_comm.h. */
#ifndef INGOT_COMM_TRANSPORT_H
#define INGOT_COMM_TRANSPORT_H
#include "comm/comm_int.h"

struct host_transport {
    const char *name;
    status (*open)(struct comm *world, const struct comm_env *e);
    /* May not return after a failure: mpi logs the reason and ends the job. */
    void (*close)(struct comm *world, status st);
    status (*collective)(struct comm *c, const struct comm_call *call);
    status (*message)(struct comm *c, const struct comm_call *call);
    /* Collective over parent; c: the group of this rank; NULL: this rank is in no group. */
    status (*split)(struct comm *parent, struct comm *c, int key);
    status (*mailbox_open)(struct comm *c);
    void (*mailbox_close)(struct comm *c);      /* after close: messages may be in flight until then */
    /* For the planner: transport memory of one rank, given job size, ranks on its host, and its number of
     * communicators. mailbox_bytes: the same for the mailboxes. */
    size_t (*bytes)(int ranks, int here, int groups);
    size_t (*mailbox_bytes)(const struct mailbox *m, int ranks);
};
extern const struct host_transport transport_shm, transport_mpi;
/* Bytes of the shared-memory file that transport_shm needs. */
size_t transport_shm_bytes(int ranks);

/* An all-gather through host memory that is not part of a step's list of calls. */
status transport_all_gather(struct comm *c, const char *name, const void *mine, void *all, size_t bytes) WARN_UNUSED;
#endif
