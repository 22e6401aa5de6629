/* Ranks connect to rank 0, prove that they know the job's secret, and are told where the memory is.
 *
 *   rank 0  -> hello   a nonce
 *   rank    -> join    who it is, of which job; a nonce; HMAC over rank 0's nonce and all of that
 *   rank 0  -> answer  where the memory lies, or why not; HMAC over both nonces and all of that; when all ranks have come
 *
 * So neither side can be played back, and neither believes the other without the secret; over loopback there may be
 * none, and the key is empty. All messages have one size. Rank 0 accepts whoever comes and never waits for one: a
 * connection has five seconds to join, and of more than PENDING_MAX that have not, the oldest goes. */
#include "base/clock.h"
#include "base/hash.h"
#include "base/io.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/launch/rendezvous.h"

#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MEET_S = 60, MEET_S_MAX = 86400, JOIN_S = 5, PENDING_MAX = 4096, HOST = 256, NONCE = 32, MAC = 32 };

struct hello {
    char magic[8];
    uint8_t nonce[NONCE];
};
struct join {
    char magic[8], version[24], machine[HEARTBEAT_HOST];
    uint8_t run[32]; /* of the job, and the number of its restart */
    uint32_t rank, ranks;
    uint8_t nonce[NONCE], mac[MAC];
};
struct answer {
    char magic[8], text[256];
    struct heartbeat_place place;
    uint32_t code, zero; /* a status */
    uint8_t mac[MAC];
};
static_assert(sizeof(struct hello) == 40 && sizeof(struct join) == 296 && sizeof(struct answer) == 328,
              "messages have no padding");
static const char hello_magic[8] = "ingotH1", join_magic[8] = "ingotJ1", answer_magic[8] = "ingotA1";

/* The address of the rendezvous, and what all ranks must agree on. */
struct meeting {
    const struct comm_env *env;
    struct rendezvous_secret secret;
    char host[HOST], port[8];
    int seconds;      /* how long ranks wait for each other */
    struct join mine; /* without nonce and mac */
};

/* ---- the environment */

static int hex_digit(char c)
{
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) % 16 : -1;
}

static status secret_parse(struct rendezvous_secret *s, const char *text, const char *where)
{
    size_t n = strlen(text);
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r')) n--;
    bool bad = n != 2 * sizeof s->bytes;
    for (size_t i = 0; i < n && !bad; i += 2) {
        const int high = hex_digit(text[i]), low = hex_digit(text[i + 1]);
        bad = high < 0 || low < 0;
        s->bytes[i / 2] = (uint8_t)(high << 4 | low);
    }
    if (bad)
        return FAIL(STATUS_CONFIG, "%s: a job's secret has 64 hexadecimal digits (openssl rand -hex 32)",
                    where);
    s->count = sizeof s->bytes;
    return STATUS_OK;
}

static status secret_from_file(struct rendezvous_secret *s, const char *path)
{
    char text[80] = "";
    struct stat st;
    int fd;
    int64_t bytes;
    TRY(io_open(path, LINKS_REFUSE, &fd, &bytes));
    status r = STATUS_OK;
    if (fstat(fd, &st) != 0 || st.st_uid != geteuid() || (st.st_mode & 077) != 0)
        r = FAIL(STATUS_CONFIG,
                 "INGOT_JOB_SECRET_FILE %s: it must be this user's, and nobody else's to read (chmod 600)",
                 path);
    else if (bytes >= (int64_t)sizeof text)
        r = FAIL(STATUS_CONFIG, "INGOT_JOB_SECRET_FILE %s: %lld bytes are no secret of 64 digits", path,
                 (long long)bytes);
    else
        r = io_pread(fd, path, text, (size_t)bytes, 0);
    io_close(&fd);
    return r == STATUS_OK ? secret_parse(s, text, path) : r;
}

