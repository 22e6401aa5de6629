/* Which rank this process is, of how many: read from the variables that launchers set. */
#include "base/text.h"
#include "comm/comm.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

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

/* The variables in which launchers pass rank and rank count. */
struct launcher {
    const char *rank, *ranks, *local, *name;
    enum comm_launcher by;
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
    if (!local) e->local_rank = e->rank; /* one host */
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

/* The shared memory of the ranks of `ingot launch`. */
static status read_launch_fd(struct comm_env *e)
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
    if (getenv("TORCHELASTIC_RUN_ID")) /* perhaps inside srun or mpirun */
        TRY(read_launcher(&launchers[COUNT - 1], e, &found));
    for (size_t i = 0; i < COUNT && !found; i++) TRY(read_launcher(&launchers[i], e, &found));
    if (!found) *e = (struct comm_env){.rank = 0, .ranks = 1, .fd = -1};
    if (e->ranks == 1) return STATUS_OK;
    return e->by == COMM_BY_LAUNCH ? read_launch_fd(e) : STATUS_OK;
}
