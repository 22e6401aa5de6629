#include "base/text.h"
#include "comm/health/heartbeat.h"
#include "comm/health/call_list.h"
#include "comm/gpu/device_comm.h"
#include "comm/health/flight_recorder.h"
#include "dev/dev.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the environment */

/* A number of the environment in [0, max]; absent: *found false. */
static status env_number(const char *name, int max, int *value, bool *found)
{
    const char *text = getenv(name);
    int64_t n;
    *found = text && text[0];
    if (!*found) return STATUS_OK;
    if (!text_to_int(text, &n) || n < 0 || n > max)
        return FAIL(STATUS_CONFIG, "%s=%.20s: it must be a number from 0 to %d; `ingot launch` sets it", name,
                    text, max);
    *value = (int)n;
    return STATUS_OK;
}

/* The names under which launchers say which rank this is, of how many. */
struct launcher {
    const char *rank, *ranks, *local, *name;
    enum comm_by by;
};
static const struct launcher launchers[] = {
    {"INGOT_RANK", "INGOT_RANKS", "INGOT_LOCAL_RANK", "ingot launch", COMM_BY_LAUNCH},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "mpirun", COMM_BY_MPI},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "srun", COMM_BY_MPI},
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "torchrun", COMM_BY_TORCHRUN},
};

static status read_launcher(const struct launcher *l, struct comm_env *e, bool *found)
{
    bool rank, ranks, local;
    *e = (struct comm_env){.rank = 0, .ranks = 1, .fd = -1};
    TRY(env_number(l->rank, COMM_RANKS_MAX - 1, &e->rank, &rank));
    TRY(env_number(l->ranks, COMM_RANKS_MAX, &e->ranks, &ranks));
    TRY(env_number(l->local, COMM_RANKS_MAX - 1, &e->local_rank, &local));
    if (!local) e->local_rank = e->rank; /* one machine */
    *found = ranks && (rank || l->by == COMM_BY_LAUNCH);
    if (l->by == COMM_BY_LAUNCH ? rank != ranks : false)
        return FAIL(STATUS_CONFIG, "%s and %s do not fit each other: `%s` sets both", l->rank, l->ranks,
                    l->name);
    if (!*found) return STATUS_OK;
    if (e->ranks < 1 || e->rank >= e->ranks)
        return FAIL(STATUS_CONFIG, "%s and %s do not fit each other: rank %d of %d; `%s` sets both", l->rank,
                    l->ranks, e->rank, e->ranks, l->name);
    e->by = l->by;
    return STATUS_OK;
}

/* The memory in which the ranks of `ingot launch` meet. */
static status read_meeting(struct comm_env *e)
{
    const char *how = getenv("INGOT_COMM");
    int64_t fd;
    if (how == NULL || strncmp(how, "fd:", 3) != 0 || !text_to_int(how + 3, &fd) || fd < 0 || fd > INT_MAX)
        return FAIL(STATUS_CONFIG,
                    "INGOT_COMM does not say how the %d ranks meet (fd:N); start them with `ingot launch`",
                    e->ranks);
    e->fd = (int)fd;
    return STATUS_OK;
}

status comm_env_read(struct comm_env *e)
{
    bool found = false;
    enum { COUNT = sizeof launchers / sizeof launchers[0] };
    if (getenv("TORCHELASTIC_RUN_ID")) /* inside of srun or mpirun, perhaps */
        TRY(read_launcher(&launchers[COUNT - 1], e, &found));
    for (size_t i = 0; i < COUNT && !found; i++) TRY(read_launcher(&launchers[i], e, &found));
    if (!found) *e = (struct comm_env){.rank = 0, .ranks = 1, .fd = -1};
    if (e->ranks == 1) return STATUS_OK;
    return e->by == COMM_BY_LAUNCH ? read_meeting(e) : STATUS_OK;
}

/* ---- what calls are called */

const char *comm_op_text(enum comm_op op)
{
    static const char *const texts[] = {
#define X(name, text) text,
        COMM_OPS(X)
#undef X
    };
    return texts[op];
}

