/* Ranks of one machine over one piece of shared memory: a slot per rank (how far it is, what it calls, a heartbeat), and a buffer per
 * rank that collectives pass through. Copies cost two passes over memory; a barrier is a counter per rank and a futex. */
#include "base/clock.h"
#include "comm/comm_int.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    MAGIC = 0x69676331,
    BUFFER_BYTES =
        4 << 20, /* of each rank: large enough for memory's rate, small enough to stay in a cache */
    SPINS = 2000,
    OPEN_S = 60
};
#define BEAT_S 0.25

/* One rank's, on its own cache lines. */
struct slot {
    _Alignas(128) atomic_uint arrived; /* barriers passed; a futex */
    atomic_uint beats;
    atomic_int pid;
    atomic_int ended;                      /* left in good order */
    _Alignas(128) struct comm_header call; /* written before the barrier that publishes it */
};
struct shared {
    uint32_t magic;
    int32_t ranks;
    uint64_t bytes;
    atomic_int abort; /* 0, 1: being written, 2: abort_text is there */
    char abort_text[COMM_TEXT];
    struct slot slots[];
};

/* How long a rank was watched without a sign of life. Time in which this process itself stood still does not count. */
struct watch {
    unsigned beats;
    double silent_s;
};

struct local {
    struct shared *shared;
    char *buffers;
    int rank, ranks;
    unsigned barriers;
    uint64_t sequence;
    struct watch *watches; /* [ranks], owned */
    pthread_t heart;
    bool heart_started;
    pthread_mutex_t lock;
    pthread_cond_t end;
    bool ending;
    pid_t parent; /* whoever started the ranks */
};

static size_t slots_bytes(int ranks)
{
    size_t bytes = sizeof(struct shared) + (size_t)ranks * sizeof(struct slot);
    return (bytes + 4095) / 4096 * 4096;
}
static size_t shared_bytes(int ranks)
{
    return slots_bytes(ranks) + (size_t)ranks * BUFFER_BYTES;
}

status comm_local_create(int ranks, int *fd)
{
    CHECK(ranks > 1 && ranks <= COMM_RANKS_MAX, "%d ranks", ranks);
    const size_t bytes = shared_bytes(ranks);
    *fd = memfd_create("ingot", 0);
    if (*fd < 0) return FAIL(STATUS_COMM, "no shared memory for the ranks: %s", strerror(errno));
    if (ftruncate(*fd, (off_t)bytes) != 0) {
        int err = errno;
        close(*fd);
        return FAIL(STATUS_FIT, "no %zu bytes of shared memory for %d ranks: %s", bytes, ranks,
                    strerror(err));
    }
    const struct shared head = {.magic = MAGIC, .ranks = ranks, .bytes = bytes};
    if (pwrite(*fd, &head, sizeof head, 0) != (ssize_t)sizeof head) {
        close(*fd);
        return FAIL(STATUS_FIT, "no shared memory for %d ranks", ranks);
    }
    return STATUS_OK;
}

/* ---- ending together */

static void futex(atomic_uint *word, int op, unsigned value, const struct timespec *timeout)
{
    syscall(SYS_futex, word, op, value, timeout, NULL, 0);
}

/* The first one says why: false for the others. */
static bool abort_all(struct shared *s, const char *text)
{
    int nobody = 0;
    if (!atomic_compare_exchange_strong(&s->abort, &nobody, 1)) return false;
    snprintf(s->abort_text, sizeof s->abort_text, "%s", text);
    atomic_store(&s->abort, 2);
    for (int i = 0; i < s->ranks; i++) futex(&s->slots[i].arrived, FUTEX_WAKE, INT32_MAX, NULL);
    return true;
}

/* The memory of a job, for a process that is none of its ranks; NULL: it is not there. */
static struct shared *visit(int fd, size_t *bytes)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return NULL;
    *bytes = (size_t)st.st_size;
    void *s = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return s == MAP_FAILED ? NULL : s;
}

void comm_local_abort(int fd, const char *fmt, ...)
{
    char text[COMM_TEXT];
    size_t bytes;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    struct shared *s = visit(fd, &bytes);
    if (s == NULL) return;
    abort_all(s, text);
    munmap(s, bytes);
}

void comm_local_reason(int fd, char text[COMM_TEXT])
{
    size_t bytes;
    struct shared *s = visit(fd, &bytes);
    text[0] = 0;
    if (s == NULL) return;
    if (atomic_load(&s->abort) == 2) snprintf(text, COMM_TEXT, "%s", s->abort_text);
    munmap(s, bytes);
}

/* ---- waiting */

