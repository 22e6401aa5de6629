#include "train/save_memory.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/text.h"
#include "comm/health/heartbeat.h"
#include "dev/copy_thread.h"
#include "train/save.h"
#include "train/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a rank needs for its copy beside what it uses already, and the host that it is on. */
struct need {
    double bytes, taken;
    char host[HEARTBEAT_HOST];
};

/* Memory of this rank alone. all [ranks]: the needs of all ranks. */
static status own_memory(struct save_memory *m, const struct need *all, int ranks, int me)
{
    char a[32], b[32];
    double sum = 0;
    for (int i = 0; i < ranks; i++)
        if (strcmp(all[i].host, all[me].host) == 0) sum += all[i].bytes + all[i].taken;
    if (sum > plan_host_bytes())
        return FAIL(STATUS_OUT_OF_MEMORY, "run and copies of the state take %s of the host's %s",
                    text_bytes(a, sum), text_bytes(b, plan_host_bytes()));
    return all[me].bytes > 0 ? arena_reserve(&m->arena, "checkpoint", (size_t)all[me].bytes) : STATUS_OK;
}

/* Collective: memory of its own for each rank, or for none. */
static status open_own(struct save_memory *m, struct trainer *t)
{
    struct comm *world = t->mesh.world;
    const int ranks = comm_ranks(world), me = comm_rank(world);
    struct need mine = {.bytes = (double)state_bytes(t),
                        .taken =
                            (double)(t->dev.kind == DEV_CPU ? memory_peak(&t->memory) : t->memory.host.peak)};
    int32_t bad[COMM_RANKS_MAX] = {0};
    heartbeat_host(mine.host);
    struct need *all = calloc((size_t)ranks, sizeof *all);
    if (all == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for what %d ranks need", ranks);
    status st = comm_all_gather(world, "copies of the state", &mine, all, sizeof mine, NULL);
    if (st == STATUS_OK) {
        const status got = own_memory(m, all, ranks, me);
        const int32_t refused = got != STATUS_OK;
        int first = 0;
        st = comm_all_gather(world, "memory for copies", &refused, bad, sizeof refused, NULL);
        while (first < ranks && !bad[first]) first++;
        if (st == STATUS_OK && first < ranks)
            st = refused ? got
                         : FAIL(STATUS_OUT_OF_MEMORY, "rank %d has no memory for a copy of the state", first);
    }
    free(all);
    return st;
}

/* status_message() says why. */
static void refuse(struct save_memory *m, struct trainer *t)
{
    if (comm_rank(t->mesh.world) == 0)
        log_warn("ckpt.async: %s: training waits while a checkpoint is written", status_message());
    save_memory_close(m);
    m->refused = true;
}

status save_memory_open(struct save_memory *m, struct trainer *t)
{
    if (m->open || m->refused) return STATUS_OK;
    const bool share = t->mesh.world && comm_job(t->mesh.world).shares_memory;
    const status st = share ? save_ranks_open(&m->ranks, t, &m->arena) : open_own(m, t);
    m->open = st == STATUS_OK;
    if (st == STATUS_OUT_OF_MEMORY) refuse(m, t);
    return st == STATUS_OUT_OF_MEMORY ? STATUS_OK : st;
}

static void *pin(void *ctx)
{
    struct save_memory *m = ctx;
    struct trainer *t = m->t;
    const double begin = clock_s();
    char text[32];
    parallel_threads_set(save_threads());
    m->st = dev_use(&t->dev);
    if (m->st == STATUS_OK) m->st = dev_pin(&t->dev, m->arena.base, m->arena.size, "ckpt.async");
    if (m->st != STATUS_OK)
        snprintf(m->message, sizeof m->message, "%s", status_message());
    else
        log_detail("memory for checkpoints: %s pinned in %.3f s", text_bytes(text, (double)m->arena.size),
                   clock_s() - begin);
    return NULL;
}

status save_memory_pin(struct save_memory *m, struct trainer *t)
{
    TRY(save_memory_open(m, t));
    if (m->refused) return STATUS_OK;
    m->t = t;
    m->pin = PIN_BEGUN;
    m->st = STATUS_OK;
    if (m->arena.base == NULL) return STATUS_OK; /* a replica has nothing to copy */
    m->running = pthread_create(&m->thread, NULL, pin, m) == 0;
    if (m->running) return STATUS_OK;
    m->st = STATUS_OUT_OF_MEMORY;
    snprintf(m->message, sizeof m->message, "no thread to pin memory for it");
    return STATUS_OK;
}

static void join(struct save_memory *m)
{
    if (m->running) pthread_join(m->thread, NULL);
    m->running = false;
}

status save_memory_ready(struct save_memory *m)
{
    struct comm *world = m->t->mesh.world;
    int32_t all[COMM_RANKS_MAX] = {0};
    if (m->pin == PIN_DONE) return STATUS_OK;
    join(m);
    const int32_t mine = m->st != STATUS_OK;
    TRY(comm_all_gather(world, "pinned memory", &mine, all, sizeof mine, NULL));
    m->pin = PIN_DONE;
    int bad = 0;
    while (bad < comm_ranks(world) && all[bad] == 0) bad++;
    if (bad == comm_ranks(world)) return STATUS_OK;
    (void)FAIL(STATUS_OUT_OF_MEMORY, "%s", mine ? m->message : "memory of another rank cannot be pinned");
    refuse(m, m->t);
    return STATUS_OK;
}

void save_memory_close(struct save_memory *m)
{
    join(m);
    if (m->pin != PIN_NONE && m->st == STATUS_OK) dev_unpin(&m->t->dev, m->arena.base);
    if (m->ranks.base == NULL) arena_free(&m->arena);
    save_ranks_close(&m->ranks);
    *m = (struct save_memory){0};
}