const char *comm_rank_text(const struct comm *c, int rank, char text[COMM_TEXT])
{
    if (c == c->world)
        snprintf(text, COMM_TEXT, "rank %d", rank);
    else
        snprintf(text, COMM_TEXT, "rank %d (rank %d of '%s')", c->members[rank], rank, c->name);
    return text;
}

const char *comm_call_text(const struct comm *c, const struct comm_call *call, char text[COMM_TEXT])
{
    const bool message = call->op == COMM_SEND || call->op == COMM_RECV, all = c == c->world;
    snprintf(text, COMM_TEXT, "%s %llu%s%s%s, %s '%s'", message ? "message" : "collective",
             (unsigned long long)call->sequence, all ? "" : " of '", c->name, all ? "" : "'",
             comm_op_text(call->op), call->name);
    return text;
}

int comm_neighbour(const struct comm *c, const struct comm_call *call)
{
    const bool forward = (call->way == COMM_NEXT) == (call->op == COMM_SEND);
    return (c->rank + (forward ? 1 : c->ranks - 1)) % c->ranks;
}

void comm_header_fill(struct comm_header *h, const struct comm_call *call)
{
    *h = (struct comm_header){.sequence = call->sequence, .bytes = call->bytes, .op = (int32_t)call->op};
    snprintf(h->name, sizeof h->name, "%s", call->name);
}

status comm_header_check(const struct comm *c, const struct comm_header *a, int rank_a,
                         const struct comm_header *b, int rank_b)
{
    char who_a[COMM_TEXT], who_b[COMM_TEXT];
    if (a->sequence == b->sequence && a->bytes == b->bytes && a->op == b->op && strcmp(a->name, b->name) == 0)
        return STATUS_OK; /* field by field: between them lies padding */
    if (rank_b < rank_a) return comm_header_check(c, b, rank_b, a, rank_a);
    return FAIL(
        STATUS_COMM,
        "the ranks do different things: %.100s calls %s '%s' of %llu bytes (number %llu), %.100s calls %s "
        "'%s' of %llu bytes (number %llu); give all of them the same command",
        comm_rank_text(c, rank_a, who_a), comm_op_text((enum comm_op)a->op), a->name,
        (unsigned long long)a->bytes, (unsigned long long)a->sequence, comm_rank_text(c, rank_b, who_b),
        comm_op_text((enum comm_op)b->op), b->name, (unsigned long long)b->bytes,
        (unsigned long long)b->sequence);
}

status comm_message_check(const struct comm *c, const struct comm_header *sent, const struct comm_call *call)
{
    char from[COMM_TEXT], to[COMM_TEXT];
    struct comm_header asked;
    comm_header_fill(&asked, call);
    if (sent->sequence == asked.sequence && sent->bytes == asked.bytes && strcmp(sent->name, asked.name) == 0)
        return STATUS_OK;
    return FAIL(STATUS_COMM,
                "the ranks do different things: %.100s sends '%s' of %llu bytes to the %s rank (message "
                "%llu), and there %.100s asks for '%s' of %zu bytes (message %llu)",
                comm_rank_text(c, comm_neighbour(c, call), from), sent->name, (unsigned long long)sent->bytes,
                call->way == COMM_NEXT ? "next" : "previous", (unsigned long long)sent->sequence,
                comm_rank_text(c, c->rank, to), call->name, call->bytes, (unsigned long long)call->sequence);
}

/* ---- a rank */

/* A communicator whose members are still to be written; NULL: no memory. */
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
    if (c->calls) calls_free(c->calls);
    free(c->calls);
    free(c->members);
    free(c);
}