static status aborted(const struct local *l, const struct comm_call *call)
{
    char text[COMM_TEXT];
    while (atomic_load(&l->shared->abort) == 1) sched_yield();
    snprintf(text, sizeof text, "%s", l->shared->abort_text);
    return FAIL(STATUS_COMM, "%s; seen in collective %llu, %s '%s'", text, (unsigned long long)l->sequence,
                comm_op_text(call->op), call->name);
}

/* The rank that is waited for has died or stands still: everybody is told. */
static status lost(const struct local *l, int rank, const char *what, const struct comm_call *call)
{
    char text[COMM_TEXT];
    snprintf(text, sizeof text, "rank %d (process %d) %s; rank %d waits for it in collective %llu, %s '%s'",
             rank, atomic_load(&l->shared->slots[rank].pid), what, l->rank, (unsigned long long)l->sequence,
             comm_op_text(call->op), call->name);
    return abort_all(l->shared, text) ? FAIL(STATUS_COMM, "%s", text) : aborted(l, call);
}

static bool has_arrived(const struct local *l, int rank)
{
    return (int)(atomic_load(&l->shared->slots[rank].arrived) - l->barriers) >= 0;
}

/* Looks at all ranks that have not arrived: which of them can be waited for. */
static status look_around(struct local *l, double passed, const struct comm_call *call)
{
    for (int r = 0; r < l->ranks; r++) {
        struct slot *s = &l->shared->slots[r];
        struct watch *w = &l->watches[r];
        const unsigned beats = atomic_load(&s->beats);
        w->silent_s = beats != w->beats ? 0 : w->silent_s + passed;
        w->beats = beats;
        if (r == l->rank || has_arrived(l, r)) continue;
        if (atomic_load(&s->ended) && !has_arrived(l, r)) return lost(l, r, "has ended before", call);
        if (w->silent_s > COMM_SILENCE_S) return lost(l, r, "gives no sign of life: stopped or dead", call);
    }
    return STATUS_OK;
}

/* Until `rank` has passed as many barriers as this rank. */
static status wait_for(struct local *l, int rank, const struct comm_call *call)
{
    enum { POLL_MS = 50 };
    const struct timespec poll = {.tv_nsec = POLL_MS * 1000000};
    struct slot *s = &l->shared->slots[rank];
    double last_s = clock_s();
    for (int spin = 0;; spin++) {
        const unsigned arrived = atomic_load(&s->arrived);
        if (has_arrived(l, rank)) return STATUS_OK;
        if (atomic_load(&l->shared->abort)) return aborted(l, call);
        if (spin < SPINS) {
            __builtin_ia32_pause();
            continue;
        }
        futex(&s->arrived, FUTEX_WAIT, arrived, &poll);
        const double now = clock_s(), passed = now - last_s;
        last_s = now;
        TRY(look_around(l, passed < 4 * POLL_MS * 1e-3 ? passed : POLL_MS * 1e-3, call));
    }
}

static status barrier(struct local *l, const struct comm_call *call)
{
    struct slot *mine = &l->shared->slots[l->rank];
    l->barriers++;
    atomic_store(&mine->arrived, l->barriers);
    futex(&mine->arrived, FUTEX_WAKE, INT32_MAX, NULL);
    for (int r = 0; r < l->ranks; r++) l->watches[r].silent_s = 0;
    for (int r = 0; r < l->ranks; r++)
        if (r != l->rank) TRY(wait_for(l, r, call));
    return STATUS_OK;
}

/* ---- collectives */

/* All ranks make the same call, or all say which did not. */
static status agree(struct local *l, const struct comm_call *call)
{
    struct slot *mine = &l->shared->slots[l->rank];
    comm_header_fill(&mine->call, call, ++l->sequence);
    TRY(barrier(l, call));
    for (int r = 0; r < l->ranks; r++) {
        status st = comm_header_check(&mine->call, l->rank, &l->shared->slots[r].call, r);
        if (st == STATUS_OK) continue;
        (void)abort_all(l->shared, status_message());
        return st;
    }
    return STATUS_OK;
}

static char *buffer(const struct local *l, int rank)
{
    return l->buffers + (size_t)rank * BUFFER_BYTES;
}

/* Pieces of `part` bytes go through the buffers: of what this rank has for each other, or of what it has for all. */
static status pass(struct local *l, const struct comm_call *c)
{
    const bool split = c->op == COMM_ALL_TO_ALL;
    const size_t room = split ? (size_t)BUFFER_BYTES / (size_t)l->ranks / 64 * 64 : BUFFER_BYTES;
    const char *send = c->send;
    char *recv = c->recv;
    for (size_t done = 0; done < c->bytes; done += room) {
        const size_t part = c->bytes - done < room ? c->bytes - done : room;
        for (int r = 0; r < (split ? l->ranks : 1); r++)
            memcpy(buffer(l, l->rank) + (size_t)r * room, send + (size_t)r * c->bytes + done, part);
        TRY(barrier(l, c));
        for (int r = 0; r < l->ranks; r++)
            memmove(recv + (size_t)r * c->bytes + done, buffer(l, r) + (split ? (size_t)l->rank * room : 0),
                    part);
        TRY(barrier(l, c));
    }
    return STATUS_OK;
}

