/* comm: the ranks of one job and the collectives between them.
 *
 * A rank is a process. Every rank calls the same collectives in the same order with the same sizes; each call says so to the others,
 * and a difference is an error that names both (never a hang, never mixed data). Waits end: when a rank dies, stops giving signs of life
 * for COMM_SILENCE_S seconds, or fails, all others return STATUS_COMM with one line that names the rank, the collective and its number.
 *
 * A NULL comm is one rank alone: collectives copy what they would have copied and cost nothing else.
 *
 * Backends: processes of one machine over shared memory (local.c), and Open MPI between machines (mpi.c), which also ends all ranks when
 * one dies, but does not see one that stands still before ten minutes. */
#ifndef INGOT_COMM_COMM_H
#define INGOT_COMM_COMM_H
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct comm;

enum { COMM_RANKS_MAX = 512, COMM_NAME = 32, COMM_TEXT = 512 };
#define COMM_SILENCE_S 4.0  /* a rank that lives says so four times a second */

/* What the environment says of this process: the variables of `ingot launch` (INGOT_RANK, INGOT_RANKS, INGOT_COMM), of Open MPI's mpirun
 * (OMPI_COMM_WORLD_RANK, _SIZE) or of srun (SLURM_PROCID, SLURM_STEP_NUM_TASKS; srun --mpi=pmix). One rank without them. STATUS_CONFIG when
 * they contradict each other, or are those of torchrun (RANK, WORLD_SIZE), whose meeting place this version does not visit. */
enum comm_by { COMM_BY_NOBODY, COMM_BY_LAUNCH, COMM_BY_MPI, COMM_BY_TORCHRUN };
struct comm_env {
    int rank, ranks;
    enum comm_by by;
    int fd;             /* COMM_BY_LAUNCH: of the shared memory; -1: none */
};
status comm_env_read(struct comm_env *e) WARN_UNUSED;

/* *out is NULL for one rank. Collective: waits for all ranks, a minute at most. */
status comm_open(struct comm **out, const struct comm_env *e) WARN_UNUSED;
/* `st`: how this rank ends. Any but OK and STOPPED ends the waits of the others, with this thread's message. NULL is fine. */
void comm_close(struct comm *c, status st);
int comm_rank(const struct comm *c);
int comm_ranks(const struct comm *c);

/* Collectives. `name` (a literal) says in errors what was sent. Sizes in bytes; memory of the host. */
/* recv[r] [bytes] = what rank r's send holds for this rank; send and recv are [ranks][bytes] and may not overlap. */
status comm_all_to_all(struct comm *c, const char *name, const void *send, void *recv, size_t bytes) WARN_UNUSED;
/* all[r] [bytes] = rank r's `mine`, which may be all + rank * bytes. */
status comm_all_gather(struct comm *c, const char *name, const void *mine, void *all, size_t bytes) WARN_UNUSED;
status comm_barrier(struct comm *c, const char *name) WARN_UNUSED;

/* x = sum over ranks, in an order that depends on their number alone: ranks 0, 2, 4, ... by this rule, plus ranks 1, 3, 5, ... by this
 * rule. So each rank may itself hold a sum formed by the same rule, and the whole does not depend on how many ranks it was cut into
 * (powers of two). Every rank gets the same bits. `scratch`: comm_sum_scratch(count) bytes. */
size_t comm_sum_scratch(const struct comm *c, int64_t count);
status comm_sum_f32(struct comm *c, const char *name, float *x, int64_t count, void *scratch) WARN_UNUSED;
enum { COMM_SCALARS = 16 };
status comm_sum_f64(struct comm *c, const char *name, double *x, int count) WARN_UNUSED;    /* count <= COMM_SCALARS */

/* ---- for whoever starts the ranks (`ingot launch`, tests) */
/* Shared memory for a job of `ranks`, as a file descriptor that children inherit; nothing of it is left when all have ended. */
status comm_local_create(int ranks, int *fd) WARN_UNUSED;
/* Ends the waits of all ranks with a message, for a rank that cannot do it itself any more. */
void comm_local_abort(int fd, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Why the waits of the ranks were ended; "" when they were not. */
void comm_local_reason(int fd, char text[COMM_TEXT]);
#endif
