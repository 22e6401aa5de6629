#include "comm/cuda_near.h"
#include "base/log.h"
#include "comm/board.h"
#include "dev/cuda_int.h"

#include <stdlib.h>
#include <string.h>

/* A call, and where each rank of its communicator has what this one takes. */
struct near_route {
    const struct comm *c;
    const void *send;
    size_t bytes;
    enum comm_op op;
    bool shared;
    const char **from; /* [ranks], owned */
};

/* ---- memory */

struct offer {
    cudaIpcMemHandle_t handle;
    uint64_t bytes; /* 0: nothing to share */
    char machine[BOARD_MACHINE];
};

static status map(struct near_memory *m, const struct comm *c, const struct offer *all, bool *reached)
{
    *reached = true;
    for (int r = 0; r < c->ranks; r++) {
        void *p = NULL;
        if (r == c->rank) p = m->base;
        if (r == c->rank || all[r].bytes == 0 || strcmp(all[r].machine, all[c->rank].machine) != 0) {
            m->of[c->members[r]] = p;
            continue;
        }
        const cudaError_t err = cudaIpcOpenMemHandle(&p, all[r].handle, cudaIpcMemLazyEnablePeerAccess);
        if (err != cudaSuccess) {
            (void)cudaGetLastError();
            log_warn("the memory of rank %d's card cannot be reached from rank %d's (%s): NCCL carries all "
                     "that ranks exchange",
                     c->members[r], c->world->rank, cudaGetErrorString(err));
            *reached = false;
            return STATUS_OK;
        }
        m->of[c->members[r]] = p;
    }
    return STATUS_OK;
}

static void unmap(struct near_memory *m)
{
    for (int r = 0; r < COMM_RANKS_MAX; r++)
        if (m->of[r] && m->of[r] != m->base) (void)cudaIpcCloseMemHandle(m->of[r]);
    *m = (struct near_memory){0};
}

/* All ranks of c map all of what they share, or none anything. */
static status share(struct near *n, struct comm *c, void *base, size_t bytes, bool *reached)
{
    struct offer mine = {.bytes = bytes}, *all = calloc((size_t)c->ranks, sizeof *all);
    struct near_memory *m = &n->memory[n->count];
    int32_t came, every[COMM_RANKS_MAX];
    if (all == NULL) return FAIL(STATUS_FIT, "no memory for the memory of %d cards", c->ranks);
    CHECK(n->count < NEAR_SHARED_MAX, "cards share more than %d pieces of memory", NEAR_SHARED_MAX);
    *m = (struct near_memory){.base = base, .bytes = bytes};
    board_machine(mine.machine);
    cudaError_t err = bytes ? cudaIpcGetMemHandle(&mine.handle, base) : cudaSuccess;
    if (err != cudaSuccess) mine.bytes = 0;
    (void)cudaGetLastError();
    status st = comm_say(c, "memory of cards", &mine, all, sizeof mine);
    if (st == STATUS_OK) st = map(m, c, all, reached);
    free(all);
    TRY(st);
    came = *reached && err == cudaSuccess;
    TRY(comm_say(c, "memory of cards is mapped", &came, every, sizeof came));
    for (int r = 0; r < c->ranks; r++) *reached = *reached && every[r];
    if (*reached)
        n->count++;
    else
        unmap(m);
    return STATUS_OK;
}

status near_share(struct near *n, struct comm *c, void *base, size_t bytes)
{
    bool reached;
    if (n->count == 0) return STATUS_OK;       /* the cards do not reach each other */
    return share(n, c, base, bytes, &reached); /* what is not shared goes by NCCL */
}

status near_open(struct near **out, struct comm *world, bool wanted)
{
    struct near *n = *out = calloc(1, sizeof *n); /* near_close gives back what is there */
    const size_t bytes = (sizeof *n->board + NEAR_PAGE - 1) / NEAR_PAGE * NEAR_PAGE;
    bool reached;
    if (n == NULL) return FAIL(STATUS_FIT, "no memory for the description of a rank's card");
    TRY_CUDA(cudaHostAlloc((void **)&n->gone, sizeof *n->gone, cudaHostAllocMapped | cudaHostAllocPortable));
    *n->gone = 0;
    TRY_CUDA(cudaMalloc((void **)&n->board, bytes));
    TRY_CUDA(cudaMemset(n->board, 0, bytes));
    TRY_CUDA(cudaDeviceSynchronize());
    return wanted ? share(n, world, n->board, bytes, &reached) : STATUS_OK;
}

void near_close(struct near *n)
{
    if (n == NULL) return;
    for (int i = 0; i < n->count; i++) unmap(&n->memory[i]);
    for (int i = 0; i < n->route_count; i++) free(n->routes[i].from);
    free(n->routes);
    if (n->board) (void)cudaFree(n->board);
    if (n->gone) (void)cudaFreeHost((void *)n->gone);
    free(n);
}

bool near_all(const struct near *n, const struct comm *c)
{
    for (int r = 0; r < c->ranks; r++)
        if (n->count == 0 || n->memory[0].of[c->members[r]] == NULL) return false;
    return true;
}

static const struct near_memory *find(const struct near *n, const void *p, size_t bytes)
{
    for (int i = 0; i < n->count; i++) {
        const struct near_memory *m = &n->memory[i];
        if ((const char *)p >= m->base && (const char *)p + bytes <= m->base + m->bytes) return m;
    }
    return NULL;
}

/* Where rank r of c has what this rank has at p. */
static char *there(const struct near *n, const struct comm *c, int r, const void *p)
{
    const struct near_memory *m = find(n, p, 1);
    return m->of[c->members[r]] + ((const char *)p - m->base);
}

