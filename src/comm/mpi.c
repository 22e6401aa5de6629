/* Ranks that mpirun or srun started, on one machine or many: Open MPI, loaded when a job asks for it. Nothing of it is needed to build,
 * or to run on one machine.
 *
 * Open MPI's interface is its functions and a few objects by name; its handles are pointers. Calls are the non-blocking ones, so that a
 * wait has an end. When a rank dies, mpirun ends the others. */
#include "base/clock.h"
#include "base/log.h"
#include "comm/comm_int.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    UNIT = 64,           /* bytes of an element of large messages: counts are ints */
    DEADLINE_S = 600,    /* of one collective: an evaluation or a checkpoint of rank 0 may lie before it */
    THREAD_FUNNELED = 1, /* MPI_THREAD_FUNNELED */
    SPINS = 20000
};
typedef void *handle; /* MPI_Comm, MPI_Datatype, MPI_Request, MPI_Errhandler */

struct mpi {
    int rank, ranks;
    uint64_t sequence;
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
    int (*iallgather)(const void *send, int count, handle type, void *recv, int recv_count, handle recv_type,
                      handle comm, handle *request);
    int (*test)(handle *request, int *done, void *status);
};

/* MPI_Status is six ints or less in what we load; MPI_IN_PLACE is this value there. */
static void *const in_place = (void *)1;

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
                   {"MPI_Iallgather", &m->iallgather},
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

status mpi_open(struct mpi **out, const struct comm_env *e)
{
    struct mpi *m = calloc(1, sizeof *m);
    *out = NULL;
    if (m == NULL) return FAIL(STATUS_FIT, "no memory for the description of a rank");
    status st = load(m);
    if (st == STATUS_OK &&
        (m->comm_rank(m->world, &m->rank) != 0 || m->comm_size(m->world, &m->ranks) != 0 ||
         m->type_contiguous(UNIT, m->byte, &m->unit) != 0 || m->type_commit(&m->unit) != 0))
        st = FAIL(STATUS_COMM, "Open MPI does not say which rank this is");
    if (st == STATUS_OK && (m->rank != e->rank || m->ranks != e->ranks))
        st = FAIL(STATUS_CONFIG,
                  "the environment says rank %d of %d, Open MPI rank %d of %d: the launcher and libmpi.so.40 "
                  "do not "
                  "belong together",
                  e->rank, e->ranks, m->rank, m->ranks);
    if (st == STATUS_OK)
        *out = m;
    else
        free(m);
    return st;
}

void mpi_close(struct mpi *m, status st)
{
    if (st != STATUS_OK && st != STATUS_STOPPED) {
        if (m->rank == 0 || (st != STATUS_CONFIG && st != STATUS_COMM)) log_error("%s", status_message());
        (void)m->abort(m->world, (int)st); /* does not return: the others would wait for this rank */
    }
    (void)m->finalize();
    free(m);
}

static status wait_for(struct mpi *m, handle *request, const struct comm_call *c)
{
    int mpi_status[16], done = 0;
    const double begin = clock_s();
    const struct timespec nap = {.tv_nsec = 50000};
    for (int spin = 0; !done; spin++) {
        if (m->test(request, &done, mpi_status) != 0)
            return FAIL(STATUS_COMM, "collective %llu, %s '%s': Open MPI failed",
                        (unsigned long long)m->sequence, comm_op_text(c->op), c->name);
        if (done || spin < SPINS) continue;
        nanosleep(&nap, NULL);
        if (clock_s() - begin > DEADLINE_S)
            return FAIL(
                STATUS_COMM,
                "rank %d waits since %d seconds in collective %llu, %s '%s': another rank stands still",
                m->rank, DEADLINE_S, (unsigned long long)m->sequence, comm_op_text(c->op), c->name);
    }
    return STATUS_OK;
}

/* `bytes` from each to each (all-to-all), or of each to all. */
static status pass(struct mpi *m, const struct comm_call *c, const void *send, void *recv, size_t bytes)
{
    const bool wide = bytes % UNIT == 0;
    const size_t count = wide ? bytes / UNIT : bytes;
    const handle type = wide ? m->unit : m->byte;
    handle request;
    if (count > INT_MAX)
        return FAIL(STATUS_COMM, "'%s': %zu bytes are too many for one message", c->name, bytes);
    int failed = c->op == COMM_ALL_TO_ALL
                     ? m->ialltoall(send, (int)count, type, recv, (int)count, type, m->world, &request)
                     : m->iallgather(send, (int)count, type, recv, (int)count, type, m->world, &request);
    if (failed) return FAIL(STATUS_COMM, "%s '%s': Open MPI failed", comm_op_text(c->op), c->name);
    return wait_for(m, &request, c);
}

/* All ranks make the same call, or all say which did not. */
static status agree(struct mpi *m, const struct comm_call *c)
{
    struct comm_header mine, all[COMM_RANKS_MAX];
    const struct comm_call gather = {.op = COMM_ALL_GATHER, .name = c->name};
    comm_header_fill(&mine, c, ++m->sequence);
    TRY(pass(m, &gather, &mine, all, sizeof mine));
    for (int r = 0; r < m->ranks; r++) TRY(comm_header_check(&all[m->rank], m->rank, &all[r], r));
    return STATUS_OK;
}

status mpi_call(struct mpi *m, const struct comm_call *c)
{
    TRY(agree(m, c)); /* a barrier, too */
    if (c->op == COMM_BARRIER || c->bytes == 0) return STATUS_OK;
    const char *own = (const char *)c->recv + (size_t)m->rank * c->bytes;
    return pass(m, c, c->op == COMM_ALL_GATHER && c->send == own ? in_place : c->send, c->recv, c->bytes);
}
