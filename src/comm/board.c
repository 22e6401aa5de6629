/* Signs of life in shared memory. A thread of each rank counts its beats; a rank that waits looks whether the others' go on. */
#include "base/clock.h"
#include "comm/board.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAGIC = 0x69676332, PAGE = 4096, OPEN_S = 60 };
#define BEAT_S 0.25
#define LOOK_S                                                                                               \
    0.05 /* time between two looks that counts; above four of them this process itself stood still */

/* One rank's, on its own cache lines. */
struct slot {
    _Alignas(128) atomic_uint beats;
    atomic_int pid;
    atomic_int ended; /* left in good order */
};
struct board {
    uint32_t magic;
    int32_t ranks;
    uint64_t bytes;
    atomic_int abort; /* 0, 1: being written, 2: abort_text is there */
    char abort_text[COMM_TEXT];
    struct slot slots[];
};

size_t board_bytes(int ranks)
{
    const size_t bytes = sizeof(struct board) + (size_t)ranks * sizeof(struct slot);
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

void board_init(void *memory, int ranks, size_t bytes)
{
    struct board *b = memory;
    b->magic = MAGIC;
    b->ranks = ranks;
    b->bytes = bytes;
}

bool board_fits(const struct board *b, int ranks, size_t bytes)
{
    return b->magic == MAGIC && b->ranks == ranks && b->bytes == bytes;
}

/* ---- ending together */

bool board_abort(struct board *b, const char *text)
{
    int nobody = 0;
    if (!atomic_compare_exchange_strong(&b->abort, &nobody, 1)) return false;
    snprintf(b->abort_text, sizeof b->abort_text, "%s", text);
    atomic_store(&b->abort, 2);
    return true;
}

bool board_aborted(const struct board *b)
{
    return atomic_load(&b->abort) != 0;
}

void board_reason(struct board *b, char text[COMM_TEXT])
{
    text[0] = 0;
    if (atomic_load(&b->abort) == 2) snprintf(text, COMM_TEXT, "%s", b->abort_text);
}

bool board_ended(const struct board *b, int rank)
{
    return atomic_load(&b->slots[rank].ended) != 0;
}

/* ---- a rank's place */

/* How long a rank was watched without a sign of life. Time in which this process itself stood still does not count. */
struct seen {
    unsigned beats;
    double silent_s;
};
struct watch {
    struct board *board;
    int rank;
    double last_s;     /* when it looked last */
    struct seen *seen; /* [ranks], owned */
    pthread_t heart;
    bool heart_started;
    pthread_mutex_t lock;
    pthread_cond_t end;
    bool ending;
    pid_t parent; /* whoever started the ranks */
};

static void *heart(void *arg)
{
    struct watch *w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->ending) {
        struct timespec until;
        atomic_fetch_add(&w->board->slots[w->rank].beats, 1);
        if (getppid() != w->parent) board_abort(w->board, "whoever started the ranks is gone");
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)(BEAT_S * 1e9);
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
        pthread_cond_timedwait(&w->end, &w->lock, &until);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

status watch_open(struct watch **out, struct board *b, int rank)
{
    pthread_condattr_t attributes;
    struct watch *w = calloc(1, sizeof *w);
    *out = NULL;
    if (w == NULL) return FAIL(STATUS_FIT, "no memory for the description of a rank");
    w->board = b;
    w->rank = rank;
    w->parent = getppid();
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&w->end, &attributes);
    pthread_condattr_destroy(&attributes);
    w->seen = calloc((size_t)b->ranks, sizeof *w->seen);
    status st = w->seen ? STATUS_OK : FAIL(STATUS_FIT, "no memory for the description of a rank");
    if (st == STATUS_OK && pthread_create(&w->heart, NULL, heart, w) != 0)
        st = FAIL(STATUS_COMM, "rank %d: no thread for its heartbeat", rank);
    if (st != STATUS_OK) {
        watch_close(w, st);
        return st;
    }
    w->heart_started = true;
    atomic_store(&b->slots[rank].pid, (int)getpid());
    *out = w;
    return STATUS_OK;
}

void watch_close(struct watch *w, status st)
{
    if (w == NULL) return;
    if (w->heart_started) {
        if (st != STATUS_OK && st != STATUS_STOPPED && st != STATUS_COMM) {
            char text[COMM_TEXT];
            snprintf(text, sizeof text, "rank %d failed: %.400s", w->rank, status_message());
            board_abort(w->board, text);
        }
        atomic_store(&w->board->slots[w->rank].ended, 1);
        pthread_mutex_lock(&w->lock);
        w->ending = true;
        pthread_cond_signal(&w->end);
        pthread_mutex_unlock(&w->lock);
        pthread_join(w->heart, NULL);
    }
    pthread_cond_destroy(&w->end);
    pthread_mutex_destroy(&w->lock);
    free(w->seen);
    free(w);
}

/* A rank that does not come has no heart that could be watched. */
status watch_meet(struct watch *w)
{
    const double begin = clock_s();
    for (int r = 0; r < w->board->ranks; r++)
        while (atomic_load(&w->board->slots[r].pid) == 0) {
            if (board_aborted(w->board))
                return FAIL(STATUS_COMM, "%s; seen at the start", w->board->abort_text);
            if (clock_s() - begin > OPEN_S)
                return FAIL(STATUS_COMM, "rank %d did not come within %d seconds", r, OPEN_S);
            usleep(2000);
        }
    return STATUS_OK;
}

/* ---- watching */

static status aborted(const struct watch *w, const struct comm *c, const struct comm_call *call)
{
    char text[COMM_TEXT], where[COMM_TEXT];
    while (atomic_load(&w->board->abort) == 1) sched_yield();
    snprintf(text, sizeof text, "%s", w->board->abort_text);
    return FAIL(STATUS_COMM, "%s; seen in %.150s", text, comm_call_text(c, call, where));
}

status watch_lost(struct watch *w, int rank, const char *what, const struct comm *c,
                  const struct comm_call *call)
{
    char text[COMM_TEXT], where[COMM_TEXT], member[COMM_NAME + 32] = "", me[COMM_TEXT];
    for (int r = 0; r < c->ranks && c != c->world; r++)
        if (c->members[r] == rank) snprintf(member, sizeof member, ", rank %d of '%s'", r, c->name);
    snprintf(text, sizeof text, "rank %d (process %d%s) %s; %.100s waits in %.150s", rank,
             atomic_load(&w->board->slots[rank].pid), member, what, comm_rank_text(c, c->rank, me),
             comm_call_text(c, call, where));
    return board_abort(w->board, text) ? FAIL(STATUS_COMM, "%s", text) : aborted(w, c, call);
}

status watch_look(struct watch *w, const struct comm *c, const struct comm_call *call)
{
    if (board_aborted(w->board)) return aborted(w, c, call);
    const double now = clock_s(), since = now - w->last_s, passed = since < 4 * LOOK_S ? since : LOOK_S;
    w->last_s = now;
    for (int r = 0; r < w->board->ranks; r++) {
        const struct slot *s = &w->board->slots[r];
        struct seen *seen = &w->seen[r];
        const unsigned beats = atomic_load(&s->beats);
        seen->silent_s = beats != seen->beats ? 0 : seen->silent_s + passed;
        seen->beats = beats;
        if (r == w->rank || seen->silent_s <= COMM_SILENCE_S || board_ended(w->board, r)) continue;
        return watch_lost(w, r, "gives no sign of life: stopped or dead", c, call);
    }
    return STATUS_OK;
}
