/* Signs of life in shared memory. A thread of each rank counts its beats; a rank that waits looks whether the others'
 * go on. */
#include "comm/call.h"
#include "base/clock.h"
#include "base/log.h"
#include "comm/health/heartbeat.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum { MAGIC = 0x69676333, PAGE = 4096, OPEN_S = 60, CORE_WORDS = 12 };
#define BEAT_S 0.25
/* Longest time between two looks that counts. Above four of them, this process itself was stopped. */
#define LOOK_S 0.05
/* Extra time for ranks of other hosts: if their relay is stopped, the relay is named. */
#define AWAY_S  1.0
#define GUARD_S 2.0

/* The heartbeat of one rank, on its own cache lines. */
struct slot {
    _Alignas(128) atomic_uint beats;
    atomic_uint progress; /* waits completed */
    atomic_int waits;     /* it waits for others */
    atomic_int pid;
    atomic_int ended;                /* left without an error */
    atomic_int away;                 /* on another host: written by the relay of this host */
    atomic_ullong cores[CORE_WORDS]; /* bit k % 64 of word k / 64: it may run on core k */
};
struct heartbeat {
    uint32_t magic;
    int32_t ranks;
    uint64_t bytes;
    uint8_t nonce[16];
    atomic_int abort; /* 0; 1: being written; 2: abort_text is valid */
    char abort_text[COMM_TEXT];
    struct slot slots[];
};

