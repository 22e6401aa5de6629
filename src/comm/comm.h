/* comm: the ranks of one job, groups of them, collectives and messages between them. docs/COMM.md.
 *
 * A rank is a process. Every rank of a communicator calls the same collectives in the same order with the same sizes. Each call sends its name
 * and size to the others; a mismatch is an error that names both calls: never a hang, never mixed data.
 *
 * Waits end. If a rank dies, its heartbeat stops for COMM_SILENCE_S seconds, or it fails, all others return STATUS_COMM with one line that
 * names the rank, the call and its number.
 *
 * A NULL comm is one rank alone: collectives copy what they would have copied, and cost nothing else.
 *
 * Transports (comm/transport.h): shared memory of one host, and Open MPI between hosts. GPUs: comm/gpu/device_comm.h. */
#ifndef INGOT_COMM_COMM_H
#define INGOT_COMM_COMM_H
#include "base/status.h"
#include "tensor/dtype.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct comm;
struct stream; /* dev/dev.h */

enum { COMM_RANKS_MAX = 512, COMM_NAME = 32, COMM_TEXT = 512 };
enum { COMM_GROUPS = 8 };   /* communicators that a rank can be in, that of all ranks among them */
#define COMM_SILENCE_S 4.0  /* heartbeats come four times a second */
#define COMM_STUCK_S 8.0    /* all ranks wait at once for so long: a deadlock */
#define COMM_DEADLINE_S 3600.0  /* timeout of one wait, for a live rank that is busy: an evaluation, a checkpoint */

/* What the environment says of this process: the variables of `ingot launch` (INGOT_RANK, INGOT_RANKS, INGOT_COMM), of Open MPI's mpirun
 * (OMPI_COMM_WORLD_RANK, _SIZE), of srun (SLURM_PROCID, SLURM_STEP_NUM_TASKS; srun --mpi=pmix) or of torchrun (RANK, WORLD_SIZE, and for the
 * meeting of the ranks MASTER_ADDR, MASTER_PORT). One rank without them. STATUS_CONFIG when they contradict each other. */
enum comm_launcher { COMM_BY_NONE, COMM_BY_LAUNCH, COMM_BY_MPI, COMM_BY_TORCHRUN };
struct comm_env {
    int rank, ranks;
    int local_rank;     /* among those of this machine */
    enum comm_launcher by;
    int fd;             /* COMM_BY_LAUNCH: of the shared memory; -1: none */
};
status comm_env_read(struct comm_env *e) WARN_UNUSED;

/* *out is NULL for one rank. Collective: waits for all ranks, a minute at most. */
status comm_open(struct comm **out, const struct comm_env *e) WARN_UNUSED;
/* Closes a communicator of all ranks, and every group of them. `st`: how this rank ends. Any but OK and STOPPED ends the waits of the
 * others, with this thread's message. NULL is fine. */
void comm_close(struct comm *c, status st);
/* The ranks of `parent` that give the same color, in the order of key (then of their rank in parent). Collective over parent. A group of
 * one is *out = NULL. A group lives until the communicator of all ranks is closed. Its calls are watched as all are; errors name it, and
 * a rank by its number among all and in the group. STATUS_CONFIG: a rank is in COMM_GROUPS communicators already. */
status comm_split(struct comm *parent, const char *name, int color, int key, struct comm **out) WARN_UNUSED;
int comm_rank(const struct comm *c);
int comm_ranks(const struct comm *c);
int comm_local_rank(const struct comm *c);   /* among those of this machine */
/* Where a job's ranks are. NULL: one rank alone. */
struct comm_job {
    int ranks, here;    /* of all; of this machine */
    bool memory;        /* transport_shm; else Open MPI */
};
struct comm_job comm_job(const struct comm *world);
/* Memory that communication takes beside the caller's buffers: heartbeats and flags, buffers, mailboxes. Shared memory counts 1/n per rank.
 * Host pages that are never written cost nothing. comm_memory predicts it for a plan, comm_memory_used is what this rank has allocated. Not
 * counted: lists of a few bytes per call, and what MPI and NCCL allocate. */