status rendezvous_secret_read(struct rendezvous_secret *s)
{
    const char *text = getenv("INGOT_JOB_SECRET"), *path = getenv("INGOT_JOB_SECRET_FILE");
    *s = (struct rendezvous_secret){.count = 0};
    if (text && text[0] && path && path[0])
        return FAIL(STATUS_CONFIG, "INGOT_JOB_SECRET and INGOT_JOB_SECRET_FILE are both set: one of them");
    if (text && text[0]) return secret_parse(s, text, "INGOT_JOB_SECRET");
    return path && path[0] ? secret_from_file(s, path) : STATUS_OK;
}

/* torchrun passes the number of ranks on this host. If that is all ranks, the rendezvous needs no network.
 * torchrun's own store may listen at MASTER_PORT: then ours is the next port. */
static status read_place(struct meeting *m)
{
    const char *host = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    const char *here = getenv("LOCAL_WORLD_SIZE"), *store = getenv("TORCHELASTIC_USE_AGENT_STORE");
    int64_t number, local;
    if (host == NULL || host[0] == 0 || strlen(host) >= sizeof m->host)
        return FAIL(STATUS_CONFIG, "MASTER_ADDR does not say where the %d ranks meet: torchrun sets it",
                    m->env->ranks);
    if (port == NULL || !text_to_int(port, &number) || number < 1 || number > 65534)
        return FAIL(STATUS_CONFIG, "MASTER_PORT=%.20s: it must be a number from 1 to 65534; torchrun sets it",
                    port ? port : "");
    if (here && text_to_int(here, &local) && local == m->env->ranks) host = "127.0.0.1";
    if (store && strcmp(store, "True") == 0) number++;
    snprintf(m->host, sizeof m->host, "%s", host);
    snprintf(m->port, sizeof m->port, "%d", (int)number);
    return STATUS_OK;
}

static status read_patience(int *seconds)
{
    const char *text = getenv("INGOT_RENDEZVOUS_S");
    int64_t n = MEET_S;
    if (text && text[0] && (!text_to_int(text, &n) || n < 1 || n > MEET_S_MAX))
        return FAIL(STATUS_CONFIG, "INGOT_RENDEZVOUS_S=%.20s: it must be a number of seconds from 1 to %d",
                    text, MEET_S_MAX);
    *seconds = (int)n;
    return STATUS_OK;
}

static void read_run(uint8_t out[32])
{
    const char *run = getenv("TORCHELASTIC_RUN_ID"), *restart = getenv("TORCHELASTIC_RESTART_COUNT");
    struct sha256 s;
    sha256_init(&s);
    if (run) sha256_add(&s, run, strlen(run) + 1);
    if (restart) sha256_add(&s, restart, strlen(restart) + 1);
    sha256_raw(&s, out);
}

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static status resolve(const struct meeting *m, struct addrinfo **list)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC};
    const int err = getaddrinfo(m->host, m->port, &hints, list);
    if (err) return FAIL(STATUS_CONFIG, "MASTER_ADDR=%.100s is no address: %s", m->host, gai_strerror(err));
    for (const struct addrinfo *a = *list; a; a = a->ai_next) {
        if (m->secret.count > 0 || is_loopback(a->ai_addr)) continue;
        freeaddrinfo(*list);
        return FAIL(STATUS_CONFIG,
                    "MASTER_ADDR=%.100s can be reached by others: give all ranks the same INGOT_JOB_SECRET "
                    "(openssl rand -hex 32) or INGOT_JOB_SECRET_FILE",
                    m->host);
    }
    return STATUS_OK;
}

/* ---- authentication */

static void prove_join(const struct meeting *m, const uint8_t host_nonce[NONCE], const struct join *j,
                       uint8_t mac[MAC])
{
    struct hmac h;
    hmac_init(&h, m->secret.bytes, m->secret.count);
    sha256_add(&h.inner, host_nonce, NONCE);
    sha256_add(&h.inner, j, offsetof(struct join, mac));
    hmac_end(&h, mac);
}