status comm_open(struct comm **out, const struct comm_env *e)
{
    *out = NULL;
    if (e->ranks == 1) return STATUS_OK;
    struct comm *c = comm_new("", e->rank, e->ranks);
    if (c == NULL) return FAIL(STATUS_FIT, "no memory for the description of a rank");
    c->world = c;
    c->local_rank = e->local_rank;
    c->local_ranks = e->ranks; /* mpi.c knows better */
    c->planes = 1;
    for (int r = 0; r < c->ranks; r++) c->members[r] = r;
    c->calls = calloc(1, sizeof *c->calls);
    if (c->calls == NULL) {
        comm_free(c);
        return FAIL(STATUS_FIT, "no memory for the description of a rank");
    }
    status st = e->by == COMM_BY_MPI ? mpi_open(c, e) : local_open(c, e);
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
    const bool mpi = c->mpi != NULL;
    if (c->driver && st != STATUS_OK && st != STATUS_STOPPED) c->driver->give_up(c);
    if (c->driver) c->driver->stop(c);
    card_calls_free(&c->cards);
    if (mpi)
        mpi_close(c, st);
    else
        local_close(c, st);
    c->groups[c->group_count++] = c; /* the last one */
    for (int i = 0, count = c->group_count; i < count; i++) {
        struct comm *g = c->groups[i];
        if (g->mail.room > 0 && !g->mail.on_card) mpi ? mpi_mail_close(g) : local_mail_close(g);
        comm_free(g);
    }
}

