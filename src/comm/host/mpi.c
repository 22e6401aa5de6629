/* Ranks that mpirun or srun started, on one machine or many: Open MPI, loaded when a job asks for it. Nothing of it is
 * needed to build, or to run on one machine.
 *
 * Open MPI's interface is its functions and a few objects by name; its handles are pointers. Calls are the non-blocking
 * ones, so that a wait has an end. When a rank dies, mpirun ends the others. */
#include "comm/transport.h"
#include "comm/call.h"
#include "base/clock.h"
#include "base/log.h"
#include "comm/health/heartbeat_udp.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    UNIT = 64,           /* bytes of an element of large messages: counts are ints */
    THREAD_FUNNELED = 1, /* MPI_THREAD_FUNNELED */
    SPINS = 20000,
    TAG_SHIFT = 2, /* messages have their way */
    LAST_WORDS_US = 1000000
};
#define LOOK_S 0.05
typedef void *handle; /* MPI_Comm, MPI_Datatype, MPI_Request, MPI_Errhandler */

struct mpi {
    int rank, ranks;
    struct heartbeat *board;     /* of the ranks of this machine */
    struct heartbeat_udp *relay; /* of its first rank, when there are other machines */
    int fd;
    handle world, byte, unit;
    int (*init_thread)(int *argc, char ***argv, int required, int *provided);
    int (*finalize)(void);
    int (*abort)(handle comm, int code);
    int (*comm_rank)(handle comm, int *rank);
    int (*comm_size)(handle comm, int *size);
    int (*set_errhandler)(handle comm, handle handler);
    int (*type_contiguous)(int count, handle old, handle *type);
    int (*type_commit)(handle *type);
    int (*ialltoall)(const void *send, int count, handle type, void *recv, int recv_count, handle recv_type,
                     handle comm, handle *request);
    int (*ialltoallv)(const void *send, const int *counts, const int *begins, handle type, void *recv,
                      const int *recv_counts, const int *recv_begins, handle recv_type, handle comm,
                      handle *request);
    int (*iallgather)(const void *send, int count, handle type, void *recv, int recv_count, handle recv_type,
                      handle comm, handle *request);
    int (*ibcast)(void *data, int count, handle type, int root, handle comm, handle *request);
    int (*split)(handle comm, int color, int key, handle *out);
    int (*isend)(const void *data, int count, handle type, int to, int tag, handle comm, handle *request);
    int (*irecv)(void *data, int count, handle type, int from, int tag, handle comm, handle *request);
    int (*test)(handle *request, int *done, void *status);
};

/* MPI_Status is six ints or less in what we load; MPI_IN_PLACE and MPI_UNDEFINED are these values there. */
static void *const in_place = (void *)1;
enum { UNDEFINED = -32766 };

static status load(struct mpi *m)
{
    void *lib = dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL); /* its plug-ins look for its symbols */
    handle errors_return;
    if (lib == NULL)
        return FAIL(STATUS_CONFIG,
                    "mpirun or srun started this process, but Open MPI's libmpi.so.40 is not there: install "
                    "openmpi-bin, or use `ingot launch` on one machine");
    const struct {
        const char *name;
        void *at;
    } symbols[] = {{"ompi_mpi_comm_world", &m->world},
                   {"ompi_mpi_byte", &m->byte},
                   {"ompi_mpi_errors_return", &errors_return},
                   {"MPI_Init_thread", &m->init_thread},
                   {"MPI_Finalize", &m->finalize},
                   {"MPI_Abort", &m->abort},
                   {"MPI_Comm_rank", &m->comm_rank},
                   {"MPI_Comm_size", &m->comm_size},
                   {"MPI_Comm_set_errhandler", &m->set_errhandler},
                   {"MPI_Type_contiguous", &m->type_contiguous},
                   {"MPI_Type_commit", &m->type_commit},
                   {"MPI_Ialltoall", &m->ialltoall},
                   {"MPI_Ialltoallv", &m->ialltoallv},
                   {"MPI_Iallgather", &m->iallgather},
                   {"MPI_Ibcast", &m->ibcast},
                   {"MPI_Comm_split", &m->split},
                   {"MPI_Isend", &m->isend},
                   {"MPI_Irecv", &m->irecv},
                   {"MPI_Test", &m->test}};
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *found = dlsym(lib, symbols[i].name);
        if (found == NULL)
            return FAIL(STATUS_CONFIG, "libmpi.so.40 has no %s: it is not Open MPI 4 or 5", symbols[i].name);
        memcpy(symbols[i].at, &found, sizeof found);
    }
    int provided;
    if (m->init_thread(NULL, NULL, THREAD_FUNNELED, &provided) != 0)
        return FAIL(STATUS_COMM, "Open MPI does not start");
    (void)m->set_errhandler(m->world, errors_return);
    return STATUS_OK;
}