/* The flight recorder is stored after the slots. */
static size_t slots_bytes(int ranks)
{
    return sizeof(struct heartbeat) + (size_t)ranks * sizeof(struct slot);
}
size_t heartbeat_bytes(int ranks)
{
    const size_t bytes = slots_bytes(ranks) + flight_recorder_bytes(ranks);
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

status heartbeat_create(int ranks, size_t bytes, int *fd)
{
    struct heartbeat *b = MAP_FAILED;
    *fd = memfd_create("ingot", 0);
    if (*fd < 0) return FAIL(STATUS_COMM, "no shared memory for the ranks: %s", strerror(errno));
    if (ftruncate(*fd, (off_t)bytes) == 0)
        b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (b == MAP_FAILED || getrandom(b->nonce, sizeof b->nonce, 0) != (ssize_t)sizeof b->nonce) {
        status st = FAIL(STATUS_OUT_OF_MEMORY, "no %zu bytes of shared memory for %d ranks: %s", bytes, ranks,
                         strerror(errno));
        if (b != MAP_FAILED) munmap(b, sizeof *b);
        close(*fd);
        *fd = -1;
        return st;
    }
    b->magic = MAGIC;
    b->ranks = ranks;
    b->bytes = bytes;
    munmap(b, sizeof *b);
    return STATUS_OK;
}

static status read_nonce(int fd, uint8_t nonce[16])
{
    if (pread(fd, nonce, 16, offsetof(struct heartbeat, nonce)) == 16) return STATUS_OK;
    return FAIL(STATUS_COMM, "the shared memory of the ranks cannot be read: %s", strerror(errno));
}

status heartbeat_place(int fd, struct heartbeat_place *p)
{
    *p = (struct heartbeat_place){.pid = (int32_t)getpid(), .fd = fd};
    return read_nonce(fd, p->nonce);
}

status heartbeat_join(const struct heartbeat_place *p, int *fd)
{
    char path[64];
    uint8_t nonce[16];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", p->pid, p->fd);
    *fd = open(path, O_RDWR | O_CLOEXEC);
    if (*fd < 0)
        return FAIL(STATUS_COMM,
                    "the shared memory of process %d cannot be opened: %s; ranks of one machine run as one "
                    "user and see each other's processes",
                    p->pid, strerror(errno));
    status st = read_nonce(*fd, nonce);
    if (st == STATUS_OK && memcmp(nonce, p->nonce, sizeof nonce) != 0)
        st = FAIL(STATUS_COMM, "process %d is not the one that made the memory of this job", p->pid);
    if (st != STATUS_OK) close(*fd), *fd = -1;
    return st;
}

void heartbeat_host(char name[HEARTBEAT_HOST])
{
    char host[64] = "", boot[40] = "", pids[40] = "";
    (void)gethostname(host, sizeof host - 1);
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (f && fgets(boot, sizeof boot, f) == NULL) boot[0] = 0;
    if (f) fclose(f);
    boot[strcspn(boot, "\n")] = 0;
    if (readlink("/proc/self/ns/pid", pids, sizeof pids - 1) < 0) pids[0] = 0;
    memset(name, 0, HEARTBEAT_HOST);
    snprintf(name, HEARTBEAT_HOST, "%s %s %s", host, boot, pids);
}

bool heartbeat_fits(const struct heartbeat *b, int ranks, size_t bytes)
{
    return b->magic == MAGIC && b->ranks == ranks && b->bytes == bytes;
}

/* ---- aborting all ranks */

bool heartbeat_abort(struct heartbeat *b, const char *text)
{
    int nobody = 0;
    if (!atomic_compare_exchange_strong(&b->abort, &nobody, 1)) return false;
    snprintf(b->abort_text, sizeof b->abort_text, "%s", text);
    atomic_store(&b->abort, 2);
    return true;
}

bool heartbeat_aborted(const struct heartbeat *b)
{
    return atomic_load(&b->abort) != 0;
}

void heartbeat_abort_reason(struct heartbeat *b, char text[COMM_TEXT])
{
    text[0] = 0;
    if (atomic_load(&b->abort) == 2) snprintf(text, COMM_TEXT, "%s", b->abort_text);
}

void heartbeat_state(const struct heartbeat *b, int rank, struct heartbeat_state *life)
{
    const struct slot *s = &b->slots[rank];
    *life = (struct heartbeat_state){.rank = rank,
                                     .pid = atomic_load(&s->pid),
                                     .beats = atomic_load(&s->beats),
                                     .progress = atomic_load(&s->progress),
                                     .waits = atomic_load(&s->waits),
                                     .ended = atomic_load(&s->ended)};
}

void heartbeat_set_state(struct heartbeat *b, const struct heartbeat_state *life)
{
    struct slot *s = &b->slots[life->rank];
    atomic_store(&s->away, 1);
    atomic_store(&s->beats, life->beats);
    atomic_store(&s->progress, life->progress);
    atomic_store(&s->waits, life->waits);
    atomic_store(&s->ended, life->ended);
    atomic_store(&s->pid, life->pid);
}

struct flight_recorder *heartbeat_flight(struct heartbeat *b)
{
    return (struct flight_recorder *)((char *)b + slots_bytes(b->ranks));
}

int heartbeat_ranks(const struct heartbeat *b)
{
    return b->ranks;
}

bool heartbeat_left(const struct heartbeat *b, int rank)
{
    return atomic_load(&b->slots[rank].ended) != 0;
}

/* ---- watching */

/* How long a rank has sent no heartbeat. Time in which this process itself was stopped does not count. */
struct seen {
    unsigned beats;
    double silent_s;
};
struct rank_monitor {
    struct heartbeat *heartbeat;
    int rank;
    double last_s;     /* time of the last look */
    double wait_s;     /* start of this wait */
    double waited_s;   /* in all waits that have ended */
    int crowded;       /* rank_monitor_crowded; -1: not known yet */
    bool won;          /* this rank aborted all */
    unsigned progress; /* sum over all ranks */
    double stuck_s;    /* how long progress has not changed while all wait */
    struct seen *seen; /* [ranks], owned */
    pthread_t heart;
    bool heart_started;
    pthread_mutex_t lock;
    pthread_cond_t end;
    bool ending;
    pid_t parent;         /* the process that started the ranks */
    bool guard;           /* under `lock` */
    struct seen *guarded; /* [ranks], owned: as the heartbeat thread sees them */
    double over_s;        /* time since the abort */
    atomic_bool noticed;  /* this rank's own calls have seen the abort */
};

/* The rank has started (as far as this host knows) and not left without an error. */
static bool has_come(const struct heartbeat *b, int rank)
{
    return atomic_load(&b->slots[rank].pid) != 0 && !heartbeat_left(b, rank);
}

/* The lowest rank without a heartbeat for too long, or -1. */
static int silent_rank(const struct rank_monitor *w, struct seen *all, double passed)
{
    int silent = -1;
    for (int r = w->heartbeat->ranks - 1; r >= 0; r--) {
        const struct slot *s = &w->heartbeat->slots[r];
        struct seen *seen = &all[r];
        const unsigned beats = atomic_load(&s->beats);
        seen->silent_s = beats != seen->beats ? 0 : seen->silent_s + passed;
        seen->beats = beats;
        const double limit = COMM_SILENCE_S + (atomic_load(&s->away) ? AWAY_S : 0);
        if (r != w->rank && seen->silent_s > limit && has_come(w->heartbeat, r)) silent = r;
    }
    return silent;
}

/* Once per beat. */
static void guard_look(struct rank_monitor *w)
{
    char text[COMM_TEXT];
    const int silent = silent_rank(w, w->guarded, BEAT_S);
    if (silent >= 0) {
        snprintf(text, sizeof text, "rank %d (process %d) gives no sign of life: stopped or dead", silent,
                 atomic_load(&w->heartbeat->slots[silent].pid));
        if (heartbeat_abort(w->heartbeat, text)) w->won = true;
    }
    w->over_s = heartbeat_aborted(w->heartbeat) && !atomic_load(&w->noticed) ? w->over_s + BEAT_S : 0;
    if (w->over_s < GUARD_S) return;
    heartbeat_abort_reason(w->heartbeat, text);
    log_error("%s; rank %d was queueing work to its GPU, and is ended", text, w->rank);
    _exit(STATUS_COMM);
}

static void *heart(void *arg)
{
    struct rank_monitor *w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->ending) {
        struct timespec until;
        atomic_fetch_add(&w->heartbeat->slots[w->rank].beats, 1);
        if (w->guard) guard_look(w);
        if (getppid() != w->parent) heartbeat_abort(w->heartbeat, "whoever started the ranks is gone");
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)(BEAT_S * 1e9);
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
        pthread_cond_timedwait(&w->end, &w->lock, &until);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* Before its pid, which says that this rank has come. Cores beyond the last word fold back. */
static void publish_cores(struct slot *s)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return;
    for (size_t k = 0; k < CPU_SETSIZE; k++)
        if (CPU_ISSET(k, &set)) atomic_fetch_or(&s->cores[k / 64 % CORE_WORDS], 1ULL << k % 64);
}

