/* transport: what moves data between ranks through host memory. Two tables: shared memory of one host, and Open MPI between hosts.
 *
 * A collective or message is synchronous: its data are there when the function returns. Every wait ends: STATUS_COMM when a rank dies, hangs
 * or aborts (health/heartbeat.h). To add a transport: a file in host/ with such a table, and a case in comm_open (comm.c). */
#ifndef INGOT_COMM_TRANSPORT_H
#define INGOT_COMM_TRANSPORT_H
#include "comm/comm_int.h"

struct transport {
    const char *name;
    status (*open)(struct comm *world, const struct comm_env *e);
    /* May not return after a failure: mpi ends the job, having said why. */
    void (*close)(struct comm *world, status st);
    status (*collective)(struct comm *c, const struct comm_call *call);
    status (*message)(struct comm *c, const struct comm_call *call);
    /* Collective over parent; c: the group of this rank, NULL: it is in none. */
    status (*split)(struct comm *parent, struct comm *c, int key);
    status (*mail_open)(struct comm *c);
    void (*mail_close)(struct comm *c);         /* after close: messages may be in flight until then */
    /* For plans: bytes of a rank in a job of `ranks`, `here` of them on its host, that is in so many communicators; and of its mail. */
    size_t (*bytes)(int ranks, int here, int groups);
    size_t (*mail_bytes)(const struct mail *m, int ranks);
};
extern const struct transport transport_shm, transport_mpi;
/* The file of shared memory that transport_shm needs. */
size_t transport_shm_bytes(int ranks);

/* An all-gather through host memory that is no part of a step's list of calls. */
status transport_all_gather(struct comm *c, const char *name, const void *mine, void *all, size_t bytes) WARN_UNUSED;
#endif