static status check_world(struct mpi *m, const struct comm_env *e)
{
    if (m->comm_rank(m->world, &m->rank) != 0 || m->comm_size(m->world, &m->ranks) != 0 ||
        m->type_contiguous(UNIT, m->byte, &m->unit) != 0 || m->type_commit(&m->unit) != 0)
        return FAIL(STATUS_COMM, "Open MPI does not say which rank this is");
    if (m->rank == e->rank && m->ranks == e->ranks) return STATUS_OK;
    return FAIL(STATUS_CONFIG,
                "the environment says rank %d of %d, Open MPI rank %d of %d: the launcher and libmpi.so.40 "
                "do not belong together",
                e->rank, e->ranks, m->rank, m->ranks);
}

static status broken(struct comm *c, const struct comm_call *call)
{
    char where[COMM_TEXT];
    return FAIL(STATUS_COMM, "%s: Open MPI failed", comm_call_text(c, call, where));
}

static status wait_for(struct comm *c, handle *request, const struct comm_call *call)
{
    int mpi_status[16], done = 0;
    struct rank_monitor *w = c->world->monitor;
    const struct timespec nap = {.tv_nsec = 50000};
    const int spins = rank_monitor_crowded(w) ? 1 : SPINS;
    for (int spin = 0; !done && spin < spins; spin++)
        if (c->mpi->test(request, &done, mpi_status) != 0) return broken(c, call);
    if (done) return STATUS_OK;
    status st = STATUS_OK;
    double looked_s = clock_s();
    if (w) rank_monitor_wait_begin(w);
    while (st == STATUS_OK && !done) {
        nanosleep(&nap, NULL);
        if (c->mpi->test(request, &done, mpi_status) != 0) st = broken(c, call);
        if (st != STATUS_OK || done || w == NULL || clock_s() - looked_s < LOOK_S) continue;
        looked_s = clock_s();
        st = rank_monitor_check(w, c, call);
    }
    if (w) rank_monitor_wait_end(w);
    return st;
}

static status shift(struct comm *c, const struct comm_call *call)
{
    const struct mpi *m = c->mpi;
    const bool wide = call->bytes % UNIT == 0;
    const size_t count = wide ? call->bytes / UNIT : call->bytes;
    const handle type = wide ? m->unit : m->byte;
    handle come, go;
    if (count > INT_MAX)
        return FAIL(STATUS_COMM, "'%s': %zu bytes are too many for one message", call->name, call->bytes);
    if (m->irecv(call->recv, (int)count, type, comm_ring_shift_source(c, call), TAG_SHIFT, c->handle,
                 &come) != 0 ||
        m->isend(call->send, (int)count, type, (c->rank + call->by) % c->ranks, TAG_SHIFT, c->handle, &go) !=
            0)
        return broken(c, call);
    TRY(wait_for(c, &come, call));
    return wait_for(c, &go, call);
}

