#include "base/text.h"
#include "comm/comm_int.h"

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
    const char *rank, *ranks, *name;
    enum comm_by by;
};
static const struct launcher launchers[] = {
    {"INGOT_RANK", "INGOT_RANKS", "ingot launch", COMM_BY_LAUNCH},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "mpirun", COMM_BY_MPI},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "srun", COMM_BY_MPI},
    {"RANK", "WORLD_SIZE", "torchrun", COMM_BY_TORCHRUN},
};

static status read_launcher(const struct launcher *l, struct comm_env *e, bool *found)
{
    bool rank, ranks;
    *e = (struct comm_env){.rank = 0, .ranks = 1, .fd = -1};
    TRY(env_number(l->rank, COMM_RANKS_MAX - 1, &e->rank, &rank));
    TRY(env_number(l->ranks, COMM_RANKS_MAX, &e->ranks, &ranks));
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
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0] && !found; i++)
        TRY(read_launcher(&launchers[i], e, &found));
    if (!found) *e = (struct comm_env){.rank = 0, .ranks = 1, .fd = -1};
    if (e->ranks == 1) return STATUS_OK;
    if (e->by == COMM_BY_TORCHRUN)
        return FAIL(STATUS_CONFIG,
                    "torchrun started this process as one of %d: use `ingot launch -n %d -- train ...` "
                    "on one machine, or mpirun on several",
                    e->ranks, e->ranks);
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

void comm_header_fill(struct comm_header *h, const struct comm_call *call, uint64_t sequence)
{
    *h = (struct comm_header){.sequence = sequence, .bytes = call->bytes, .op = (int32_t)call->op};
    snprintf(h->name, sizeof h->name, "%s", call->name);
}

status comm_header_check(const struct comm_header *a, int rank_a, const struct comm_header *b, int rank_b)
{
    if (a->sequence == b->sequence && a->bytes == b->bytes && a->op == b->op && strcmp(a->name, b->name) == 0)
        return STATUS_OK; /* field by field: between them lies padding */
    if (rank_b < rank_a) return comm_header_check(b, rank_b, a, rank_a);
    return FAIL(
        STATUS_COMM,
        "the ranks do different things: rank %d calls %s '%s' of %llu bytes (number %llu), rank %d calls %s "
        "'%s' of %llu bytes (number %llu); give all of them the same command",
        rank_a, comm_op_text((enum comm_op)a->op), a->name, (unsigned long long)a->bytes,
        (unsigned long long)a->sequence, rank_b, comm_op_text((enum comm_op)b->op), b->name,
        (unsigned long long)b->bytes, (unsigned long long)b->sequence);
}

/* ---- a rank */

status comm_open(struct comm **out, const struct comm_env *e)
{
    *out = NULL;
    if (e->ranks == 1) return STATUS_OK;
    struct comm *c = calloc(1, sizeof *c);
    if (c == NULL) return FAIL(STATUS_FIT, "no memory for the description of a rank");
    *c = (struct comm){.rank = e->rank, .ranks = e->ranks};
    status st = e->by == COMM_BY_MPI ? mpi_open(&c->mpi, e) : local_open(&c->local, e);
    if (st == STATUS_OK) {
        *out = c;
        return STATUS_OK;
    }
    free(c);
    return st;
}

void comm_close(struct comm *c, status st)
{
    if (c == NULL) return;
    if (c->mpi)
        mpi_close(c->mpi, st);
    else
        local_close(c->local, st);
    free(c);
}

int comm_rank(const struct comm *c)
{
    return c ? c->rank : 0;
}
int comm_ranks(const struct comm *c)
{
    return c ? c->ranks : 1;
}

/* ---- collectives */

static status call(struct comm *c, const struct comm_call *what)
{
    return c->mpi ? mpi_call(c->mpi, what) : local_call(c->local, what);
}

status comm_all_to_all(struct comm *c, const char *name, const void *send, void *recv, size_t bytes)
{
    if (c == NULL) {
        memcpy(recv, send, bytes);
        return STATUS_OK;
    }
    return call(c, &(struct comm_call){COMM_ALL_TO_ALL, name, send, recv, bytes});
}

status comm_all_gather(struct comm *c, const char *name, const void *mine, void *all, size_t bytes)
{
    if (c == NULL) {
        if (mine != all) memcpy(all, mine, bytes);
        return STATUS_OK;
    }
    return call(c, &(struct comm_call){COMM_ALL_GATHER, name, mine, all, bytes});
}

status comm_barrier(struct comm *c, const char *name)
{
    if (c == NULL) return STATUS_OK;
    return call(c, &(struct comm_call){COMM_BARRIER, name, NULL, NULL, 0});
}

/* ---- sums in a fixed order */

/* Elements that each rank adds up: the same for all, the last ranks may have less or nothing to do. */
static int64_t slice(const struct comm *c, int64_t count)
{
    const int64_t unit = 16;
    return (count + c->ranks * unit - 1) / (c->ranks * unit) * unit;
}

size_t comm_sum_scratch(const struct comm *c, int64_t count)
{
    /* what is sent, padded to whole slices, and what comes in */
    return c ? 2 * (size_t)slice(c, count) * (size_t)c->ranks * sizeof(float) : 0;
}

/* x[0] = sum of `ranks` vectors of `count`, `apart` from each other: even ones plus odd ones, each by the same rule. */
static void sum_vectors(float *x, int64_t count, int ranks, int64_t apart)
{
    if (ranks == 1) return;
    float *odd = x + apart;
    sum_vectors(x, count, (ranks + 1) / 2, 2 * apart);
    sum_vectors(odd, count, ranks / 2, 2 * apart);
    for (int64_t i = 0; i < count; i++) x[i] += odd[i];
}

status comm_sum_f32(struct comm *c, const char *name, float *x, int64_t count, void *scratch)
{
    if (c == NULL) return STATUS_OK;
    const int64_t part = slice(c, count), padded = part * c->ranks;
    const size_t bytes = (size_t)part * sizeof(float);
    float *send = scratch, *recv = send + padded;
    memcpy(send, x, (size_t)count * sizeof *x);
    memset(send + count, 0, (size_t)(padded - count) * sizeof *x);
    TRY(comm_all_to_all(c, name, send, recv, bytes));
    sum_vectors(recv, part, c->ranks, part);
    TRY(comm_all_gather(c, name, recv, send, bytes));
    memcpy(x, send, (size_t)count * sizeof *x);
    return STATUS_OK;
}

static double sum_scalars(const double *x, int ranks, int apart)
{
    if (ranks == 1) return x[0];
    return sum_scalars(x, (ranks + 1) / 2, 2 * apart) + sum_scalars(x + apart, ranks / 2, 2 * apart);
}

status comm_sum_f64(struct comm *c, const char *name, double *x, int count)
{
    double all[COMM_RANKS_MAX * COMM_SCALARS];
    CHECK(count > 0 && count <= COMM_SCALARS, "%d scalars", count);
    if (c == NULL) return STATUS_OK;
    TRY(comm_all_gather(c, name, x, all, (size_t)count * sizeof *x));
    for (int i = 0; i < count; i++) x[i] = sum_scalars(all + i, c->ranks, count);
    return STATUS_OK;
}
