/* The calls of a training step as one list, the same on all ranks and in every step (health/call_list.h). */
#include "comm/call.h"
#include "comm/gpu/device_comm.h"
#include "comm/health/call_list.h"

#include <stdlib.h>

void comm_step_begin(struct comm *c, enum comm_step step)
{
    const bool first = step == COMM_STEP_FIRST;
    if (c == NULL) return;
    CHECK(c == c->world, "a step is of all ranks, not of '%s'", c->name);
    c->calls->at = 0;
    if (first) c->calls->count = 0;
    c->calls->mode = first                      ? CALL_LIST_RECORD
                     : step == COMM_STEP_REPLAY ? CALL_LIST_REPLAY
                                                : CALL_LIST_COMPARE;
    device_calls_begin(c, step == COMM_STEP_REPLAY);
}

/* Checks that the ranks of each communicator made the same calls. */
static status compare_ranks(struct comm *c)
{
    uint64_t mine[COMM_GROUPS] = {0}, (*all)[COMM_GROUPS] = calloc((size_t)c->ranks, sizeof *all);
    if (all == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the lists of calls of %d ranks", c->ranks);
    for (int p = 0; p < COMM_GROUPS; p++) mine[p] = call_list_hash(c->calls, p);
    status st = comm_all_gather(c, "list of calls", mine, all, sizeof mine, NULL);
    for (int g = -1; g < c->group_count && st == STATUS_OK; g++) {
        const struct comm *group = g < 0 ? c : c->groups[g];
        for (int r = 0; r < group->ranks && st == STATUS_OK; r++) {
            char who[COMM_TEXT];
            if (all[group->members[r]][group->comm_id] == mine[group->comm_id]) continue;
            st = FAIL(STATUS_COMM, "rank %d and %.100s call different collectives in the first step", c->rank,
                      comm_rank_text(group, r, who));
        }
    }
    free(all);
    return st;
}

void comm_calls_untracked(struct comm *c, bool begins)
{
    if (c == NULL) return;
    if (begins) c->calls->mode_aside = c->calls->mode;
    c->calls->mode = begins ? CALL_LIST_OFF : c->calls->mode_aside;
}

void comm_step_drop(struct comm *c)
{
    if (c == NULL) return;
    c->calls->mode = CALL_LIST_OFF;
    device_calls_end(c);
}

status comm_step_end(struct comm *c)
{
    if (c == NULL) return STATUS_OK;
    struct call_list *l = c->calls;
    const bool first = l->mode == CALL_LIST_RECORD;
    const status st = call_list_end(l, c);
    device_calls_end(c);
    return first ? compare_ranks(c) : st;
}
