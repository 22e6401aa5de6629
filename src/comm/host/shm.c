/* Ranks of one machine over one piece of shared memory.
 *
 *   board                        who lives, and why all end (heartbeat.h)
 *   places  [COMM_GROUPS][ranks] of each rank in each of its communicators: how far it is there, and what it calls
 *   buffers [COMM_GROUPS][ranks] what collectives pass through; pages that nobody writes cost nothing
 *   mail                         channels of each comm_mailbox_open, appended to the file as they come
 *
 * A communicator is a row of places and buffers, of which its members use theirs. Copies cost two passes over memory; a
 * barrier is a counter per rank, and a futex that the last one to come counts up: a rank that waits is woken once. */
#include "comm/transport.h"
#include "comm/call.h"
#include "base/log.h"
#include "comm/launch/rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    BUFFER_BYTES =
        4 << 20, /* of each rank: large enough for memory's rate, small enough to stay in a cache */
    SPINS = 2000,
    PAGE = 4096
};

/* State of one rank in one communicator, on its own cache lines. */
struct place {
    _Alignas(128) atomic_uint arrived; /* number of barriers that the rank has reached */
    atomic_uint complete; /* number of barriers that all ranks have reached; a futex; only rank 0's is used */
    _Alignas(128) struct comm_header call; /* written before the barrier that publishes it */
};
struct shm {
    struct heartbeat *board;
    struct place *places;
    char *buffers;
    atomic_ulong *end; /* end of the file, in shared memory: where the next mailbox goes */
    int ranks, fd;
    bool watched; /* `ingot launch` monitors the ranks: it reports how the job ends */
};

static size_t places_bytes(int ranks)
{
    const size_t bytes = COMM_GROUPS * (size_t)ranks * sizeof(struct place) + sizeof(atomic_ulong);
    return (bytes + PAGE - 1) / PAGE * PAGE;
}
size_t transport_shm_bytes(int ranks)
{
    return heartbeat_bytes(ranks) + places_bytes(ranks) + COMM_GROUPS * (size_t)ranks * BUFFER_BYTES;
}

static size_t shm_bytes(int ranks, int here, int groups)
{
    (void)here;
    return (heartbeat_bytes(ranks) + places_bytes(ranks)) / (size_t)ranks + (size_t)groups * BUFFER_BYTES;
}

static struct place *place(const struct comm *c, int rank)
{
    return &c->shm->places[(size_t)c->comm_id * (size_t)c->shm->ranks + (size_t)c->members[rank]];
}
static char *buffer(const struct comm *c, int rank)
{
    const size_t number = (size_t)c->comm_id * (size_t)c->shm->ranks + (size_t)c->members[rank];
    return c->shm->buffers + number * BUFFER_BYTES;
}

/* ---- waiting */

