#include "train/save_parts.h"
#include "base/clock.h"
#include "comm/shared.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { POLL_NS = 10 * 1000 * 1000, POLL_MOST_NS = 500 * 1000 * 1000, SETTLE_S = 600 };

status save_parts_begin(struct save_parts *p, struct trainer *t, const char *run_dir,
                        ckpt_may_wait_fn *may_wait)
{
    struct comm *world = t->mesh.world;
    const bool lead = comm_rank(world) == 0;
    char host[SAVE_HOST] = "?", message[1024];
    *p = (struct save_parts){.full = {(int)t->spec.run.ckpt_keep, may_wait}};
    (void)gethostname(host, sizeof host - 1);
    p->hosts = calloc((size_t)comm_ranks(world), sizeof *p->hosts);
    if (p->hosts == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the names of hosts");
    status st = comm_all_gather(world, "names of hosts", host, p->hosts, sizeof host, NULL);
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
    save_parts_end(p);
    return FAIL(st, "%s", message);
}

void save_parts_end(struct save_parts *p)
{
    free(p->hosts);
    *p = (struct save_parts){0};
}

struct waiting {
    const struct save_parts *p;
    const struct comm *world;
    char who[SAVE_HOST + 48];
};

static bool ended(void *ctx)
{
    const struct waiting *w = ctx;
    return comm_aborted(w->world);
}

static const char *who(void *ctx, int rank)
{
    struct waiting *w = ctx;
    snprintf(w->who, sizeof w->who, "rank %d (host %s)", rank, w->p->hosts[rank]);
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
    struct waiting waiting = {.p = p, .world = s->t->mesh.world};
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