bool rank_monitor_crowded(struct rank_monitor *w)
{
    if (w == NULL || w->crowded >= 0) return w && w->crowded;
    unsigned long long cores[CORE_WORDS] = {0};
    int ranks = 0, count = 0;
    for (int r = 0; r < w->heartbeat->ranks; r++) {
        struct slot *s = &w->heartbeat->slots[r];
        if (atomic_load(&s->pid) == 0) return false;
        if (atomic_load(&s->away)) continue;
        ranks++;
        for (int k = 0; k < CORE_WORDS; k++) cores[k] |= atomic_load(&s->cores[k]);
    }
    for (int k = 0; k < CORE_WORDS; k++) count += __builtin_popcountll(cores[k]);
    w->crowded = count > 0 && ranks > count;
    return w->crowded;
}

status rank_monitor_open(struct rank_monitor **out, struct heartbeat *b, int rank)
{
    pthread_condattr_t attributes;
    struct rank_monitor *w = calloc(1, sizeof *w);
    *out = NULL;
    if (w == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the description of a rank");
    w->heartbeat = b;
    w->rank = rank;
    w->crowded = -1;
    w->parent = getppid();
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&w->end, &attributes);
    pthread_condattr_destroy(&attributes);
    w->seen = calloc((size_t)b->ranks, sizeof *w->seen);
    w->guarded = calloc((size_t)b->ranks, sizeof *w->guarded);
    status st = w->seen && w->guarded ? STATUS_OK
                                      : FAIL(STATUS_OUT_OF_MEMORY, "no memory for the description of a rank");
    if (st == STATUS_OK && pthread_create(&w->heart, NULL, heart, w) != 0)
        st = FAIL(STATUS_COMM, "rank %d: no thread for its heartbeat", rank);
    if (st != STATUS_OK) {
        rank_monitor_close(w, st);
        return st;
    }
    w->heart_started = true;
    publish_cores(&b->slots[rank]);
    atomic_store(&b->slots[rank].pid, (int)getpid());
    *out = w;
    return STATUS_OK;
}