struct comm_memory { size_t device, host; };
struct comm_memory_args {
    struct comm_job job;
    bool devices;
    int groups;         /* communicators that the rank is in, that of all among them */
    size_t mail_bytes;  /* comm_mail_open; mail_depth 0: none */
    int mail_depth, mail_ranks;
};
struct comm_memory comm_memory(const struct comm_memory_args *a);
struct comm_memory comm_memory_used(const struct comm *world);

/* Calls with a stream move data in the memory of GPUs, one GPU per rank: they are queued on the stream, and done when what is queued there
 * before them is. Without one (NULL) the data are the host's, and there when the call returns.
 *
 * comm_devices_open: once, collective, after the groups were made; s: a stream of this rank's GPU, of which dev_sync looks around from then on
 * while it waits. NULL world or stream: nothing. STATUS_CONFIG when two ranks have one GPU. GPUs of one machine read and write each
 * other's memory, where they reach it, and time the ways to do so (tuner.h); what is left goes by NCCL, as with COMM_DEVICES_NCCL all does:
 * STATUS_DEVICE when it is not there.
 * comm_devices_register: collective; the memory of an arena of the GPU, of the same use on all ranks. What is called with lies in it, or goes by NCCL.
 * comm_devices_deregister: collective, before the arena is given back while others live; nothing that uses it is under way. */
enum comm_transport { COMM_DEVICES_AUTO, COMM_DEVICES_NCCL };
status comm_devices_open(struct comm *world, struct stream *s, enum comm_transport how) WARN_UNUSED;
status comm_devices_register(struct comm *world, void *base, size_t bytes) WARN_UNUSED;
status comm_devices_deregister(struct comm *world, void *base) WARN_UNUSED;

/* Collectives. `name` (a literal) says in errors what was sent. Sizes in bytes. */
/* recv[r] [bytes] = what rank r's send holds for this rank; send and recv are [ranks][bytes] and may not overlap. */
status comm_all_to_all(struct comm *c, const char *name, const void *send, void *recv, size_t bytes, struct stream *s) WARN_UNUSED;
/* all[r] [bytes] = rank r's `mine`, which may be all + rank * bytes. */
status comm_all_gather(struct comm *c, const char *name, const void *mine, void *all, size_t bytes, struct stream *s) WARN_UNUSED;
/* recv [bytes] = what rank - by has in `send`, while this rank's goes to rank + by, counted round the ranks; 0 < by < ranks. One after the
 * other they are a gather, or an exchange, of which whoever computes beside waits for a part at a time. Not of a NULL comm. */
status comm_shift(struct comm *c, const char *name, int by, const void *send, void *recv, size_t bytes, struct stream *s) WARN_UNUSED;
/* The same for rank 0 alone; of the others, `all` is memory to work with. */
status comm_gather(struct comm *c, const char *name, const void *mine, void *all, size_t bytes) WARN_UNUSED;
/* x [bytes] = rank 0's. */
status comm_broadcast(struct comm *c, const char *name, void *x, size_t bytes, struct stream *s) WARN_UNUSED;
status comm_barrier(struct comm *c, const char *name) WARN_UNUSED;

/* Sums over ranks, in an order that depends on their number alone: ranks 0, 2, 4, ... by this rule, plus ranks 1, 3, 5, ... by this rule.
 * So each rank may itself hold a sum formed by the same rule, and the whole does not depend on how many ranks it was cut into (powers of
 * two). F32, F64, or BF16, which is added up in F32 and rounded once. */