static void prove_answer(const struct meeting *m, const uint8_t host_nonce[NONCE], const struct join *j,
                         const struct answer *a, uint8_t mac[MAC])
{
    struct hmac h;
    hmac_init(&h, m->secret.bytes, m->secret.count);
    sha256_add(&h.inner, host_nonce, NONCE);
    sha256_add(&h.inner, j->nonce, NONCE);
    sha256_add(&h.inner, a, offsetof(struct answer, mac));
    hmac_end(&h, mac);
}

static status draw_nonce(uint8_t nonce[NONCE])
{
    if (getrandom(nonce, NONCE, 0) == NONCE) return STATUS_OK;
    return FAIL(STATUS_COMM, "no random numbers: %s", strerror(errno));
}

/* ---- rank 0 */

struct guest {
    int fd, rank; /* -1: has not joined */
    double since_s;
    size_t got;
    uint8_t nonce[NONCE]; /* its proof of the secret */
    struct join said;
};
struct host {
    const struct meeting *m;
    int listen;
    struct guest *guests;
    int count, joined, pending_max;
    int silent, liars;               /* strangers: left or said too little in time; do not know the secret */
    char stranger[INET6_ADDRSTRLEN]; /* where the last one came from; "": there was none */
};

/* Small enough for the empty buffer of a socket. */
static void send_answer(const struct host *h, struct guest *g, const struct answer *plain)
{
    struct answer a = *plain;
    memcpy(a.magic, answer_magic, sizeof a.magic);
    prove_answer(h->m, g->nonce, &g->said, &a, a.mac);
    (void)!send(g->fd, &a, sizeof a, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void dismiss(struct host *h, struct guest *g)
{
    close(g->fd);
    *g = h->guests[--h->count];
}

/* Counts a guest that has not joined among the strangers, and dismisses it. */
static void dismiss_stranger(struct host *h, struct guest *g, int *kind)
{
    struct sockaddr_storage from = {0};
    socklen_t bytes = sizeof from;
    ++*kind;
    snprintf(h->stranger, sizeof h->stranger, "an unknown address");
    if (getpeername(g->fd, (struct sockaddr *)&from, &bytes) == 0)
        (void)getnameinfo((struct sockaddr *)&from, bytes, h->stranger, sizeof h->stranger, NULL, 0,
                          NI_NUMERICHOST);
    dismiss(h, g);
}

static void dismiss_oldest(struct host *h)
{
    struct guest *oldest = NULL;
    for (int i = 0; i < h->count; i++) {
        struct guest *g = &h->guests[i];
        if (g->rank < 0 && (oldest == NULL || g->since_s < oldest->since_s)) oldest = g;
    }
    if (oldest) dismiss_stranger(h, oldest, &h->silent);
}

static status bind_to(const struct meeting *m, int *out)
{
    struct addrinfo *list;
    int err = 0;
    const int on = 1;
    TRY(resolve(m, &list));
    *out = -1;
    for (const struct addrinfo *a = list; a && *out < 0; a = a->ai_next) {
        const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
            bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) {
            *out = fd;
        } else {
            err = errno;
            if (fd >= 0) close(fd);
        }
    }
    freeaddrinfo(list);
    if (*out >= 0) return STATUS_OK;
    return FAIL(STATUS_CONFIG,
                "rank 0 cannot listen at %.100s port %s: %s; MASTER_ADDR must be an address of rank 0's "
                "machine, MASTER_PORT free",
                m->host, m->port, strerror(err));
}

/* False: nobody waits to be let in. */
static bool receive_guest(struct host *h)
{
    if (h->count - h->joined >= h->pending_max) dismiss_oldest(h);
    const int fd = accept4(h->listen, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE) dismiss_oldest(h);
        return errno == ECONNABORTED || errno == EINTR;
    }
    struct guest *g = &h->guests[h->count];
    struct hello hello;
    *g = (struct guest){.fd = fd, .rank = -1, .since_s = clock_s()};
    if (draw_nonce(g->nonce) != STATUS_OK) {
        close(fd);
        return true;
    }
    memcpy(hello.magic, hello_magic, sizeof hello.magic);
    memcpy(hello.nonce, g->nonce, NONCE);
    h->count++;
    if (send(fd, &hello, sizeof hello, MSG_NOSIGNAL) != (ssize_t)sizeof hello)
        dismiss_stranger(h, g, &h->silent);
    return true;
}