bool rank_monitor_close(struct rank_monitor *w, status st)
{
    if (w == NULL) return false;
    if (w->heart_started) {
        atomic_store(&w->noticed, true);
        if (st != STATUS_OK && st != STATUS_STOPPED) {
            char text[COMM_TEXT], who[32] = ""; /* STATUS_COMM names the failed rank itself */
            if (st != STATUS_COMM) snprintf(who, sizeof who, "rank %d failed: ", w->rank);
            snprintf(text, sizeof text, "%s%.400s", who, status_message());
            if (heartbeat_abort(w->heartbeat, text)) w->won = true;
        }
        atomic_store(&w->heartbeat->slots[w->rank].ended, 1);
        pthread_mutex_lock(&w->lock);
        w->ending = true;
        pthread_cond_signal(&w->end);
        pthread_mutex_unlock(&w->lock);
        pthread_join(w->heart, NULL);
    }
    pthread_cond_destroy(&w->end);
    pthread_mutex_destroy(&w->lock);
    const bool won = w->won;
    free(w->seen);
    free(w->guarded);
    free(w);
    return won;
}

void rank_monitor_guard(struct rank_monitor *w)
{
    pthread_mutex_lock(&w->lock);
    w->guard = true;
    pthread_mutex_unlock(&w->lock);
}

/* A rank that never starts has no heartbeat to watch. */
status rank_monitor_wait_all(struct rank_monitor *w)
{
    const double begin = clock_s();
    for (int r = 0; r < w->heartbeat->ranks; r++)
        while (atomic_load(&w->heartbeat->slots[r].pid) == 0) {
            if (heartbeat_aborted(w->heartbeat))
                return FAIL(STATUS_COMM, "%s; seen at the start", w->heartbeat->abort_text);
            if (clock_s() - begin > OPEN_S)
                return FAIL(STATUS_COMM, "rank %d did not come within %d seconds", r, OPEN_S);
            usleep(2000);
        }
    return STATUS_OK;
}

/* ---- aborting */

bool rank_monitor_aborted(const struct rank_monitor *w)
{
    return heartbeat_aborted(w->heartbeat);
}

static status aborted(struct rank_monitor *w, const struct comm *c, const struct comm_call *call)
{
    char text[COMM_TEXT], where[COMM_TEXT];
    atomic_store(&w->noticed, true);
    while (atomic_load(&w->heartbeat->abort) == 1) sched_yield();
    snprintf(text, sizeof text, "%s", w->heartbeat->abort_text);
    return FAIL(STATUS_COMM, "%s; seen in %.150s", text, comm_call_text(c, call, where));
}

static status end_all(struct rank_monitor *w, const char *text, const struct comm *c,
                      const struct comm_call *call)
{
    if (!heartbeat_abort(w->heartbeat, text)) return aborted(w, c, call);
    atomic_store(&w->noticed, true);
    w->won = true;
    return FAIL(STATUS_COMM, "%s", text);
}

status rank_monitor_lost(struct rank_monitor *w, int rank, const char *what, const struct comm *c,
                         const struct comm_call *call)
{
    char text[COMM_TEXT], where[COMM_TEXT], member[COMM_NAME + 32] = "", me[COMM_TEXT];
    for (int r = 0; r < c->ranks && c != c->world; r++)
        if (c->members[r] == rank) snprintf(member, sizeof member, ", rank %d of '%s'", r, c->name);
    snprintf(text, sizeof text, "rank %d (process %d%s) %s; %.100s waits in %.150s", rank,
             atomic_load(&w->heartbeat->slots[rank].pid), member, what, comm_rank_text(c, c->rank, me),
             comm_call_text(c, call, where));
    return end_all(w, text, c, call);
}