static void wake(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static bool has_arrived(const struct comm *c, int rank)
{
    return (int)(atomic_load(&place(c, rank)->arrived) - c->barriers) >= 0;
}

static bool is_there(atomic_uint *word, unsigned value)
{
    return (int)(atomic_load(word) - value) >= 0;
}

/* True if a rank that the barrier waits for has left, so that it will never arrive. */
static status check_ended(const struct comm *c, const struct comm_call *call)
{
    for (int r = 0; r < c->ranks; r++) {
        if (has_arrived(c, r) || !heartbeat_left(c->shm->board, c->members[r])) continue;
        if (!has_arrived(c, r))
            return rank_monitor_lost(c->world->monitor, c->members[r], "has ended before", c, call);
    }
    return STATUS_OK;
}

/* Called regularly during a wait: checks the peers. */
static status look_around(const struct comm *c, int peer, atomic_uint *word, unsigned value,
                          const struct comm_call *call)
{
    const bool message = call->op == COMM_SEND || call->op == COMM_RECV;
    struct rank_monitor *w = c->world->monitor;
    TRY(rank_monitor_check(w, c, call));
    if (!message) return check_ended(c, call);
    if (!heartbeat_left(c->shm->board, c->members[peer]) || is_there(word, value)) return STATUS_OK;
    return rank_monitor_lost(w, c->members[peer], "has ended before", c, call);
}

/* A pause inside a loop that waits for another core's write. */
static void spin_pause(void)
{
#ifdef __aarch64__
    __asm__ volatile(
        "isb"); /* `yield` ends at once on Neoverse; this waits tens of cycles, as x86's pause does */
#else
    __builtin_ia32_pause();
#endif
}

/* Waits until *word is at least `value`. For a message, rank `peer` of c increments it. */
static status wait_until(const struct comm *c, int peer, atomic_uint *word, unsigned value,
                         const struct comm_call *call)
{
    const struct timespec poll = {.tv_nsec = 50000000};
    const int spins = rank_monitor_crowded(c->world->monitor) ? 1 : SPINS;
    for (int spin = 0; spin < spins; spin++) {
        if (is_there(word, value)) return STATUS_OK;
        spin_pause();
    }
    status st = STATUS_OK;
    rank_monitor_wait_begin(c->world->monitor);
    while (st == STATUS_OK) {
        const unsigned now = atomic_load(word);
        if ((int)(now - value) >= 0) break;
        syscall(SYS_futex, word, FUTEX_WAIT, now, &poll, NULL, 0);
        if (is_there(word, value)) break;
        st = look_around(c, peer, word, value, call);
    }
    rank_monitor_wait_end(c->world->monitor);
    return st;
}

static bool all_have_arrived(const struct comm *c)
{
    for (int r = 0; r < c->ranks; r++)
        if (!has_arrived(c, r)) return false;
    return true;
}

/* The last rank to arrive releases the barrier. Two ranks may both think they are last; both store the same value, so
 * it is harmless. */
static status barrier(struct comm *c, const struct comm_call *call)
{
    atomic_uint *complete = &place(c, 0)->complete;
    if (heartbeat_aborted(c->shm->board)) return rank_monitor_check(c->world->monitor, c, call);
    c->barriers++;
    atomic_store(&place(c, c->rank)->arrived, c->barriers);
    if (!all_have_arrived(c)) return wait_until(c, 0, complete, c->barriers, call);
    atomic_store(complete, c->barriers);
    wake(complete);
    return STATUS_OK;
}

/* ---- collectives */

/* Checks that all ranks make the same call; if not, each rank's error names the one that does not. Call it after a
 * barrier. */
static status compare(struct comm *c)
{
    const struct comm_header *mine = &place(c, c->rank)->call;
    for (int r = 0; r < c->ranks; r++) {
        status st = comm_header_check(c, mine, c->rank, &place(c, r)->call, r);
        if (st == STATUS_OK) continue;
        (void)heartbeat_abort(c->shm->board, status_message());
        return st;
    }
    return STATUS_OK;
}

/* What this rank copies in a call: pieces written to its buffer, one for all or one for each rank; and the ranks whose
 * buffers it reads, `read` from `first` on. */
struct copies {
    int written, first, read;
};
static struct copies copies_of(const struct comm *c, const struct comm_call *call)
{
    switch (call->op) {
    case COMM_ALL_GATHER:
    case COMM_SPLIT: return (struct copies){.written = 1, .read = c->ranks};
    case COMM_GATHER: return (struct copies){.written = 1, .read = c->rank == 0 ? c->ranks : 0};
    case COMM_BROADCAST: return (struct copies){.written = c->rank == 0, .read = c->rank > 0};
    case COMM_SHIFT:
        return (struct copies){.written = 1, .first = comm_ring_shift_source(c, call), .read = 1};
    case COMM_ALL_TO_ALL:
    case COMM_REDUCE_SCATTER: /* data only: comm_execute */
    case COMM_ALL_REDUCE: return (struct copies){.written = c->ranks, .read = c->ranks};
    case COMM_BARRIER:
    case COMM_SEND:
    case COMM_RECV:
    case COMM_IDLE:
    case COMM_OP_COUNT: break;
    }
    return (struct copies){0};
}

/* Pieces of an all-to-all with counts: bytes [done, done + room) of what each rank has for each. */
static size_t piece_of(const struct comm *c, const struct comm_call *call, int from, int to, size_t done,
                       size_t room)
{
    const size_t all = (size_t)call->counts[from * c->ranks + to] * call->bytes;
    if (all <= done) return 0;
    return all - done < room ? all - done : room;
}

/* As shm_call, in as many rounds as the largest pair of ranks needs. */
static status shm_rows(struct comm *c, const struct comm_call *call)
{
    const size_t room = (size_t)BUFFER_BYTES / (size_t)c->ranks / 64 * 64;
    size_t most = 0;
    for (int k = 0; k < c->ranks * c->ranks; k++)
        if ((size_t)call->counts[k] * call->bytes > most) most = (size_t)call->counts[k] * call->bytes;
    comm_header_fill(&place(c, c->rank)->call, c, call);
    TRY(barrier(c, call)); /* before anything depends on the counts: they are the same everywhere */
    TRY(compare(c));
    for (size_t done = 0; done < most; done += room) {
        for (int r = 0; r < c->ranks; r++) {
            const size_t from = (size_t)comm_rows_sent_before(c, call, c->rank, r) * call->bytes + done,
                         part = piece_of(c, call, c->rank, r, done, room);
            if (part > 0)
                memcpy(buffer(c, c->rank) + (size_t)r * room, (const char *)call->send + from, part);
        }
        TRY(barrier(c, call));
        for (int r = 0; r < c->ranks; r++) {
            const size_t to = (size_t)comm_rows_received_before(c, call, r, c->rank) * call->bytes + done,
                         part = piece_of(c, call, r, c->rank, done, room);
            if (part > 0) memcpy((char *)call->recv + to, buffer(c, r) + (size_t)c->rank * room, part);
        }
        TRY(barrier(c, call));
    }
    return most > 0 ? STATUS_OK : barrier(c, call); /* before headers are written again */
}

/* Pieces go through the buffers: of what this rank has for each other, or of what it has for all. The first barrier
 * also publishes what is called. */
static status shm_call(struct comm *c, const struct comm_call *call)
{
    if (call->counts) return shm_rows(c, call);
    const bool split = comm_op_splits(call->op);
    const struct copies copies = copies_of(c, call);
    const size_t room = split ? (size_t)BUFFER_BYTES / (size_t)c->ranks / 64 * 64 : BUFFER_BYTES;
    const char *send = call->send;
    char *recv = call->recv;
    comm_header_fill(&place(c, c->rank)->call, c, call);
    for (size_t done = 0; done == 0 || done < call->bytes; done += room) {
        const size_t part = call->bytes - done < room ? call->bytes - done : room;
        for (int r = 0; r < copies.written && part > 0; r++)
            memcpy(buffer(c, c->rank) + (size_t)r * room, send + (size_t)r * call->bytes + done, part);
        TRY(barrier(c, call));
        if (done == 0) TRY(compare(c));
        for (int k = 0; k < copies.read && part > 0; k++)
            memcpy(recv + (size_t)k * call->bytes + done,
                   buffer(c, copies.first + k) + (split ? (size_t)c->rank * room : 0), part);
        TRY(barrier(c, call)); /* before slots and buffers are written again */
    }
    return STATUS_OK;
}

/* ---- messages: a channel per way and receiver, written by one rank and read by one. */

struct channel {
    _Alignas(128) atomic_uint sent;
    _Alignas(128) atomic_uint taken;
    _Alignas(128) char messages[]; /* [depth][room]: header, data */
};

static size_t channel_bytes(const struct mailbox *m)
{
    return (sizeof(struct channel) + m->depth * m->room + 127) / 128 * 128;
}
static struct channel *channel(const struct comm *c, enum comm_way way, int receiver)
{
    const size_t number = (size_t)way * (size_t)c->ranks + (size_t)receiver;
    return (struct channel *)(c->mailbox.memory + number * channel_bytes(&c->mailbox));
}

static size_t shm_channels_bytes(const struct mailbox *m, int ranks)
{
    const size_t bytes = 2 * (size_t)ranks * channel_bytes(m);
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* Groups append to the file at the same time: each takes its own piece of it, and none makes the file shorter. */
static status append(struct shm *l, size_t bytes, uint64_t *at)
{
    *at = transport_shm_bytes(l->ranks) + atomic_fetch_add(l->end, bytes);
    int err = posix_fallocate(l->fd, (off_t)(*at + bytes - 1), 1);
    if (err == 0) return STATUS_OK;
    return FAIL(STATUS_OUT_OF_MEMORY, "no %zu bytes of shared memory for messages: %s", bytes, strerror(err));
}

static status shm_mailbox_open(struct comm *c)
{
    struct mailbox *m = &c->mailbox;
    uint64_t at = 0, all[COMM_RANKS_MAX];
    m->memory_bytes = shm_channels_bytes(m, c->ranks);
    if (c->rank == 0) TRY(append(c->shm, m->memory_bytes, &at));
    TRY(transport_all_gather(c, "place of messages", &at, all, sizeof at));
    void *p = mmap(NULL, m->memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, c->shm->fd, (off_t)all[0]);
    if (p == MAP_FAILED)
        return FAIL(STATUS_OUT_OF_MEMORY, "no %zu bytes of shared memory for messages: %s", m->memory_bytes,
                    strerror(errno));
    m->memory = p;
    c->world->memory.host += m->memory_bytes / (size_t)c->ranks;
    return STATUS_OK;
}

static void shm_mailbox_close(struct comm *c)
{
    munmap(c->mailbox.memory, c->mailbox.memory_bytes);
}

static status shm_message(struct comm *c, const struct comm_call *call)
{
    const bool send = call->op == COMM_SEND;
    const int peer = comm_neighbour(c, call);
    struct channel *ch = channel(c, call->way, send ? peer : c->rank);
    const unsigned number = (unsigned)call->sequence, depth = c->mailbox.depth;
    char *at = ch->messages + (size_t)((call->sequence - 1) % depth) * c->mailbox.room;
    if (send) {
        TRY(wait_until(c, peer, &ch->taken, number - depth, call));
        comm_header_fill((struct comm_header *)at, c, call);
        memcpy(at + COMM_LINE, call->send, call->bytes);
        atomic_store(&ch->sent, number);
        wake(&ch->sent);
        return STATUS_OK;
    }
    TRY(wait_until(c, peer, &ch->sent, number, call));
    status st = comm_message_check(c, (const struct comm_header *)at, call);
    if (st != STATUS_OK) {
        (void)heartbeat_abort(c->shm->board, status_message());
        return st;
    }
    memcpy(call->recv, at + COMM_LINE, call->bytes);
    atomic_store(&ch->taken, number);
    wake(&ch->taken);
    return STATUS_OK;
}

/* ---- life */

static status map(struct comm *world, const struct comm_env *e)
{
    struct shm *l = world->shm;
    struct stat st;
    const size_t bytes = transport_shm_bytes(e->ranks);
    if (fstat(l->fd, &st) != 0 || (size_t)st.st_size < bytes)
        return FAIL(STATUS_CONFIG,
                    "INGOT_COMM=fd:%d is not the shared memory of %d ranks; start them with `ingot launch`",
                    e->fd, e->ranks);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, l->fd, 0);
    if (p == MAP_FAILED) return FAIL(STATUS_COMM, "shared memory of the ranks: %s", strerror(errno));
    l->board = p;
    l->places = (struct place *)((char *)p + heartbeat_bytes(e->ranks));
    l->end = (atomic_ulong *)(l->places + (size_t)COMM_GROUPS * (size_t)e->ranks);
    l->buffers = (char *)l->places + places_bytes(e->ranks);
    if (!heartbeat_fits(l->board, e->ranks, bytes))
        return FAIL(STATUS_CONFIG, "INGOT_COMM=fd:%d belongs to something else than %d ranks", e->fd,
                    e->ranks);
    world->flight = heartbeat_flight(l->board);
    world->memory.host +=
        (heartbeat_bytes(e->ranks) + places_bytes(e->ranks)) / (size_t)e->ranks + BUFFER_BYTES;
    return STATUS_OK;
}

static void shm_world_close(struct comm *world, status st)
{
    struct shm *l = world->shm;
    char why[COMM_TEXT];
    snprintf(why, sizeof why, "%s", status_message());
    const bool first = rank_monitor_close(world->monitor, st);
    if (first && st == STATUS_COMM && !l->watched) {
        if (world->rank > 0) log_error("%s", why); /* what rank 0 says, it says at its end */
        flight_recorder_write(world->flight, l->ranks, why);
    }
    if (l->board) munmap(l->board, transport_shm_bytes(l->ranks));
    if (l->fd >= 0 && !l->watched) close(l->fd);
    free(l);
}

static status shm_world_open(struct comm *world, const struct comm_env *e)
{
    struct shm *l = calloc(1, sizeof *l);
    if (l == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the description of a rank");
    *l = (struct shm){.ranks = e->ranks, .fd = e->fd, .watched = e->by == COMM_BY_LAUNCH};
    world->shm = l;
    status st = map(world, e);
    if (st == STATUS_OK) st = rank_monitor_open(&world->monitor, l->board, e->rank);
    if (st == STATUS_OK) st = rank_monitor_wait_all(world->monitor);
    if (st != STATUS_OK) shm_world_close(world, st);
    return st;
}

/* Bytes of one rank's part. */
static size_t shm_mailbox_bytes(const struct mailbox *m, int ranks)
{
    return shm_channels_bytes(m, ranks) / (size_t)ranks;
}

/* Every group has its rows of places and buffers already. */
static status shm_split(struct comm *parent, struct comm *c, int key)
{
    (void)parent;
    (void)c;
    (void)key;
    return STATUS_OK;
}

const struct host_transport transport_shm = {.name = "shared memory",
                                             .open = shm_world_open,
                                             .close = shm_world_close,
                                             .collective = shm_call,
                                             .message = shm_message,
                                             .split = shm_split,
                                             .mailbox_open = shm_mailbox_open,
                                             .mailbox_close = shm_mailbox_close,
                                             .bytes = shm_bytes,
                                             .mailbox_bytes = shm_mailbox_bytes};