/* x [count] = the sum of all x: every rank gets the same bits. `scratch`: comm_sum_scratch bytes, aligned to 64. */
size_t comm_sum_scratch(int ranks, int64_t count, dtype dt);
status comm_sum(struct comm *c, const char *name, void *x, int64_t count, dtype dt, void *scratch, struct stream *s) WARN_UNUSED;
/* out [count] = the sum over ranks of x[this rank]; x is [ranks][count], and out may be x[this rank]. `scratch`: comm_reduce_scratch bytes. */
size_t comm_reduce_scratch(int ranks, int64_t count, dtype dt);
status comm_reduce_scatter(struct comm *c, const char *name, const void *x, void *out, int64_t count, dtype dt, void *scratch, struct stream *s) WARN_UNUSED;
/* What is left of a reduce-scatter when its data have come by shifts: x[r] is what came from rank r; this rank's part is `own`, and its place in x free. */
status comm_add_terms(struct comm *c, void *x, const void *own, void *out, int64_t count, dtype dt, struct stream *s) WARN_UNUSED;
enum { COMM_SCALARS = 16 };
status comm_sum_f64(struct comm *c, const char *name, double *x, int count, struct stream *s) WARN_UNUSED;    /* count <= COMM_SCALARS; no scratch */

/* Messages along the ring of a communicator: rank 0 is next to the last one. Each way is a channel of its own, also between two ranks.
 * One rank alone has nobody to send to: a CHECK, but comm_mail_open of NULL is fine.
 *
 * comm_mail_open: once, collective; room for `depth` unread messages of at most `bytes_max` per way and rank.
 * With a stream, mailboxes are in the GPU's memory, and all messages are on GPUs.
 * comm_send: data may be overwritten when it returns (on a GPU: by what is queued after it); it waits only while `depth` messages of that way are unread (over MPI: not on their
 * way yet).
 * comm_recv: the oldest message that travels `way` to this rank: COMM_NEXT is what the previous rank sent. Name and bytes must be those
 * of comm_send, or all ranks end with both named. */
enum comm_way { COMM_NEXT, COMM_PREV };
status comm_mail_open(struct comm *c, size_t bytes_max, int depth, struct stream *s) WARN_UNUSED;
status comm_send(struct comm *c, const char *name, enum comm_way way, const void *data, size_t bytes, struct stream *s) WARN_UNUSED;
status comm_recv(struct comm *c, const char *name, enum comm_way way, void *data, size_t bytes, struct stream *s) WARN_UNUSED;
/* After the last message of a step, all of which were taken: its next messages may be in another graph of the GPU. */
void comm_mail_settle(struct comm *c);

/* The calls of a training step, messages too, are one list: what is called between these two, on c (of all ranks) and its groups, must be
 * the same in every step. The first step writes the list; its end, a collective, compares the ranks of each communicator, and queued calls are
 * compared one by one before they are queued. REPLAY: the queued ones come again, unseen, in a graph. STATUS_COMM names the call that differs, before it is made. NULL: nothing. */
enum comm_step { COMM_STEP_FIRST, COMM_STEP_REPEAT, COMM_STEP_REPLAY };
void comm_step_begin(struct comm *c, enum comm_step step);
status comm_step_end(struct comm *c) WARN_UNUSED;

/* The flight recorder's directory: after an abort the last 64 calls of each rank are written to comm-flight.txt there. Without a directory the
 * last call of each rank goes to stderr. Any rank may set it. */
void comm_flight_recorder_dir(struct comm *c, const char *run_dir);

/* ---- for whoever starts the ranks (`ingot launch`, tests) */
/* Shared memory for a job of `ranks`, as a file descriptor that children inherit; nothing of it is left when all have ended. */
status comm_job_create(int ranks, int *fd) WARN_UNUSED;
/* Aborts all waits with a message, on behalf of a rank that cannot do it itself any more. */
void comm_job_abort(int fd, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Why the job was aborted; "": it was not. */
void comm_job_abort_reason(int fd, char text[COMM_TEXT]);
/* Writes what each rank called last. */
void comm_job_write_flight(int fd, const char *reason);
#endif