/* ---- while waiting */

void rank_monitor_wait_begin(struct rank_monitor *w)
{
    w->last_s = w->wait_s = clock_s();
    w->stuck_s = 0;
    atomic_store(&w->heartbeat->slots[w->rank].waits, 1);
}

void rank_monitor_wait_end(struct rank_monitor *w)
{
    struct slot *s = &w->heartbeat->slots[w->rank];
    w->waited_s += clock_s() - w->wait_s;
    atomic_fetch_add(&s->progress, 1);
    atomic_store(&s->waits, 0);
}

double rank_monitor_waited_s(const struct rank_monitor *w)
{
    return w->waited_s;
}

int rank_monitor_straggler(const struct rank_monitor *w)
{
    const struct heartbeat *b = w->heartbeat;
    if (!atomic_load(&b->slots[w->rank].waits)) return -1;
    for (int r = 0; r < b->ranks; r++)
        if (has_come(b, r) && !atomic_load(&b->slots[r].waits)) return r;
    return -1;
}

/* All ranks wait and nothing changes: their calls do not match. */
static status check_stuck(struct rank_monitor *w, double passed, const struct comm *c,
                          const struct comm_call *call)
{
    unsigned progress = 0;
    bool all = true;
    for (int r = 0; r < w->heartbeat->ranks; r++) {
        const struct slot *s = &w->heartbeat->slots[r];
        progress += atomic_load(&s->progress);
        all = all && (atomic_load(&s->waits) || atomic_load(&s->ended));
    }
    w->stuck_s = all && progress == w->progress ? w->stuck_s + passed : 0;
    w->progress = progress;
    if (w->stuck_s < COMM_STUCK_S) return STATUS_OK;
    char text[COMM_TEXT] = "the ranks wait for each other", last[COMM_TEXT];
    for (int r = 0; r < w->heartbeat->ranks; r++) {
        const size_t used = strlen(text);
        if (heartbeat_left(w->heartbeat, r) || sizeof text - used < 160) continue;
        snprintf(text + used, sizeof text - used, "%s rank %d in %.120s", r > 0 ? ";" : ":", r,
                 flight_recorder_last(heartbeat_flight(w->heartbeat), r, last));
    }
    return end_all(w, text, c, call);
}

/* A rank that is alive but too late. */
static status check_deadline(struct rank_monitor *w, double now, const struct comm *c,
                             const struct comm_call *call)
{
    char busy[64], waits[64];
    if (now - w->wait_s < COMM_DEADLINE_S) return STATUS_OK;
    snprintf(busy, sizeof busy, "is busy with something else for %.0f minutes", COMM_DEADLINE_S / 60);
    snprintf(waits, sizeof waits, "waits for %.0f minutes", COMM_DEADLINE_S / 60);
    for (int r = 0; r < w->heartbeat->ranks; r++)
        if (atomic_load(&w->heartbeat->slots[r].waits) == 0 && has_come(w->heartbeat, r))
            return rank_monitor_lost(w, r, busy, c, call);
    return rank_monitor_lost(w, w->rank, waits, c, call);
}

status rank_monitor_check(struct rank_monitor *w, const struct comm *c, const struct comm_call *call)
{
    if (heartbeat_aborted(w->heartbeat)) return aborted(w, c, call);
    const double now = clock_s(), since = now - w->last_s, passed = since < 4 * LOOK_S ? since : LOOK_S;
    w->last_s = now;
    const int silent = silent_rank(w, w->seen, passed);
    if (silent >= 0) return rank_monitor_lost(w, silent, "gives no sign of life: stopped or dead", c, call);
    TRY(check_stuck(w, passed, c, call));
    return check_deadline(w, now, c, call);
}