/* `bytes` from each to each (all-to-all), from the first to all, or of each to all. */
static status pass(struct comm *c, const struct comm_call *call, const void *send, void *recv, size_t bytes)
{
    const struct mpi *m = c->mpi;
    const bool wide = bytes % UNIT == 0;
    const size_t count = wide ? bytes / UNIT : bytes;
    const handle type = wide ? m->unit : m->byte;
    handle request;
    if (count > INT_MAX)
        return FAIL(STATUS_COMM, "'%s': %zu bytes are too many for one message", call->name, bytes);
    int failed = 0;
    switch (call->op) {
    case COMM_BROADCAST: failed = m->ibcast(recv, (int)count, type, 0, c->handle, &request); break;
    case COMM_ALL_TO_ALL:
    case COMM_REDUCE_SCATTER: /* data only: comm_execute */
    case COMM_ALL_REDUCE:
        failed = m->ialltoall(send, (int)count, type, recv, (int)count, type, c->handle, &request);
        break;
    case COMM_ALL_GATHER:
    case COMM_GATHER:
    case COMM_SPLIT:
        failed = m->iallgather(send, (int)count, type, recv, (int)count, type, c->handle, &request);
        break;
    case COMM_SHIFT: /* mpi_call has sent it elsewhere */
    case COMM_BARRIER:
    case COMM_SEND:
    case COMM_RECV:
    case COMM_IDLE:
    case COMM_OP_COUNT: CHECK(false, "%s '%s' as a collective of MPI", comm_op_text(call->op), call->name);
    }
    return failed ? broken(c, call) : wait_for(c, &request, call);
}

/* An all-to-all with counts. */
static status pass_rows(struct comm *c, const struct comm_call *call)
{
    const struct mpi *m = c->mpi;
    const bool wide = call->bytes % UNIT == 0;
    const int64_t row = (int64_t)(wide ? call->bytes / UNIT : call->bytes);
    const handle type = wide ? m->unit : m->byte;
    int sent[COMM_RANKS_MAX], from[COMM_RANKS_MAX], received[COMM_RANKS_MAX], to[COMM_RANKS_MAX];
    const int64_t most = row * (comm_rows_sent_before(c, call, c->rank, c->ranks) +
                                comm_rows_received_before(c, call, c->ranks, c->rank));
    handle request;
    if (most > INT_MAX)
        return FAIL(STATUS_COMM, "'%s': rows of %zu bytes are too many for one call of Open MPI", call->name,
                    call->bytes);
    for (int r = 0; r < c->ranks; r++) {
        sent[r] = (int)(row * call->counts[c->rank * c->ranks + r]);
        from[r] = (int)(row * comm_rows_sent_before(c, call, c->rank, r));
        received[r] = (int)(row * call->counts[r * c->ranks + c->rank]);
        to[r] = (int)(row * comm_rows_received_before(c, call, r, c->rank));
    }
    if (m->ialltoallv(call->send, sent, from, type, call->recv, received, to, type, c->handle, &request) != 0)
        return broken(c, call);
    return wait_for(c, &request, call);
}

/* All ranks make the same call, or all say which did not. */
static status agree(struct comm *c, const struct comm_call *call)
{
    struct comm_header mine, all[COMM_RANKS_MAX];
    const struct comm_call gather = {.op = COMM_ALL_GATHER, .name = call->name, .sequence = call->sequence};
    comm_header_fill(&mine, c, call);
    TRY(pass(c, &gather, &mine, all, sizeof mine));
    for (int r = 0; r < c->ranks; r++) TRY(comm_header_check(c, &all[c->rank], c->rank, &all[r], r));
    return STATUS_OK;
}

static status mpi_call(struct comm *c, const struct comm_call *call)
{
    TRY(agree(c, call)); /* a barrier, too */
    if (call->op == COMM_BARRIER || call->bytes == 0) return STATUS_OK;
    if (call->op == COMM_SHIFT) return shift(c, call);
    if (call->counts) return pass_rows(c, call);
    const char *own = (const char *)call->recv + (size_t)c->rank * call->bytes;
    return pass(c, call, !comm_op_splits(call->op) && call->send == own ? in_place : call->send, call->recv,
                call->bytes);
}

/* What a rank says before it has a place at its machine's board; then, the first of a machine, where board and relay
 * are. */
struct introduction {
    char machine[HEARTBEAT_HOST]; /* ranks with the same one share memory */
    struct heartbeat_place place;
    struct heartbeat_udp_place relay;
};

static int first_of(const struct introduction *all, int rank)
{
    int first = 0;
    while (strcmp(all[first].machine, all[rank].machine) != 0) first++;
    return first;
}