/* Why a rank that knows the secret cannot join; "" if it can. */
static void object(const struct host *h, const struct join *j, char text[256])
{
    const struct join *mine = &h->m->mine;
    text[0] = 0;
    if (memcmp(j->version, mine->version, sizeof j->version) != 0)
        snprintf(text, 256, "it is another version of ingot than rank 0 (%.23s)", mine->version);
    else if (j->ranks != mine->ranks)
        snprintf(text, 256, "it is one of %u ranks, rank 0 waits for %u", j->ranks, mine->ranks);
    else if (memcmp(j->run, mine->run, sizeof j->run) != 0)
        snprintf(text, 256, "it belongs to another job, or another restart of it (TORCHELASTIC_RUN_ID)");
    else if (j->rank == 0 || j->rank >= mine->ranks)
        snprintf(text, 256, "rank 0 is here already");
    for (int i = 0; i < h->count && text[0] == 0; i++)
        if (h->guests[i].rank == (int)j->rank) snprintf(text, 256, "rank %u is here already", j->rank);
}

/* A join message is complete. */
static void let_in(struct host *h, struct guest *g)
{
    uint8_t mac[MAC];
    char text[256];
    prove_join(h->m, g->nonce, &g->said, mac);
    if (memcmp(g->said.magic, join_magic, sizeof join_magic) != 0 || !hash_equal(mac, g->said.mac)) {
        dismiss_stranger(h, g, &h->liars);
        return;
    }
    for (size_t i = 0; i < sizeof g->said.machine; i++) /* it may be printed */
        if (g->said.machine[i] != 0 && (g->said.machine[i] < ' ' || g->said.machine[i] > '~'))
            g->said.machine[i] = '?';
    g->said.machine[sizeof g->said.machine - 1] = 0;
    object(h, &g->said, text);
    if (text[0] == 0) {
        g->rank = (int)g->said.rank;
        h->joined++;
        return;
    }
    struct answer a = {.code = STATUS_CONFIG};
    snprintf(a.text, sizeof a.text, "rank %u cannot join: %.200s", g->said.rank, text);
    send_answer(h, g, &a);
    log_warn("%s", a.text);
    dismiss(h, g);
}

/* Reads from a guest that has not joined. */
static void hear(struct host *h, struct guest *g)
{
    const ssize_t n = recv(g->fd, (char *)&g->said + g->got, sizeof g->said - g->got, MSG_DONTWAIT);
    if (n > 0) g->got += (size_t)n;
    const bool gone = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
    const bool late = clock_s() - g->since_s > JOIN_S;
    if (g->got == sizeof g->said)
        let_in(h, g);
    else if (gone || late)
        dismiss_stranger(h, g, &h->silent);
}

/* Who else came, for a message: "" or "; 3 strangers ...". Who has not joined is dismissed. */
static void name_strangers(struct host *h, char text[256])
{
    while (h->count > h->joined) dismiss_oldest(h);
    text[0] = 0;
    if (h->silent + h->liars > 0)
        snprintf(text, 256,
                 "; %d strangers connected (%d said too little within %d s, %d without the secret, "
                 "INGOT_JOB_SECRET), the last from %s",
                 h->silent + h->liars, h->silent, JOIN_S, h->liars, h->stranger);
}

