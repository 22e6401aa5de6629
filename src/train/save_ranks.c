#include "train/save_ranks.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "comm/shared.h"
#include "optim/saved_state.h"
#include "train/state.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum { POLL_NS = 100 * 1000 };
static const double COPY_S = 600; /* timeout: a copy takes seconds, and a lost rank is noticed earlier */

struct rank_copy {
    _Alignas(64) _Atomic int64_t number; /* the last save for which the rank has made its copy */
    int64_t bad;
};
_Static_assert(sizeof(struct rank_copy) == SAVED_STATE_MARK, "the planner counts as many bytes");

/* Host memory that a rank needs for its copy, and memory that it uses already. */
struct need {
    int64_t bytes;
    double taken;
};

static status share(struct save_ranks *r, const struct need *all, int ranks)
{
    char a[32], b[32];
    int64_t at = saved_state_pages((int64_t)sizeof *r->state * ranks);
    double sum = 0;
    for (int i = 0; i < ranks; i++) sum += (double)all[i].bytes + all[i].taken;
    for (int i = 0; i < ranks; i++) at += all[i].bytes;
    if (sum > plan_host_bytes())
        return FAIL(STATUS_OUT_OF_MEMORY, "run and copies take %s of the host's %s", text_bytes(a, sum),
                    text_bytes(b, plan_host_bytes()));
    r->bytes = (size_t)at;
    log_detail("memory for checkpoints: %lld bytes that %d ranks share", (long long)at, ranks);
    return comm_shared_open(r->world, r->bytes, &r->base);
}

status save_ranks_open(struct save_ranks *r, struct trainer *t, struct arena *memory)
{
    const int ranks = comm_ranks(t->mesh.world), me = comm_rank(t->mesh.world);
    const struct need mine = {
        .bytes = saved_state_pages((int64_t)state_bytes(t)),
        .taken = (double)(t->dev.kind == DEV_CPU ? memory_peak(&t->memory) : t->memory.host.peak)};
    struct need all[COMM_RANKS_MAX];
    r->world = t->mesh.world;
    TRY(comm_all_gather(r->world, "copies of the state", &mine, all, sizeof mine, NULL));
    r->copies = calloc((size_t)ranks, sizeof *r->copies);
    MEMORY_CHECK(r->copies, "no memory for the places of %d copies", ranks);
    TRY(share(r, all, ranks));
    r->state = r->base;
    char *at = (char *)r->base + saved_state_pages((int64_t)sizeof *r->state * ranks);
    for (int i = 0; i < ranks; i++) {
        r->copies[i] = at;
        at += all[i].bytes;
    }
    if (mine.bytes > 0) arena_attach(memory, "checkpoint", r->copies[me], (size_t)mine.bytes, NULL);
    return STATUS_OK;
}

void save_ranks_close(struct save_ranks *r)
{
    comm_shared_close(r->base, r->bytes);
    free(r->copies);
    *r = (struct save_ranks){0};
}

void save_ranks_put(struct save_ranks *r, int64_t number, int64_t bad)
{
    struct rank_copy *c = &r->state[comm_rank(r->world)];
    c->bad = bad;
    atomic_store(&c->number, number);
}

status save_ranks_wait(const struct save_ranks *r, int64_t number, int64_t *first)
{
    const struct timespec poll = {.tv_nsec = POLL_NS};
    const double begin = clock_s();
    *first = INT64_MAX;
    for (int i = 0; i < comm_ranks(r->world); i++) {
        while (atomic_load(&r->state[i].number) != number) {
            if (comm_aborted(r->world) || clock_s() - begin > COPY_S)
                return FAIL(STATUS_COMM,
                            "rank %d has not copied its part of the checkpoint, which is not saved", i);
            (void)nanosleep(&poll, NULL);
        }
        if (r->state[i].bad < 0)
            return FAIL(STATUS_COMM, "rank %d could not copy its part of the checkpoint, which is not saved",
                        i);
        if (r->state[i].bad < *first) *first = r->state[i].bad;
    }
    return STATUS_OK;
}