status local_call(struct local *l, const struct comm_call *call)
{
    TRY(agree(l, call));
    if (call->op == COMM_BARRIER || call->bytes == 0)
        return barrier(l, call); /* before the slots are written again */
    return pass(l, call);
}

/* ---- life */

static void *heart(void *arg)
{
    struct local *l = arg;
    pthread_mutex_lock(&l->lock);
    while (!l->ending) {
        struct timespec until;
        atomic_fetch_add(&l->shared->slots[l->rank].beats, 1);
        if (getppid() != l->parent) abort_all(l->shared, "whoever started the ranks is gone");
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)(BEAT_S * 1e9);
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
        pthread_cond_timedwait(&l->end, &l->lock, &until);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static status map(struct local *l, const struct comm_env *e)
{
    struct stat st;
    if (fstat(e->fd, &st) != 0 || (size_t)st.st_size != shared_bytes(e->ranks))
        return FAIL(STATUS_CONFIG,
                    "INGOT_COMM=fd:%d is not the shared memory of %d ranks; start them with `ingot launch`",
                    e->fd, e->ranks);
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, e->fd, 0);
    if (p == MAP_FAILED) return FAIL(STATUS_COMM, "shared memory of the ranks: %s", strerror(errno));
    l->shared = p;
    l->buffers = (char *)p + slots_bytes(e->ranks);
    if (l->shared->magic == MAGIC && l->shared->ranks == e->ranks) return STATUS_OK;
    return FAIL(STATUS_CONFIG, "INGOT_COMM=fd:%d belongs to something else than %d ranks", e->fd, e->ranks);
}

/* Until all ranks are there; a rank that does not come has no heart that could be watched. */
static status meet(struct local *l)
{
    const struct comm_call call = {.op = COMM_BARRIER, .name = "start"};
    const double begin = clock_s();
    for (int r = 0; r < l->ranks; r++)
        while (atomic_load(&l->shared->slots[r].pid) == 0) {
            if (atomic_load(&l->shared->abort)) return aborted(l, &call);
            if (clock_s() - begin > OPEN_S)
                return FAIL(STATUS_COMM, "rank %d did not come within %d seconds", r, OPEN_S);
            usleep(2000);
        }
    return local_call(l, &call);
}

status local_open(struct local **out, const struct comm_env *e)
{
    pthread_condattr_t attributes;
    struct local *l = calloc(1, sizeof *l);
    *out = NULL;
    if (l == NULL) return FAIL(STATUS_FIT, "no memory for the description of a rank");
    l->rank = e->rank;
    l->ranks = e->ranks;
    l->parent = getppid();
    pthread_mutex_init(&l->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&l->end, &attributes);
    pthread_condattr_destroy(&attributes);
    l->watches = calloc((size_t)e->ranks, sizeof *l->watches);
    status st = l->watches ? map(l, e) : FAIL(STATUS_FIT, "no memory for the description of a rank");
    if (st == STATUS_OK && pthread_create(&l->heart, NULL, heart, l) != 0)
        st = FAIL(STATUS_COMM, "rank %d: no thread for its heartbeat", e->rank);
    if (st == STATUS_OK) {
        l->heart_started = true;
        atomic_store(&l->shared->slots[e->rank].pid, (int)getpid());
        st = meet(l);
    }
    if (st != STATUS_OK) {
        local_close(l, st);
        return st;
    }
    *out = l;
    return STATUS_OK;
}

void local_close(struct local *l, status st)
{
    if (l->heart_started) {
        if (st != STATUS_OK && st != STATUS_STOPPED && st != STATUS_COMM) {
            char text[COMM_TEXT];
            snprintf(text, sizeof text, "rank %d failed: %s", l->rank, status_message());
            abort_all(l->shared, text);
        }
        atomic_store(&l->shared->slots[l->rank].ended, 1);
        pthread_mutex_lock(&l->lock);
        l->ending = true;
        pthread_cond_signal(&l->end);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->heart, NULL);
    }
    if (l->shared) munmap(l->shared, shared_bytes(l->ranks));
    pthread_cond_destroy(&l->end);
    pthread_mutex_destroy(&l->lock);
    free(l->watches);
    free(l);
}