static status missing(struct host *h)
{
    char others[256];
    int rank = 1;
    for (int i = 0; i < h->count; i++)
        if (h->guests[i].rank == rank) rank++, i = -1; /* start again: guests are in no order */
    name_strangers(h, others);
    return FAIL(STATUS_COMM, "rank %d did not come to %.100s port %s within %d seconds%s", rank, h->m->host,
                h->m->port, h->m->seconds, others);
}

static status wait_for_all(struct host *h)
{
    struct pollfd *polls = calloc((size_t)h->m->env->ranks + PENDING_MAX + 1, sizeof *polls);
    const double begin = clock_s();
    status st = polls ? STATUS_OK : FAIL(STATUS_OUT_OF_MEMORY, "no memory for the meeting of ranks");
    while (st == STATUS_OK && h->joined < h->m->env->ranks - 1) {
        int count = 0;
        polls[count++] = (struct pollfd){.fd = h->listen, .events = POLLIN};
        for (int i = 0; i < h->count; i++)
            if (h->guests[i].rank < 0)
                polls[count++] = (struct pollfd){.fd = h->guests[i].fd, .events = POLLIN};
        (void)poll(polls, (nfds_t)count, 200);
        for (int i = h->count - 1; i >= 0; i--) /* a dismissed guest is replaced by the last one */
            if (h->guests[i].rank < 0) hear(h, &h->guests[i]);
        for (int i = 0; polls[0].revents && i < PENDING_MAX && receive_guest(h);) i++;
        if (clock_s() - begin > h->m->seconds) st = missing(h);
    }
    free(polls);
    char others[256];
    name_strangers(h, others);
    if (st == STATUS_OK && others[0])
        log_warn("all ranks have come to %.100s port %s%s", h->m->host, h->m->port, others);
    return st;
}

/* All ranks must be on one host to share memory. */
static status same_machine(const struct host *h)
{
    for (int i = 0; i < h->count; i++) {
        const struct join *j = &h->guests[i].said, *mine = &h->m->mine;
        if (h->guests[i].rank < 0 || memcmp(j->machine, mine->machine, sizeof j->machine) == 0) continue;
        return FAIL(STATUS_CONFIG,
                    "rank %u runs on %.*s, rank 0 on %.*s: on CPUs, ranks of several machines are started by "
                    "mpirun or srun --mpi=pmix (ingot with Open MPI)",
                    j->rank, (int)strcspn(j->machine, " "), j->machine, (int)strcspn(mine->machine, " "),
                    mine->machine);
    }
    return STATUS_OK;
}

static status receive_all(const struct meeting *m, int *fd)
{
    struct host h = {.m = m, .listen = -1, .pending_max = PENDING_MAX};
    struct answer a = {.code = STATUS_OK};
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur / 2 < PENDING_MAX)
        h.pending_max = files.rlim_cur > 4 ? (int)files.rlim_cur / 2 : 2;
    h.guests = calloc((size_t)m->env->ranks + PENDING_MAX, sizeof *h.guests);
    status st =
        h.guests ? bind_to(m, &h.listen) : FAIL(STATUS_OUT_OF_MEMORY, "no memory for the meeting of ranks");
    if (st == STATUS_OK) st = wait_for_all(&h);
    if (st == STATUS_OK) st = same_machine(&h);
    if (st == STATUS_OK) st = comm_job_create(m->env->ranks, fd);
    if (st == STATUS_OK) st = heartbeat_place(*fd, &a.place);
    a.code = (uint32_t)st;
    if (st != STATUS_OK) snprintf(a.text, sizeof a.text, "%s", status_message());
    while (h.count > 0) {
        if (h.guests[0].rank > 0) send_answer(&h, &h.guests[0], &a);
        dismiss(&h, &h.guests[0]);
    }
    if (h.listen >= 0) close(h.listen);
    free(h.guests);
    return st;
}

/* ---- ranks other than 0 */

