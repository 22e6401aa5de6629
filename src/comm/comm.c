#include "base/log.h"
#include "comm/call.h"
#include "comm/gpu/device_comm.h"
#include "comm/health/call_list.h"
#include "comm/health/flight_recorder.h"
#include "comm/launch/rendezvous.h"
#include "comm/transport.h"
#include "dev/dev.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a rank */

/* A communicator without members yet; NULL: no memory. */
static struct comm *comm_new(const char *name, int rank, int ranks)
{
    struct comm *c = calloc(1, sizeof *c);
    if (c == NULL) return NULL;
    c->members = calloc((size_t)ranks, sizeof *c->members);
    if (c->members == NULL) {
        free(c);
        return NULL;
    }
    c->rank = rank;
    c->ranks = ranks;
    snprintf(c->name, sizeof c->name, "%s", name);
    return c;
}

static void comm_free(struct comm *c)
{
    if (c->calls) call_list_free(c->calls);
    free(c->calls);
    free(c->members);
    free(c);
}

/* Ranks of torchrun get the address of their shared memory by rendezvous. */
static status open_world(struct comm *c, struct comm_env e)
{
    if (e.by == COMM_BY_TORCHRUN) {
        const status met = rendezvous_open(&e, &e.fd);
        if (met != STATUS_OK && e.rank > 0) log_error("%s", status_message()); /* no other rank may know it */
        TRY(met);
    }
    TRY(c->transport->open(c, &e));
    const status st = comm_barrier(c, "start");
    if (st != STATUS_OK) c->transport->close(c, st);
    return st;
}

/* torchrun's ranks meet by rendezvous, and then share the memory of one host, as those of `ingot launch` do. */
static const struct host_transport *transport_of(enum comm_launcher by)
{
    switch (by) {
    case COMM_BY_NONE: /* one rank: comm_open has returned */
    case COMM_BY_LAUNCH:
    case COMM_BY_TORCHRUN: break;
    case COMM_BY_MPI: return &transport_mpi;
    }
    return &transport_shm;
}