static struct near_board *board_of(const struct near *n, const struct comm *c, int r)
{
    return (struct near_board *)n->memory[0].of[c->members[r]];
}

/* ---- collectives */

/* What each rank says: which of its memories, and where in it. */
struct near_at {
    int64_t memory, offset; /* memory -1: none that is shared */
};

static struct near_at at_of(const struct near *n, const struct comm_call *call, int ranks)
{
    const size_t bytes = comm_op_splits(call->op) ? call->bytes * (size_t)ranks : call->bytes;
    const struct near_memory *m = find(n, call->send, bytes);
    if (m == NULL) return (struct near_at){-1, 0};
    return (struct near_at){m - n->memory, (const char *)call->send - m->base};
}

static status make_route(struct near *n, struct comm *c, const struct comm_call *call,
                         struct near_route *route)
{
    const struct near_at mine = at_of(n, call, c->ranks);
    struct near_at *all = calloc((size_t)c->ranks, sizeof *all);
    *route =
        (struct near_route){.c = c, .send = call->send, .bytes = call->bytes, .op = call->op, .shared = true};
    route->from = calloc((size_t)c->ranks, sizeof *route->from);
    status st = all && route->from ? comm_say(c, call->name, &mine, all, sizeof mine)
                                   : FAIL(STATUS_FIT, "no memory for the calls of %d ranks", c->ranks);
    for (int r = 0; r < c->ranks && st == STATUS_OK; r++) {
        const char *base = all[r].memory < 0 ? NULL : n->memory[all[r].memory].of[c->members[r]];
        route->shared = route->shared && base;
        if (base) route->from[r] = base + all[r].offset;
        if (base && comm_op_splits(call->op)) route->from[r] += (size_t)c->rank * call->bytes;
    }
    free(all);
    return st;
}

static bool is_route(const struct near_route *k, const struct comm *c, const struct comm_call *call)
{
    return k->c == c && k->send == call->send && k->bytes == call->bytes && k->op == call->op;
}

/* Steps make the same calls in the same order: the one after the last is looked at first. */
static status find_route(struct near *n, struct comm *c, const struct comm_call *call,
                         struct near_route **out)
{
    for (int i = 0; i < n->route_count; i++) {
        const int k = (n->route_last + 1 + i) % n->route_count;
        if (!is_route(&n->routes[k], c, call)) continue;
        n->route_last = k;
        *out = &n->routes[k];
        return STATUS_OK;
    }
    if (n->route_count == n->route_room) {
        const int room = n->route_room ? 2 * n->route_room : 64;
        struct near_route *routes = realloc(n->routes, (size_t)room * sizeof *routes);
        if (routes == NULL) return FAIL(STATUS_FIT, "no memory for the list of %d calls", room);
        n->routes = routes;
        n->route_room = room;
    }
    *out = &n->routes[n->route_count];
    n->route_last = n->route_count++;
    return make_route(n, c, call, *out);
}

static status meet(const struct near *n, const struct comm *c, struct stream *s)
{
    struct near_meet m = {.come = n->board->told[c->plane],
                          .met = &n->board->met[c->plane],
                          .gone = n->gone,
                          .rank = c->rank,
                          .ranks = c->ranks};
    for (int r = 0; r < c->ranks; r++) m.told[r] = &board_of(n, c, r)->told[c->plane][c->rank];
    return near_meet_queue(&m, s);
}

status near_call(struct near *n, struct comm *c, const struct comm_call *call, bool *carried)
{
    struct stream *s = call->stream;
    struct near_route *route = NULL;
    *carried = false;
    if (!near_all(n, c)) return STATUS_OK;
    TRY(find_route(n, c, call, &route));
    *carried = route->shared;
    if (!route->shared) return STATUS_OK;
    TRY(meet(n, c, s));
    for (int k = 0; k < c->ranks; k++) {
        const int r = (c->rank + k) % c->ranks;
        const bool alone = call->op == COMM_BROADCAST || call->op == COMM_SHIFT; /* of one rank */
        char *to = (char *)call->recv + (alone ? 0 : (size_t)r * call->bytes);
        if (alone && r != (call->op == COMM_SHIFT ? comm_behind(c, call) : 0)) continue;
        if (route->from[r] == to || (k == 0 && call->op == COMM_REDUCE_SCATTER))
            continue; /* sums take the own part where it is */
        TRY(dev_copy(s, to, route->from[r], call->bytes));
    }
    return meet(n, c, s);
}

/* ---- messages */

status near_message(struct near *n, struct comm *c, const struct comm_call *call, char *slots,
                    unsigned number)
{
    struct stream *s = call->stream;
    const bool sends = call->op == COMM_SEND;
    const int p = c->plane, way = call->way, depth = (int)c->mail.depth;
    struct near_board *mine = n->board, *other = board_of(n, c, comm_neighbour(c, call));
    char *slot = slots + ((size_t)way * c->mail.depth + number % c->mail.depth) * c->mail.bytes_max;
    if (sends) {
        /* Slots are taken in turn from a settling on: until then the earlier ones were all taken out. */
        const int behind = (int)number < depth - 1 ? (int)number : depth - 1;
        TRY(near_wait_queue(
            &(struct near_wait){&mine->taken[p][way], &mine->has_sent[p][way], -behind, n->gone}, s));
        TRY(dev_copy(s, there(n, c, comm_neighbour(c, call), slot), call->send, call->bytes));
        return near_tell_queue(&mine->has_sent[p][way], &other->sent[p][way], s);
    }
    TRY(near_wait_queue(&(struct near_wait){&mine->sent[p][way], &mine->has_taken[p][way], 1, n->gone}, s));
    TRY(dev_copy(s, call->recv, slot, call->bytes));
    return near_tell_queue(&mine->has_taken[p][way], &other->taken[p][way], s);
}
