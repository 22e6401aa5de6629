/* One static list of calls per step. The first step writes it down; ranks that share a communicator compare what they
 * called there, and every later step is compared with the list, call by call, before anything is sent. */
#include "comm/call.h"
#include "comm/health/call_list.h"
#include "comm/gpu/device_comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct call_list_entry {
    const char *name; /* a string literal of the caller */
    uint64_t bytes;
    int op, way, comm_id;
    bool queued; /* on a GPU */
};

static const char *entry_text(const struct comm *world, const struct call_list_entry *e, char text[COMM_TEXT])
{
    const char *group = "all ranks";
    for (int i = 0; i < world->group_count; i++)
        if (world->groups[i]->comm_id == e->comm_id) group = world->groups[i]->name;
    snprintf(text, COMM_TEXT, "%s '%.31s' of %llu bytes in '%.31s'", comm_op_text((enum comm_op)e->op),
             e->name, (unsigned long long)e->bytes, group);
    return text;
}

static bool same_entry(const struct call_list_entry *a, const struct call_list_entry *b)
{
    return a->bytes == b->bytes && a->op == b->op && a->way == b->way && a->comm_id == b->comm_id &&
           strcmp(a->name, b->name) == 0;
}

static status learn(struct call_list *l, const struct call_list_entry *e)
{
    if (l->count == l->room) {
        const int room = l->room ? 2 * l->room : 256;
        struct call_list_entry *list = realloc(l->list, (size_t)room * sizeof *list);
        if (list == NULL)
            return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the list of %d calls of a step", room);
        l->list = list;
        l->room = room;
    }
    l->list[l->count++] = *e;
    return STATUS_OK;
}

static void skip_replayed(struct call_list *l)
{
    while (l->mode == CALL_LIST_REPLAY && l->at < l->count && l->list[l->at].queued) l->at++;
}

status call_list_check(struct call_list *l, const struct comm *c, const struct comm_call *call)
{
    if (l->mode == CALL_LIST_OFF) return STATUS_OK;
    const struct call_list_entry e = {call->name,     call->bytes, (int)call->op,
                                      (int)call->way, c->comm_id,  call->stream != NULL};
    if (l->mode == CALL_LIST_RECORD) return learn(l, &e);
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

void call_list_free(struct call_list *l)
{
    free(l->list);
    *l = (struct call_list){.list = NULL};
}

/* FNV-1a over the collectives of one communicator. Messages are left out: they differ between ranks. */
uint64_t call_list_hash(const struct call_list *l, int comm_id)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < l->count; i++) {
        const struct call_list_entry *e = &l->list[i];
        char text[COMM_NAME + 64];
        if (e->comm_id != comm_id || e->op == COMM_SEND || e->op == COMM_RECV) continue;
        const int n =
            snprintf(text, sizeof text, "%d %llu %.31s;", e->op, (unsigned long long)e->bytes, e->name);
        for (int k = 0; k < n; k++) hash = (hash ^ (unsigned char)text[k]) * 0x100000001b3u;
    }
    return hash;
}

status call_list_end(struct call_list *l, const struct comm *world)
{
    const bool first = l->mode == CALL_LIST_RECORD;
    char then[COMM_TEXT];
    skip_replayed(l);
    l->mode = CALL_LIST_OFF;
    if (first || l->at == l->count) return STATUS_OK;
    return FAIL(STATUS_COMM, "rank %d: this step ends after %d calls, in the first step %.150s came next",
                world->rank, l->at, entry_text(world, &l->list[l->at], then));
}
