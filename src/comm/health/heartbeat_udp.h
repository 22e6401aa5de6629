/* Signs of life between machines: the first rank of each sends those of its machine's ranks to the others, over UDP, and puts what comes in
 * on its own board. Where no datagram gets through, ranks of other machines are not watched, and one line says so. */
#ifndef INGOT_COMM_HEALTH_HEARTBEAT_UDP_H
#define INGOT_COMM_HEALTH_HEARTBEAT_UDP_H
#include "comm/health/heartbeat.h"

/* Where a machine hears; all zero: nowhere. */
enum { RELAY_ADDRESSES = 6 };
struct relay_place {
    uint32_t addresses[RELAY_ADDRESSES]; /* IPv4, in network order */
    uint32_t port;                       /* likewise; 0: none */
    uint8_t key[32];                     /* rank 0's is that of the job */
};
/* Ranks of other machines, as their first rank said it; and which of them are here. */
struct relay_peer {
    struct relay_place place;
    int first; /* rank */
};

struct relay;
/* A socket, and where it is. *out NULL and STATUS_OK: this machine has no network. */
status relay_open(struct relay **out, struct relay_place *place) WARN_UNUSED;
/* Begins to send and to hear. `here` [count]: the ranks of this machine. Takes `peers` [peer_count], malloc'd. */
status relay_start(struct relay *r, struct board *b, const uint8_t key[32], const int *here, int count, struct relay_peer *peers, int peer_count) WARN_UNUSED;
void relay_close(struct relay *r); /* NULL is fine */
#endif
