/* Which ranks of `ingot launch --restart --min-ranks` take part in the next start.
 *
 * A rank that ends the job by itself (a signal, no memory, its device) is tried once more. If it does so again and no
 * checkpoint was saved in between, it stays away: the next start is without it, on a smaller mesh (plan/mesh_shrink.h).
 * When that start has saved a checkpoint, the start after it tries all ranks again. */
#ifndef INGOT_CLI_CMD_LAUNCH_ELASTIC_H
#define INGOT_CLI_CMD_LAUNCH_ELASTIC_H
#include "comm/comm.h"
#include "plan/mesh_shrink.h"

struct elastic {
    const struct spec *spec; /* NULL: all ranks always start */
    int all, least;
    int strikes[COMM_RANKS_MAX]; /* ends in a row by this rank without a checkpoint in between */
    bool away[COMM_RANKS_MAX];
    int64_t saved; /* newest checkpoint before this start; -1: none */
    struct mesh_shrink mesh;
    int slots[COMM_RANKS_MAX]; /* of the next start: rank r is number slots[r] of all */
    int ranks;                 /* of them */
};
void elastic_open(struct elastic *e, const struct spec *spec, int all, int least);
/* Before each start: what checkpoints are there. */
void elastic_begin(struct elastic *e);
/* After a start that is to be followed by another: `first` is the rank of it that ended it by itself (-1: none),
 * `absent`: it could not be started at all. Sets the ranks and the mesh of the next start, and says in one line when they
 * change. STATUS_COMM when fewer than the least are left, or no mesh of them is possible. */
status elastic_next(struct elastic *e, int first, bool absent) WARN_UNUSED;
#endif