void comm_flight_dir(struct comm *c, const char *run_dir)
{
    char path[1024];
    if (c == NULL) return;
    snprintf(path, sizeof path, "%s/comm-flight.txt", run_dir);
    flight_path_set(c->world->flight, path);
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

/* ---- collectives */

static status carry_out(struct comm *c, const struct comm_call *what,
                        status (*by)(struct comm *, const struct comm_call *))
{
    struct comm *world = c->world;
    TRY(calls_note(world->calls, c, what));
    flight_begin(world->flight, c, what);
    TRY(what->stream ? card_call(c, what, by) : by(c, what));
    flight_end(world->flight, world->rank);
    return STATUS_OK;
}

status comm_carry(struct comm *c, struct comm_call what)
{
    what.sequence = ++c->sequence;
    if (what.stream) return carry_out(c, &what, c->world->driver->call);
    return carry_out(c, &what, c->mpi ? mpi_call : local_call);
}

status comm_all_to_all(struct comm *c, const char *name, const void *send, void *recv, size_t bytes,
                       struct stream *s)
{
    if (c == NULL) { return dev_copy(s, recv, send, bytes); }
    return comm_carry(
        c, (struct comm_call){
               .op = COMM_ALL_TO_ALL, .name = name, .send = send, .recv = recv, .bytes = bytes, .stream = s});
}

status comm_all_gather(struct comm *c, const char *name, const void *mine, void *all, size_t bytes,
                       struct stream *s)
{
    if (c == NULL) { return mine == all ? STATUS_OK : dev_copy(s, all, mine, bytes); }
    return comm_carry(
        c, (struct comm_call){
               .op = COMM_ALL_GATHER, .name = name, .send = mine, .recv = all, .bytes = bytes, .stream = s});
}

status comm_shift(struct comm *c, const char *name, int by, const void *send, void *recv, size_t bytes,
                  struct stream *s)
{
    CHECK(c && by > 0 && by < c->ranks, "'%s' goes %d ranks on", name, by);
    return comm_carry(c, (struct comm_call){.op = COMM_SHIFT,
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
    return comm_carry(
        c, (struct comm_call){.op = COMM_GATHER, .name = name, .send = mine, .recv = all, .bytes = bytes});
}

status comm_broadcast(struct comm *c, const char *name, void *x, size_t bytes, struct stream *s)
{
    if (c == NULL) return STATUS_OK;
    return comm_carry(
        c, (struct comm_call){
               .op = COMM_BROADCAST, .name = name, .send = x, .recv = x, .bytes = bytes, .stream = s});
}

status comm_say(struct comm *c, const char *name, const void *mine, void *all, size_t bytes)
{
    const struct comm_call what = {.op = COMM_ALL_GATHER,
                                   .name = name,
                                   .send = mine,
                                   .recv = all,
                                   .bytes = bytes,
                                   .sequence = ++c->sequence};
    return c->mpi ? mpi_call(c, &what) : local_call(c, &what);
}

status comm_barrier(struct comm *c, const char *name)
{
    if (c == NULL) return STATUS_OK;
    return comm_carry(c, (struct comm_call){.op = COMM_BARRIER, .name = name});
}

/* ---- groups */

/* What a rank says when its communicator is split. */
struct wish {
    int32_t color, key, world_rank;
    uint32_t planes;
};

/* The wishes with this rank's color, by key, to the front; returns how many. Equal keys stay in the order of ranks. */
static int choose_members(struct wish *all, int ranks, int32_t color)
{
    int count = 0;
    for (int r = 0; r < ranks; r++) {
        if (all[r].color != color) continue;
        const struct wish w = all[r];
        int at = count++;
        for (; at > 0 && all[at - 1].key > w.key; at--) all[at] = all[at - 1];
        all[at] = w;
    }
    return count;
}

/* This rank's group: numbered by the lowest number that none of its ranks uses yet. */
static status make_group(struct comm *parent, const char *name, const struct wish *all, int count,
                         struct comm **out)
{
    struct comm *world = parent->world;
    uint32_t used = 0;
    int plane = 0;
    for (int r = 0; r < count; r++) used |= all[r].planes;
    while (plane < COMM_GROUPS && used >> plane & 1) plane++;
    if (plane == COMM_GROUPS)
        return FAIL(STATUS_CONFIG, "group '%s': a rank of it is in %d communicators already", name,
                    COMM_GROUPS);
    struct comm *c = comm_new(name, 0, count);
    if (c == NULL) return FAIL(STATUS_FIT, "no memory for the description of group '%s'", name);
    for (int r = 0; r < count; r++) {
        c->members[r] = all[r].world_rank;
        if (c->members[r] == world->rank) c->rank = r;
    }
    c->world = world;
    c->plane = plane;
    c->local = parent->local;
    c->mpi = parent->mpi;
    world->planes |= 1U << plane;
    if (world->local) world->room.host += local_room(world->ranks, 1) - local_room(world->ranks, 0);
    world->groups[world->group_count++] = c;
    *out = c;
    return STATUS_OK;
}

status comm_split(struct comm *parent, const char *name, int color, int key, struct comm **out)
{
    struct wish all[COMM_RANKS_MAX];
    *out = NULL;
    if (parent == NULL) return STATUS_OK;
    const struct wish mine = {color, key, parent->world->rank, parent->world->planes};
    TRY(comm_carry(parent,
                   (struct comm_call){
                       .op = COMM_SPLIT, .name = name, .send = &mine, .recv = all, .bytes = sizeof mine}));
    const int count = choose_members(all, parent->ranks, color);
    status st = count > 1 ? make_group(parent, name, all, count, out) : STATUS_OK;
    if (st == STATUS_OK && parent->mpi) st = mpi_split(parent, *out, key);
    return st;
}

/* ---- messages */

status comm_mail_open(struct comm *c, size_t bytes_max, int depth, struct stream *s)
{
    if (c == NULL) return STATUS_OK;
    CHECK(c->mail.room == 0, "the mail of '%s' is open", c->name);
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
    c->mail = mail_of(bytes_max, depth);
    c->mail.on_card = s != NULL;
    status st = s ? c->world->driver->mail_open(c) : c->mpi ? mpi_mail_open(c) : local_mail_open(c);
    if (st != STATUS_OK) c->mail.room = 0;
    return st;
}

void comm_mail_settle(struct comm *c)
{
    if (c && c->mail.on_card) c->world->driver->mail_settle(c);
}

static status message(struct comm *c, struct comm_call what)
{
    CHECK(c, "'%s': one rank has nobody to send to", what.name);
    CHECK(c->mail.on_card == (what.stream != NULL), "'%s': the mail is elsewhere", what.name);
    CHECK(what.bytes <= c->mail.bytes_max, "message '%s' of %zu bytes, there is room for %zu", what.name,
          what.bytes, c->mail.bytes_max);
    uint64_t *count = what.op == COMM_SEND ? c->mail.sent : c->mail.taken;
    what.sequence = ++count[what.way];
    if (what.stream) return carry_out(c, &what, c->world->driver->message);
    return carry_out(c, &what, c->mpi ? mpi_message : local_message);
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
