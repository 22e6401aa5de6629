/* heartbeat_udp: heartbeats between hosts. The first rank of each host sends the heartbeats of its ranks to the other
 * hosts over UDP, four times a second, authenticated by HMAC, and copies what it receives into its own heartbeat
 * memory. If no datagram gets through, the ranks of other hosts are not monitored, and one line says so. */
#ifndef INGOT_COMM_HEALTH_HEARTBEAT_UDP_H
#define INGOT_COMM_HEALTH_HEARTBEAT_UDP_H
#include "comm/health/heartbeat.h"

/* The address where a host listens; all zero: nowhere. */
enum { HEARTBEAT_UDP_ADDRESSES = 6 };
struct heartbeat_udp_place {
    uint32_t addresses[HEARTBEAT_UDP_ADDRESSES]; /* IPv4, in network order */
    uint32_t port;                       /* in network order; 0: none */
    uint8_t key[32];                     /* HMAC key; rank 0's is the job's */
};
/* Another host, as announced by its first rank. */
struct heartbeat_udp_peer {
    struct heartbeat_udp_place place;
    int first; /* rank */
};

struct heartbeat_udp;
/* Opens a socket. *out NULL and STATUS_OK: this host has no network. */
status heartbeat_udp_open(struct heartbeat_udp **out, struct heartbeat_udp_place *place) WARN_UNUSED;
/* Starts the thread. here [count]: the ranks of this host. Takes ownership of peers [peer_count], malloc'd. */
status heartbeat_udp_start(struct heartbeat_udp *r, struct heartbeat *b, const uint8_t key[32], const int *here, int count, struct heartbeat_udp_peer *peers, int peer_count) WARN_UNUSED;
void heartbeat_udp_close(struct heartbeat_udp *r); /* NULL is fine */
#endif
