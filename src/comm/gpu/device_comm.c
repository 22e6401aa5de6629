#include "comm/call.h"
#include "comm/transport.h"
#include "comm/health/heartbeat.h"
#include "comm/health/call_list.h"
#include "comm/gpu/device_comm.h"
#include "comm/health/flight_recorder.h"

#include <stdlib.h>
#include <string.h>

struct device_call_entry {
    const struct comm *c;
    struct comm_call call;
};

/* ---- the call that a rank is in */

enum { BETWEEN = 1024 }; /* calls remembered between two steps */

static status note(struct comm *world, const struct comm *c, const struct comm_call *call)
{
    struct device_calls *l = &world->device_calls;
    if (world->calls->mode == CALL_LIST_OFF && l->count - l->step >= BETWEEN) l->count = l->step;
    if (l->count == l->room) {
        const int room = l->room ? 2 * l->room : 256;
        struct device_call_entry *list = realloc(l->list, (size_t)room * sizeof *list);
        if (list == NULL)
            return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the list of %d queued calls", room);
        l->list = list;
        l->room = room;
    }
    if (l->count < DEVICE_FLAGS) l->done[l->count] = 0;
    l->list[l->count++] = (struct device_call_entry){c, *call};
    return STATUS_OK;
}

/* The first call that has not finished, or NULL. */
static const struct device_call_entry *waiting(const struct comm *world)
{
    const struct device_calls *l = &world->device_calls;
    for (int i = world->calls->mode == CALL_LIST_OFF ? l->step : 0; i < l->count && i < DEVICE_FLAGS; i++)
        if (!l->done[i]) return &l->list[i];
    return NULL;
}

void device_calls_begin(struct comm *world, bool replay)
{
    struct device_calls *l = &world->device_calls;
    if (world->device_ops == NULL) return;
    l->count = l->step = replay ? l->step : 0;
    for (int i = 0; i < l->count && i < DEVICE_FLAGS; i++) l->done[i] = 0;
}

void device_calls_end(struct comm *world)
{
    world->device_calls.step = world->device_calls.count;
}

void device_calls_free(struct device_calls *l)
{
    free(l->list);
    *l = (struct device_calls){0};
}

/* ---- calls */

/* In a first step ranks compare each call before it is queued: mismatched calls would hang or mix data. */
static status agree(struct comm *c, const struct comm_call *call)
{
    struct comm_header mine, *all = calloc((size_t)c->ranks, sizeof *all);
    if (all == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the calls of %d ranks", c->ranks);
    comm_header_fill(&mine, c, call);
    status st = transport_all_gather(c, call->name, &mine, all, sizeof mine);
    for (int r = 0; r < c->ranks && st == STATUS_OK; r++)
        st = comm_header_check(c, &mine, c->rank, &all[r], r);
    free(all);
    return st;
}

status device_comm_call(struct comm *c, const struct comm_call *call,
                        status (*by)(struct comm *, const struct comm_call *))
{
    struct comm *world = c->world;
    const bool message = call->op == COMM_SEND || call->op == COMM_RECV;
    if (world->calls->mode == CALL_LIST_RECORD && !message) TRY(agree(c, call));
    TRY(note(world, c, call));
    const int number = world->device_calls.count - 1;
    struct comm_call marked = *call;
    if (number < DEVICE_FLAGS) marked.done_flag = world->device_calls.done + number;
    return by(c, &marked);
}

/* ---- waiting */

status device_comm_poll_peers(void *look_at)
{
    struct comm *world = look_at;
    const struct device_call_entry *e = waiting(world);
    const struct comm_call work = {.op = COMM_IDLE, .name = "the GPU's work", .sequence = world->sequence};
    const status st = rank_monitor_check(world->monitor, e ? e->c : world, e ? &e->call : &work);
    if (st != STATUS_OK) world->device_ops->abort(world);
    return st;
}
