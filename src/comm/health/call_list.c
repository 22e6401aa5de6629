/* One static list of calls per step. The first step writes it down; ranks that share a communicator compare what they called there, and
 * every later step is compared with the list, call by call, before anything is sent. */
#include "comm/health/call_list.h"
#include "comm/gpu/device_comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct calls_entry {
    const char *name; /* a literal of the caller */
    uint64_t bytes;
    int op, way, plane;
    bool queued; /* on a GPU */
};

static const char *entry_text(const struct comm *world, const struct calls_entry *e, char text[COMM_TEXT])
{
    const char *group = "all ranks";
    for (int i = 0; i < world->group_count; i++)
        if (world->groups[i]->plane == e->plane) group = world->groups[i]->name;
    snprintf(text, COMM_TEXT, "%s '%.31s' of %llu bytes in '%.31s'", comm_op_text((enum comm_op)e->op),
             e->name, (unsigned long long)e->bytes, group);
    return text;
}

static bool same_entry(const struct calls_entry *a, const struct calls_entry *b)
{
    return a->bytes == b->bytes && a->op == b->op && a->way == b->way && a->plane == b->plane &&
           strcmp(a->name, b->name) == 0;
}

static status learn(struct calls *l, const struct calls_entry *e)
{
    if (l->count == l->room) {
        const int room = l->room ? 2 * l->room : 256;
        struct calls_entry *list = realloc(l->list, (size_t)room * sizeof *list);
        if (list == NULL) return FAIL(STATUS_FIT, "no memory for the list of %d calls of a step", room);
        l->list = list;
        l->room = room;
    }
    l->list[l->count++] = *e;
    return STATUS_OK;
}

static void skip_replayed(struct calls *l)
{
    while (l->mode == CALLS_REPLAY && l->at < l->count && l->list[l->at].queued) l->at++;
}

status calls_note(struct calls *l, const struct comm *c, const struct comm_call *call)
{
    if (l->mode == CALLS_OFF) return STATUS_OK;
    const struct calls_entry e = {call->name,     call->bytes, (int)call->op,
                                  (int)call->way, c->plane,    call->stream != NULL};
    if (l->mode == CALLS_LEARN) return learn(l, &e);
    skip_replayed(l);
    if (l->at < l->count && same_entry(&e, &l->list[l->at])) {
        l->at++;
        return STATUS_OK;
    }
    char now[COMM_TEXT], then[COMM_TEXT] = "the end";
    if (l->at < l->count) entry_text(c->world, &l->list[l->at], then);
    return FAIL(STATUS_COMM,
                "rank %d: call %d of this step is %.150s, in the first step it was %.150s: steps must do the "
                "same",
                c->world->rank, l->at + 1, entry_text(c->world, &e, now), then);
}

void calls_free(struct calls *l)
{
    free(l->list);
    *l = (struct calls){.list = NULL};
}

/* ---- steps */

void comm_step_begin(struct comm *c, enum comm_step step)
{
    const bool first = step == COMM_STEP_FIRST;
    if (c == NULL) return;
    CHECK(c == c->world, "a step is of all ranks, not of '%s'", c->name);
    c->calls->at = 0;
    if (first) c->calls->count = 0;
    c->calls->mode = first ? CALLS_LEARN : step == COMM_STEP_REPLAY ? CALLS_REPLAY : CALLS_COMPARE;
    card_calls_begin(c, step == COMM_STEP_REPLAY);
}

/* FNV-1a over the collectives of one communicator: messages differ from rank to rank. */
static uint64_t hash_of(const struct calls *l, int plane)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < l->count; i++) {
        const struct calls_entry *e = &l->list[i];
        char text[COMM_NAME + 64];
        if (e->plane != plane || e->op == COMM_SEND || e->op == COMM_RECV) continue;
        const int n =
            snprintf(text, sizeof text, "%d %llu %.31s;", e->op, (unsigned long long)e->bytes, e->name);
        for (int k = 0; k < n; k++) hash = (hash ^ (unsigned char)text[k]) * 0x100000001b3u;
    }
    return hash;
}

/* The ranks of each communicator have called the same there. */
static status compare_ranks(struct comm *c)
{
    uint64_t mine[COMM_GROUPS] = {0}, (*all)[COMM_GROUPS] = calloc((size_t)c->ranks, sizeof *all);
    if (all == NULL) return FAIL(STATUS_FIT, "no memory for the lists of calls of %d ranks", c->ranks);
    for (int p = 0; p < COMM_GROUPS; p++) mine[p] = hash_of(c->calls, p);
    status st = comm_all_gather(c, "list of calls", mine, all, sizeof mine, NULL);
    for (int g = -1; g < c->group_count && st == STATUS_OK; g++) {
        const struct comm *group = g < 0 ? c : c->groups[g];
        for (int r = 0; r < group->ranks && st == STATUS_OK; r++) {
            char who[COMM_TEXT];
            if (all[group->members[r]][group->plane] == mine[group->plane]) continue;
            st = FAIL(STATUS_COMM, "rank %d and %.100s call different collectives in the first step", c->rank,
                      comm_rank_text(group, r, who));
        }
    }
    free(all);
    return st;
}

status comm_step_end(struct comm *c)
{
    if (c == NULL) return STATUS_OK;
    struct calls *l = c->calls;
    const bool first = l->mode == CALLS_LEARN;
    char then[COMM_TEXT];
    skip_replayed(l);
    l->mode = CALLS_OFF;
    card_calls_end(c);
    if (first) return compare_ranks(c);
    if (l->at == l->count) return STATUS_OK;
    return FAIL(STATUS_COMM, "rank %d: this step ends after %d calls, in the first step %.150s came next",
                c->rank, l->at, entry_text(c, &l->list[l->at], then));
}