static bool receive(int fd, void *data, size_t bytes)
{
    for (size_t got = 0; got < bytes;) {
        const ssize_t n = recv(fd, (char *)data + got, bytes - got, 0);
        if (n <= 0 && errno != EINTR) return false;
        if (n == 0) return false;
        if (n > 0) got += (size_t)n;
    }
    return true;
}

static void wait_at_most(int fd, int seconds)
{
    const struct timeval t = {.tv_sec = seconds};
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t); /* connect, too */
}

/* Connects and waits for the hello of rank 0; retries until it answers. */
static status go_there(const struct meeting *m, int *out, struct hello *hello)
{
    struct addrinfo *list;
    const double begin = clock_s();
    const char *why = "nobody listens";
    TRY(resolve(m, &list));
    *out = -1;
    while (*out < 0 && clock_s() - begin < m->seconds) {
        for (const struct addrinfo *a = list; a && *out < 0; a = a->ai_next) {
            const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
            if (fd < 0) continue;
            wait_at_most(fd, JOIN_S);
            const bool there = connect(fd, a->ai_addr, a->ai_addrlen) == 0;
            if (there && receive(fd, hello, sizeof *hello) &&
                memcmp(hello->magic, hello_magic, sizeof hello_magic) == 0)
                *out = fd;
            else
                close(fd);
            if (there && *out < 0) why = "something else listens";
        }
        if (*out < 0) usleep(100000);
    }
    freeaddrinfo(list);
    if (*out >= 0) return STATUS_OK;
    return FAIL(STATUS_COMM, "rank %d waits for rank 0 at %.100s port %s for %d seconds: %s there",
                m->env->rank, m->host, m->port, m->seconds, why);
}

static status join_host(const struct meeting *m, int *out)
{
    struct hello hello;
    struct answer a;
    uint8_t mac[MAC];
    struct join j = m->mine;
    int fd;
    TRY(draw_nonce(j.nonce));
    TRY(go_there(m, &fd, &hello));
    prove_join(m, hello.nonce, &j, j.mac);
    wait_at_most(fd, m->seconds + JOIN_S);
    const bool heard = send(fd, &j, sizeof j, MSG_NOSIGNAL) == (ssize_t)sizeof j && receive(fd, &a, sizeof a);
    close(fd);
    if (!heard)
        return FAIL(
            STATUS_COMM,
            "rank 0 at %.100s port %s has ended, or does not let rank %d join: is INGOT_JOB_SECRET the "
            "same for both?",
            m->host, m->port, m->env->rank);
    prove_answer(m, hello.nonce, &j, &a, mac);
    if (memcmp(a.magic, answer_magic, sizeof answer_magic) != 0 || !hash_equal(mac, a.mac))
        return FAIL(STATUS_COMM, "what answers at %.100s port %s does not know the secret of this job",
                    m->host, m->port);
    if (a.code != STATUS_OK) return FAIL((status)a.code, "%.255s", a.text);
    return heartbeat_join(&a.place, out);
}

status rendezvous_open(const struct comm_env *e, int *fd)
{
    struct meeting m = {.env = e};
    TRY(rendezvous_secret_read(&m.secret));
    TRY(read_place(&m));
    TRY(read_patience(&m.seconds));
    if (m.secret.count == 0 && e->rank == 0)
        log_warn("ranks meet at %.100s port %s without a secret, so any process of this machine can pass for "
                 "one: give all the same INGOT_JOB_SECRET (openssl rand -hex 32) or INGOT_JOB_SECRET_FILE",
                 m.host, m.port);
    memcpy(m.mine.magic, join_magic, sizeof join_magic);
    snprintf(m.mine.version, sizeof m.mine.version, "%s", INGOT_VERSION);
    heartbeat_host(m.mine.machine);
    read_run(m.mine.run);
    m.mine.rank = (uint32_t)e->rank;
    m.mine.ranks = (uint32_t)e->ranks;
    return e->rank == 0 ? receive_all(&m, fd) : join_host(&m, fd);
}
