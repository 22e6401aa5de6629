/* A thread per machine. A datagram holds what the board knows of the machine's ranks, a number that only grows, and an
 * HMAC under a key that the ranks got over MPI: what is forged or played back is dropped. */
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "comm/health/heartbeat_udp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define SEND_S   0.25
#define SILENT_S 10.0 /* then a host that has sent nothing is named */

struct datagram {
    char magic[8];
    uint8_t mac[32];
    uint64_t number;
    int32_t first, count;
    struct heartbeat_state ranks[COMM_RANKS_MAX];
};
struct heartbeat_udp {
    int fd;
    struct heartbeat *heartbeat;
    uint8_t key[32];
    int *here, count;                 /* owned */
    struct heartbeat_udp_peer *peers; /* owned */
    uint64_t *heard;                  /* [peer_count] sequence numbers of their last datagrams; owned */
    int peer_count;
    uint64_t number;
    pthread_t thread;
    bool started;
    atomic_bool ending;
    struct datagram out, in;
};
static const char magic[8] = "ingotB1";

/* ---- opening */

static int addresses_of_this_machine(uint32_t out[HEARTBEAT_UDP_ADDRESSES])
{
    struct ifaddrs *list;
    int count = 0;
    if (getifaddrs(&list) != 0) return 0;
    for (const struct ifaddrs *i = list; i && count < HEARTBEAT_UDP_ADDRESSES; i = i->ifa_next) {
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET) continue;
        if (!(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK)) continue;
        out[count++] = ((const struct sockaddr_in *)i->ifa_addr)->sin_addr.s_addr;
    }
    freeifaddrs(list);
    return count;
}

status heartbeat_udp_open(struct heartbeat_udp **out, struct heartbeat_udp_place *place)
{
    struct sockaddr_in any = {.sin_family = AF_INET};
    socklen_t bytes = sizeof any;
    *out = NULL;
    memset(place, 0, sizeof *place);
    if (getrandom(place->key, sizeof place->key, 0) != (ssize_t)sizeof place->key)
        return FAIL(STATUS_COMM, "no random numbers: %s", strerror(errno));
    if (addresses_of_this_machine(place->addresses) == 0) return STATUS_OK;
    struct heartbeat_udp *r = calloc(1, sizeof *r);
    if (r == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the signs of life of other machines");
    r->fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (r->fd < 0 || bind(r->fd, (struct sockaddr *)&any, sizeof any) != 0 ||
        getsockname(r->fd, (struct sockaddr *)&any, &bytes) != 0) {
        status st = FAIL(STATUS_COMM, "no UDP socket for signs of life: %s", strerror(errno));
        heartbeat_udp_close(r);
        return st;
    }
    place->port = any.sin_port;
    *out = r;
    return STATUS_OK;
}

/* ---- the thread */

static size_t bytes_of(const struct datagram *d)
{
    return offsetof(struct datagram, ranks) + (size_t)d->count * sizeof d->ranks[0];
}

static void prove(const struct heartbeat_udp *r, const struct datagram *d, uint8_t mac[32])
{
    struct hmac h;
    hmac_init(&h, r->key, sizeof r->key);
    sha256_add(&h.inner, &d->number, bytes_of(d) - offsetof(struct datagram, number));
    hmac_end(&h, mac);
}

static void send_all(struct heartbeat_udp *r)
{
    struct datagram *d = &r->out;
    memcpy(d->magic, magic, sizeof d->magic);
    d->number = ++r->number;
    d->first = r->here[0];
    d->count = r->count;
    for (int i = 0; i < r->count; i++) heartbeat_state(r->heartbeat, r->here[i], &d->ranks[i]);
    prove(r, d, d->mac);
    for (int p = 0; p < r->peer_count; p++)
        for (int a = 0; a < HEARTBEAT_UDP_ADDRESSES && r->peers[p].place.addresses[a]; a++) {
            const struct sockaddr_in to = {.sin_family = AF_INET,
                                           .sin_port = (in_port_t)r->peers[p].place.port,
                                           .sin_addr = {r->peers[p].place.addresses[a]}};
            if (r->peers[p].place.port)
                (void)!sendto(r->fd, d, bytes_of(d), 0, (const struct sockaddr *)&to, sizeof to);
        }
}

static bool is_here(const struct heartbeat_udp *r, int rank)
{
    for (int i = 0; i < r->count; i++)
        if (r->here[i] == rank) return true;
    return false;
}

static void hear(struct heartbeat_udp *r, ssize_t bytes)
{
    const struct datagram *d = &r->in;
    uint8_t mac[32];
    if (bytes < (ssize_t)offsetof(struct datagram, ranks) || memcmp(d->magic, magic, sizeof magic) != 0)
        return;
    if (d->count < 1 || d->count > COMM_RANKS_MAX || (size_t)bytes != bytes_of(d)) return;
    prove(r, d, mac);
    if (!hash_equal(mac, d->mac)) return;
    for (int p = 0; p < r->peer_count; p++) {
        if (r->peers[p].first != d->first || d->number <= r->heard[p]) continue;
        r->heard[p] = d->number;
        for (int i = 0; i < d->count; i++)
            if (d->ranks[i].rank >= 0 && d->ranks[i].rank < heartbeat_ranks(r->heartbeat) &&
                !is_here(r, d->ranks[i].rank))
                heartbeat_set_state(r->heartbeat, &d->ranks[i]);
    }
}

static void *heartbeat_udp_run(void *arg)
{
    struct heartbeat_udp *r = arg;
    const double begin = clock_s();
    bool told = false;
    double sent_s = 0;
    while (!atomic_load(&r->ending)) {
        struct pollfd wait = {.fd = r->fd, .events = POLLIN};
        (void)poll(&wait, 1, 100);
        for (ssize_t n; (n = recv(r->fd, &r->in, sizeof r->in, 0)) >= 0;) hear(r, n);
        const double now = clock_s();
        if (now - sent_s >= SEND_S) {
            send_all(r);
            sent_s = now;
        }
        for (int p = 0; p < r->peer_count && !told && now - begin > SILENT_S; p++) {
            told = r->heard[p] == 0;
            if (told)
                log_warn("no datagram comes from the machine of rank %d: whether its ranks stand still, this "
                         "machine cannot see",
                         r->peers[p].first);
        }
    }
    return NULL;
}

status heartbeat_udp_start(struct heartbeat_udp *r, struct heartbeat *b, const uint8_t key[32],
                           const int *here, int count, struct heartbeat_udp_peer *peers, int peer_count)
{
    r->heartbeat = b;
    r->peers = peers;
    r->peer_count = peer_count;
    r->count = count;
    memcpy(r->key, key, sizeof r->key);
    r->here = malloc((size_t)count * sizeof *r->here);
    r->heard = calloc((size_t)peer_count, sizeof *r->heard);
    if (r->here == NULL || r->heard == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the signs of life of other machines");
    memcpy(r->here, here, (size_t)count * sizeof *here);
    if (pthread_create(&r->thread, NULL, heartbeat_udp_run, r) != 0)
        return FAIL(STATUS_COMM, "no thread for the signs of life of other machines");
    r->started = true;
    return STATUS_OK;
}

void heartbeat_udp_close(struct heartbeat_udp *r)
{
    if (r == NULL) return;
    atomic_store(&r->ending, true);
    if (r->started) pthread_join(r->thread, NULL);
    if (r->fd >= 0) close(r->fd);
    free(r->here);
    free(r->peers);
    free(r->heard);
    free(r);
}
