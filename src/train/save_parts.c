#include "train/save_parts.h"
#include "base/clock.h"
#include "comm/shared.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { POLL_NS = 10 * 1000 * 1000, POLL_MOST_NS = 500 * 1000 * 1000, SETTLE_S = 600 };

static status gather_hosts(struct trainer *t)
{
    struct save_host mine = {"?"};
    if (t->hosts) return STATUS_OK;
    (void)gethostname(mine.name, sizeof mine.name - 1);
    t->hosts = calloc((size_t)comm_ranks(t->mesh.world), sizeof *t->hosts);
    if (t->hosts == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the names of hosts");
    return comm_all_gather(t->mesh.world, "names of hosts", &mine, t->hosts, sizeof mine, NULL);
}

status save_parts_begin(struct save_parts *p, struct trainer *t, const char *run_dir,
                        ckpt_may_wait_fn *may_wait)
{
    struct comm *world = t->mesh.world;
    const bool lead = comm_rank(world) == 0;
    char message[1024];
    *p = (struct save_parts){.full = {(int)t->spec.run.ckpt_keep, may_wait}};
    status st = gather_hosts(t);
    if (st == STATUS_OK && lead) st = checkpoint_parts_begin(run_dir, t->step, p->full, &p->begun);
    const bool begun = st == STATUS_OK && lead;
    if (st == STATUS_OK)
        st = comm_broadcast(world, "directory of a checkpoint", &p->begun, sizeof p->begun, NULL);
    if (st == STATUS_OK) st = checkpoint_parts_seen(run_dir, &p->begun);
    /* Rank 0 does not go on, and cannot give up, before all have looked. */
    if (st == STATUS_OK) st = comm_barrier(world, "directory of a checkpoint");
    if (st == STATUS_OK) return st;
    snprintf(message, sizeof message, "%s", status_message());
    if (begun) checkpoint_parts_drop(run_dir, &p->begun);
    return FAIL(st, "%s", message);
}

struct waiting {
    const struct save_host *hosts;
    const struct comm *world;
    char who[sizeof(struct save_host) + 48];
};

static bool ended(void *ctx)
{
    const struct waiting *w = ctx;
    return comm_aborted(w->world);
}

static const char *who(void *ctx, int rank)
{
    struct waiting *w = ctx;
    snprintf(w->who, sizeof w->who, "rank %d (host %s)", rank, w->hosts[rank].name);
    return w->who;
}

static status commit(struct ckpt_parts *c, const struct state *s, const struct save_parts_args *a,
                     const struct ckpt_waiter *w)
{
    int64_t lowest;
    TRY(checkpoint_parts_wait(c, w, &lowest));
    TRY(state_judge(s, a->first < lowest ? a->first : lowest));
    return checkpoint_parts_commit(c, a->meta, w);
}

status save_parts_write(struct save_parts *p, struct state *s, const struct save_parts_args *a)
{
    const int me = comm_rank(s->t->mesh.world);
    struct waiting waiting = {.hosts = s->t->hosts, .world = s->t->mesh.world};
    const struct ckpt_waiter w = {p->full, COMM_DEADLINE_S, ended, who, &waiting};
    struct ckpt_parts *c = NULL;
    char message[1024];
    status st = state_list_parts(s);
    if (st == STATUS_OK) st = checkpoint_parts_open(&c, a->run_dir, &p->begun, s->items, s->count, me);
    if (st == STATUS_OK) st = checkpoint_parts_write(c, &w);
    if (st == STATUS_OK) st = me == 0 ? commit(c, s, a, &w) : checkpoint_parts_tell(c, a->first, &w);
    if (st != STATUS_OK) snprintf(message, sizeof message, "%s", status_message());
    checkpoint_parts_close(c);
    return st == STATUS_OK ? st : FAIL(st, "%s", message);
}

void save_parts_settle(const struct ckpt_begun *b, const struct comm *world, const char *run_dir)
{
    const double begin = clock_s();
    struct timespec poll = {.tv_nsec = POLL_NS};
    while (!checkpoint_parts_settled(run_dir, b) && !comm_aborted(world) && clock_s() - begin < SETTLE_S) {
        (void)nanosleep(&poll, NULL);
        if (poll.tv_nsec < POLL_MOST_NS) poll.tv_nsec *= 2;
    }
}
