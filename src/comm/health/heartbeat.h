/* heartbeat: shared memory in which each rank of a host publishes a heartbeat, can abort every rank's wait with a
 * reason, and checks its peers while it waits. The transports use it; heartbeat_udp.h extends it over hosts.
 *
 * The job is aborted when a rank's heartbeat stops for COMM_SILENCE_S (the rank is lost), when all ranks wait for
 * COMM_STUCK_S (deadlock), or when a wait lasts COMM_DEADLINE_S (timeout). The first abort wins; every wait then
 * returns STATUS_COMM with its reason. */
#ifndef INGOT_COMM_HEALTH_HEARTBEAT_H
#define INGOT_COMM_HEALTH_HEARTBEAT_H
#include "comm/health/flight_recorder.h"

struct heartbeat;
size_t heartbeat_bytes(int ranks); /* whole pages */
/* Creates a file of shared memory that begins with a heartbeat area and that children inherit. bytes: size of the whole
 * file. */
status heartbeat_create(int ranks, size_t bytes, int *fd) WARN_UNUSED;
/* How another process of this host and user opens the file, and a nonce that proves it is the right one. */
struct heartbeat_place {
    int32_t pid, fd;
    uint8_t nonce[16];
};
status heartbeat_place(int fd, struct heartbeat_place *p) WARN_UNUSED;
status heartbeat_join(const struct heartbeat_place *p, int *fd) WARN_UNUSED;
/* Identifies a host, or a container on it: equal for processes that can share memory. Begins with the host name. */
enum { HEARTBEAT_HOST = 160 };
void heartbeat_host(char name[HEARTBEAT_HOST]);

bool heartbeat_fits(const struct heartbeat *b, int ranks, size_t bytes);
int heartbeat_ranks(const struct heartbeat *b);
struct flight_recorder *heartbeat_flight(struct heartbeat *b);
bool heartbeat_left(const struct heartbeat *b, int rank); /* left without an error */
/* Aborts all waits with a reason. The first abort wins: false for later ones. */
bool heartbeat_abort(struct heartbeat *b, const char *text);
bool heartbeat_aborted(const struct heartbeat *b);
void heartbeat_abort_reason(struct heartbeat *b, char text[COMM_TEXT]); /* "": not aborted */

/* The state of one rank, sent to other hosts. */
struct heartbeat_state {
    int32_t rank, pid;
    uint32_t beats, progress;
    int32_t waits, ended;
};
void heartbeat_state(const struct heartbeat *b, int rank, struct heartbeat_state *life);
void heartbeat_set_state(struct heartbeat *b, const struct heartbeat_state *life); /* for a rank on another host */

/* A rank's monitor: the thread that publishes its heartbeat, and what it last saw of its peers. */
struct rank_monitor;
status rank_monitor_open(struct rank_monitor **out, struct heartbeat *b, int rank) WARN_UNUSED;
/* If st is an error, aborts the waits of all ranks. Returns true if this rank was the first to abort. Does nothing for
 * NULL. */
bool rank_monitor_close(struct rank_monitor *w, status st);
/* Waits until all ranks have started, with a timeout of one minute. */
status rank_monitor_wait_all(struct rank_monitor *w) WARN_UNUSED;
/* True if this host has more ranks than cores for them: a rank that spins then keeps the rank it waits for off its
 * core. Returns false until every rank has started. */
bool rank_monitor_crowded(struct rank_monitor *w);
/* Call these around a wait for other ranks, and rank_monitor_check a few times per second inside it. STATUS_COMM: the
 * job was aborted, a rank is lost, a deadlock, or a timeout. */
void rank_monitor_wait_begin(struct rank_monitor *w);
void rank_monitor_wait_end(struct rank_monitor *w);
bool rank_monitor_aborted(const struct rank_monitor *w); /* may be called on any thread */
double rank_monitor_waited_s(const struct rank_monitor *w); /* seconds spent in such waits so far */
int rank_monitor_straggler(const struct rank_monitor *w); /* the lowest rank that does not wait while this one does; -1:
                                                             none */
status rank_monitor_check(struct rank_monitor *w, const struct comm *c, const struct comm_call *call) WARN_UNUSED;
/* From now on the heartbeat thread checks the peers too. If the job is aborted and this rank does not notice within
 * GUARD_S, the thread ends the process with the reason and STATUS_COMM's exit code: a full launch queue of a GPU blocks
 * the main thread forever. */
void rank_monitor_guard(struct rank_monitor *w);
/* Aborts all waits because `rank` (among all) is lost; returns STATUS_COMM. */
status rank_monitor_lost(struct rank_monitor *w, int rank, const char *what, const struct comm *c,
                         const struct comm_call *call);
#endif