status comm_open(struct comm **out, const struct comm_env *e)
{
    *out = NULL;
    if (e->ranks == 1) return STATUS_OK;
    struct comm *c = comm_new("", e->rank, e->ranks);
    if (c == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the description of a rank");
    c->world = c;
    c->local_rank = e->local_rank;
    c->local_ranks = e->ranks; /* mpi.c overwrites it */
    c->comm_ids = 1;
    for (int r = 0; r < c->ranks; r++) c->members[r] = r;
    c->calls = calloc(1, sizeof *c->calls);
    if (c->calls == NULL) {
        comm_free(c);
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the description of a rank");
    }
    c->transport = transport_of(e->by);
    status st = open_world(c, *e);
    if (st == STATUS_OK)
        *out = c;
    else
        comm_free(c);
    return st;
}

void comm_close(struct comm *c, status st)
{
    if (c == NULL) return;
    CHECK(c == c->world, "group '%s' is closed with all ranks", c->name);
    const struct host_transport *t = c->transport;
    if (c->device_ops && st != STATUS_OK && st != STATUS_STOPPED) c->device_ops->abort(c);
    if (c->device_ops) c->device_ops->stop(c);
    device_calls_free(&c->device_calls);
    t->close(c, st);
    c->groups[c->group_count++] = c; /* the world is freed last */
    for (int i = 0, count = c->group_count; i < count; i++) {
        struct comm *g = c->groups[i];
        if (g->mailbox.room > 0 && g->mailbox.memory) t->mailbox_close(g);
        comm_free(g);
    }
}

void comm_flight_recorder_dir(struct comm *c, const char *run_dir)
{
    char path[1024];
    if (c == NULL) return;
    snprintf(path, sizeof path, "%s/comm-flight.txt", run_dir);
    flight_recorder_path_set(c->world->flight, path);
}

int comm_rank(const struct comm *c)
{
    return c ? c->rank : 0;
}
int comm_ranks(const struct comm *c)
{
    return c ? c->ranks : 1;
}
int comm_local_rank(const struct comm *c)
{
    return c ? c->world->local_rank : 0;
}

double comm_wait_s(const struct comm *c)
{
    return c && c->world->monitor ? rank_monitor_waited_s(c->world->monitor) : 0;
}

int comm_straggler(const struct comm *world)
{
    return world && world->world->monitor ? rank_monitor_straggler(world->world->monitor) : -1;
}

/* ---- collectives */

static status carry_out(struct comm *c, const struct comm_call *what,
                        status (*by)(struct comm *, const struct comm_call *))
{
    struct comm *world = c->world;
    TRY(call_list_check(world->calls, c, what));
    flight_recorder_begin(world->flight, c, what);
    TRY(what->stream ? device_comm_call(c, what, by) : by(c, what));
    flight_recorder_end(world->flight, world->rank);
    return STATUS_OK;
}

status comm_execute(struct comm *c, struct comm_call what)
{
    what.sequence = ++c->sequence;
    CHECK(what.stream == NULL || c->comm_id < COMM_DEVICE_GROUPS, "'%s' is communicator %d of a GPU's rank",
          c->name, c->comm_id + 1);
    if (what.stream) return carry_out(c, &what, c->world->device_ops->call);
    return carry_out(c, &what, c->transport->collective);
}

status comm_all_to_all(struct comm *c, const char *name, const void *send, void *recv, size_t bytes,
                       struct stream *s)
{
    if (c == NULL) { return dev_copy(s, recv, send, bytes); }
    return comm_execute(
        c, (struct comm_call){
               .op = COMM_ALL_TO_ALL, .name = name, .send = send, .recv = recv, .bytes = bytes, .stream = s});
}

status comm_all_to_all_rows(struct comm *c, const char *name, const int64_t *counts, const void *send,
                            void *recv, size_t bytes, struct stream *s)
{
    CHECK(c || s == NULL, "'%s': rows of one GPU", name);
    if (c == NULL) return dev_copy(NULL, recv, send, (size_t)counts[0] * bytes);
    return comm_execute(c, (struct comm_call){.op = COMM_ALL_TO_ALL,
                                              .name = name,
                                              .send = send,
                                              .recv = recv,
                                              .bytes = bytes,
                                              .counts = counts,
                                              .stream = s});
}

status comm_all_gather(struct comm *c, const char *name, const void *mine, void *all, size_t bytes,
                       struct stream *s)
{
    if (c == NULL) { return mine == all ? STATUS_OK : dev_copy(s, all, mine, bytes); }
    return comm_execute(
        c, (struct comm_call){
               .op = COMM_ALL_GATHER, .name = name, .send = mine, .recv = all, .bytes = bytes, .stream = s});
}

status comm_ring_shift(struct comm *c, const char *name, int by, const void *send, void *recv, size_t bytes,
                       struct stream *s)
{
    CHECK(c && by > 0 && by < c->ranks, "'%s' shifts by %d ranks", name, by);
    return comm_execute(c, (struct comm_call){.op = COMM_SHIFT,
                                              .name = name,
                                              .send = send,
                                              .recv = recv,
                                              .bytes = bytes,
                                              .by = by,
                                              .stream = s});
}

status comm_gather(struct comm *c, const char *name, const void *mine, void *all, size_t bytes)
{
    if (c == NULL) {
        if (mine != all) memcpy(all, mine, bytes);
        return STATUS_OK;
    }
    return comm_execute(
        c, (struct comm_call){.op = COMM_GATHER, .name = name, .send = mine, .recv = all, .bytes = bytes});
}

status comm_broadcast(struct comm *c, const char *name, void *x, size_t bytes, struct stream *s)
{
    if (c == NULL) return STATUS_OK;
    return comm_execute(
        c, (struct comm_call){
               .op = COMM_BROADCAST, .name = name, .send = x, .recv = x, .bytes = bytes, .stream = s});
}

status comm_barrier(struct comm *c, const char *name)
{
    if (c == NULL) return STATUS_OK;
    return comm_execute(c, (struct comm_call){.op = COMM_BARRIER, .name = name});
}

/* ---- groups */

/* What each rank contributes to a split of its communicator. */
struct split_entry {
    int32_t color, key, world_rank;
    uint32_t comm_ids;
};

/* Moves the entries with this rank's color to the front, sorted by key; returns how many. Equal keys keep the
 * order of ranks. */
static int choose_members(struct split_entry *all, int ranks, int32_t color)
{
    int count = 0;
    for (int r = 0; r < ranks; r++) {
        if (all[r].color != color) continue;
        const struct split_entry w = all[r];
        int at = count++;
        for (; at > 0 && all[at - 1].key > w.key; at--) all[at] = all[at - 1];
        all[at] = w;
    }
    return count;
}

/* This rank's group. Its number is the lowest that none of its ranks uses yet. */
static status make_group(struct comm *parent, const char *name, const struct split_entry *all, int count,
                         struct comm **out)
{
    struct comm *world = parent->world;
    uint32_t used = 0;
    int comm_id = 0;
    for (int r = 0; r < count; r++) used |= all[r].comm_ids;
    while (comm_id < COMM_GROUPS && used >> comm_id & 1) comm_id++;
    if (comm_id == COMM_GROUPS)
        return FAIL(STATUS_CONFIG, "group '%s': a rank of it is in %d communicators already", name,
                    COMM_GROUPS);
    struct comm *c = comm_new(name, 0, count);
    if (c == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the description of group '%s'", name);
    for (int r = 0; r < count; r++) {
        c->members[r] = all[r].world_rank;
        if (c->members[r] == world->rank) c->rank = r;
    }
    c->world = world;
    c->comm_id = comm_id;
    c->transport = parent->transport;
    c->shm = parent->shm;
    c->mpi = parent->mpi;
    world->comm_ids |= 1U << comm_id;
    const struct host_transport *t = world->transport;
    world->memory.host +=
        t->bytes(world->ranks, world->local_ranks, 1) - t->bytes(world->ranks, world->local_ranks, 0);
    world->groups[world->group_count++] = c;
    *out = c;
    return STATUS_OK;
}

status comm_split(struct comm *parent, const char *name, int color, int key, struct comm **out)
{
    struct split_entry all[COMM_RANKS_MAX];
    *out = NULL;
    if (parent == NULL) return STATUS_OK;
    const struct split_entry mine = {color, key, parent->world->rank, parent->world->comm_ids};
    TRY(comm_execute(parent,
                     (struct comm_call){
                         .op = COMM_SPLIT, .name = name, .send = &mine, .recv = all, .bytes = sizeof mine}));
    const int count = choose_members(all, parent->ranks, color);
    status st = count > 1 ? make_group(parent, name, all, count, out) : STATUS_OK;
    return st == STATUS_OK ? parent->transport->split(parent, *out, key) : st;
}

/* ---- messages */

status comm_mailbox_open(struct comm *c, size_t bytes_max, int depth, struct stream *s)
{
    if (c == NULL) return STATUS_OK;
    CHECK(c->mailbox.room == 0, "the mail of '%s' is open", c->name);
    CHECK(depth > 0 && bytes_max > 0, "%d messages of %zu bytes", depth, bytes_max);
    const uint64_t mine[2] = {bytes_max, (uint64_t)depth};
    uint64_t all[COMM_RANKS_MAX][2];
    TRY(comm_all_gather(c, "size of messages", mine, all, sizeof mine, NULL));
    for (int r = 0; r < c->ranks; r++) {
        char who[COMM_TEXT];
        if (all[r][0] != mine[0] || all[r][1] != mine[1])
            return FAIL(STATUS_COMM,
                        "%.100s wants room for %llu messages of %llu bytes, this one for %d of %zu",
                        comm_rank_text(c, r, who), (unsigned long long)all[r][1],
                        (unsigned long long)all[r][0], depth, bytes_max);
    }
    c->mailbox = mailbox_of(bytes_max, depth);
    c->mailbox.on_device = s != NULL;
    status st = s ? c->world->device_ops->mailbox_open(c) : c->transport->mailbox_open(c);
    if (st != STATUS_OK) c->mailbox.room = 0;
    return st;
}

bool comm_mail_by_nccl(const struct comm *c)
{
    return c && c->world->device_ops && c->world->device_ops->mail_by_nccl(c);
}

status comm_mailbox_settle(struct comm *c, struct stream *s)
{
    return c && c->mailbox.on_device ? c->world->device_ops->mailbox_settle(c, s) : STATUS_OK;
}

static status message(struct comm *c, struct comm_call what)
{
    CHECK(c, "'%s': one rank has nobody to send to", what.name);
    CHECK(c->mailbox.on_device == (what.stream != NULL), "'%s': the mail is elsewhere", what.name);
    CHECK(what.bytes <= c->mailbox.bytes_max, "message '%s' of %zu bytes, there is room for %zu", what.name,
          what.bytes, c->mailbox.bytes_max);
    uint64_t *count = what.op == COMM_SEND ? c->mailbox.sent : c->mailbox.taken;
    what.sequence = ++count[what.way];
    if (what.stream) return carry_out(c, &what, c->world->device_ops->message);
    return carry_out(c, &what, c->transport->message);
}

status comm_send(struct comm *c, const char *name, enum comm_way way, const void *data, size_t bytes,
                 struct stream *s)
{
    return message(c,
                   (struct comm_call){
                       .op = COMM_SEND, .name = name, .way = way, .send = data, .bytes = bytes, .stream = s});
}

status comm_recv(struct comm *c, const char *name, enum comm_way way, void *data, size_t bytes,
                 struct stream *s)
{
    return message(c,
                   (struct comm_call){
                       .op = COMM_RECV, .name = name, .way = way, .recv = data, .bytes = bytes, .stream = s});
}