static int count_here(const struct mpi *m, const struct introduction *all)
{
    int count = 0;
    for (int r = 0; r < m->ranks; r++) count += strcmp(all[r].machine, all[m->rank].machine) == 0;
    return count;
}

static size_t mpi_bytes(int ranks, int here, int groups)
{
    (void)groups;
    return heartbeat_bytes(ranks) / (size_t)here;
}

/* The first rank of a machine tells the others' machines how its ranks are. */
static status start_relay(struct mpi *m, const struct introduction *all)
{
    int here[COMM_RANKS_MAX], count = 0, peer_count = 0;
    struct heartbeat_udp_peer *peers = calloc((size_t)m->ranks, sizeof *peers);
    if (peers == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the signs of life of other machines");
    for (int r = 0; r < m->ranks; r++) {
        const int first = first_of(all, r);
        if (first == m->rank) here[count++] = r;
        if (first == r && r != m->rank) peers[peer_count++] = (struct heartbeat_udp_peer){all[r].relay, r};
    }
    if (peer_count > 0 && m->relay)
        return heartbeat_udp_start(m->relay, m->board, all[0].relay.key, here, count, peers, peer_count);
    free(peers);
    heartbeat_udp_close(m->relay);
    m->relay = NULL;
    if (peer_count == 0) return STATUS_OK;
    log_warn("this machine has no network address: ranks of other machines that stand still are not seen");
    return STATUS_OK;
}

/* The ranks of each machine meet at a board that the first of them makes: there they see who stands still, which Open
 * MPI does not. */
static status meet(struct comm *world)
{
    struct mpi *m = world->mpi;
    static const struct comm_call call = {.op = COMM_ALL_GATHER, .name = "start"};
    struct introduction mine = {.place = {.fd = -1}}, *all = calloc((size_t)m->ranks, sizeof *all);
    if (all == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the description of a rank");
    heartbeat_host(mine.machine);
    status st = pass(world, &call, &mine, all, sizeof mine);
    const int first = st == STATUS_OK ? first_of(all, m->rank) : m->rank;
    if (st == STATUS_OK && first == m->rank) {
        st = heartbeat_create(m->ranks, heartbeat_bytes(m->ranks), &m->fd);
        if (st == STATUS_OK) st = heartbeat_place(m->fd, &mine.place);
        if (st == STATUS_OK) st = heartbeat_udp_open(&m->relay, &mine.relay);
    }
    if (st == STATUS_OK) st = pass(world, &call, &mine, all, sizeof mine);
    if (st == STATUS_OK && first != m->rank) st = heartbeat_join(&all[first].place, &m->fd);
    if (st == STATUS_OK) {
        void *p = mmap(NULL, heartbeat_bytes(m->ranks), PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
        if (p != MAP_FAILED) m->board = p;
        if (p == MAP_FAILED) st = FAIL(STATUS_COMM, "shared memory of the ranks: %s", strerror(errno));
    }
    if (st == STATUS_OK && first == m->rank) st = start_relay(m, all);
    if (st == STATUS_OK) world->local_ranks = count_here(m, all);
    free(all);
    TRY(st);
    world->flight = heartbeat_flight(m->board);
    world->memory.host += mpi_bytes(m->ranks, world->local_ranks, 1);
    return rank_monitor_open(&world->monitor, m->board, m->rank);
}

static void mpi_close(struct comm *world, status st)
{
    struct mpi *m = world->mpi;
    const bool failed = st != STATUS_OK && st != STATUS_STOPPED;
    char why[COMM_TEXT];
    snprintf(why, sizeof why, "%s", status_message());
    const bool first = rank_monitor_close(world->monitor, st);
    if (failed) { /* MPI_Abort does not return: the others would wait for this rank */
        if (first || m->board == NULL) {
            log_error("%s", why);
            if (st == STATUS_COMM && m->board) flight_recorder_write(world->flight, m->ranks, why);
        } else {
            usleep(LAST_WORDS_US); /* the first one speaks */
        }
        (void)m->abort(m->world, (int)st);
    }
    (void)m->finalize(); /* waits for the others: what they see of this machine's ranks goes on */
    heartbeat_udp_close(m->relay);
    if (m->board) munmap(m->board, heartbeat_bytes(m->ranks));
    if (m->fd >= 0) close(m->fd);
    free(m);
}

static status mpi_open(struct comm *world, const struct comm_env *e)
{
    struct mpi *m = calloc(1, sizeof *m);
    if (m == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the description of a rank");
    m->fd = -1;
    status st = load(m);
    if (st == STATUS_OK) st = check_world(m, e);
    if (st != STATUS_OK) {
        free(m);
        return st;
    }
    world->mpi = m;
    world->handle = m->world;
    st = meet(world);
    if (st != STATUS_OK) mpi_close(world, st);
    return st;
}

static status mpi_split(struct comm *parent, struct comm *c, int key)
{
    struct mpi *m = parent->mpi;
    handle out;
    /* a color is not negative there: the first member's number stands for ours */
    if (m->split(parent->handle, c ? c->members[0] : UNDEFINED, key, &out) != 0)
        return FAIL(STATUS_COMM, "Open MPI cannot make the groups of '%s'", c ? c->name : "one");
    if (c) c->handle = out;
    return STATUS_OK;
}

/* ---- messages: copies in a ring of requests per way; a header goes in front of the data. */

static size_t mpi_mailbox_bytes(const struct mailbox *m, int ranks)
{
    (void)ranks;
    return (2 * (size_t)m->depth + 1) * m->room;
}

static void mpi_mailbox_close(struct comm *c)
{
    free(c->mailbox.memory);
    free(c->mailbox.requests);
}

static status mpi_mailbox_open(struct comm *c)
{
    struct mailbox *m = &c->mailbox;
    if (m->room > INT_MAX)
        return FAIL(STATUS_CONFIG, "messages of %zu bytes are too long for Open MPI", m->bytes_max);
    m->memory_bytes = mpi_mailbox_bytes(m, c->ranks);
    m->memory = malloc(m->memory_bytes);
    m->requests = calloc(2 * (size_t)m->depth, sizeof *m->requests);
    if (m->memory == NULL || m->requests == NULL) {
        mpi_mailbox_close(c);
        return FAIL(STATUS_OUT_OF_MEMORY, "no %zu bytes of memory for messages", m->memory_bytes);
    }
    c->world->memory.host += m->memory_bytes;
    return STATUS_OK;
}

static status send(struct comm *c, const struct comm_call *call)
{
    struct mailbox *m = &c->mailbox;
    const size_t slot = call->way * m->depth + (size_t)((call->sequence - 1) % m->depth);
    char *at = m->memory + slot * m->room;
    if (m->requests[slot]) TRY(wait_for(c, &m->requests[slot], call));
    comm_header_fill((struct comm_header *)at, c, call);
    memcpy(at + COMM_LINE, call->send, call->bytes);
    if (c->mpi->isend(at, (int)(COMM_LINE + call->bytes), c->mpi->byte, comm_neighbour(c, call),
                      (int)call->way, c->handle, &m->requests[slot]) != 0)
        return broken(c, call);
    return STATUS_OK;
}

static status mpi_message(struct comm *c, const struct comm_call *call)
{
    if (call->op == COMM_SEND) return send(c, call);
    char *at = c->mailbox.memory + 2 * (size_t)c->mailbox.depth * c->mailbox.room;
    handle request;
    if (c->mpi->irecv(at, (int)c->mailbox.room, c->mpi->byte, comm_neighbour(c, call), (int)call->way,
                      c->handle, &request) != 0)
        return broken(c, call);
    TRY(wait_for(c, &request, call));
    status st = comm_message_check(c, (const struct comm_header *)at, call);
    if (st == STATUS_OK) memcpy(call->recv, at + COMM_LINE, call->bytes);
    return st;
}

const struct host_transport transport_mpi = {.name = "Open MPI",
                                             .open = mpi_open,
                                             .close = mpi_close,
                                             .collective = mpi_call,
                                             .message = mpi_message,
                                             .split = mpi_split,
                                             .mailbox_open = mpi_mailbox_open,
                                             .mailbox_close = mpi_mailbox_close,
                                             .bytes = mpi_bytes,
                                             .mailbox_bytes = mpi_mailbox_bytes};
