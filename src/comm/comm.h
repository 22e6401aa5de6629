/* comm: the ranks of one job, groups of them, collectives and messages between them. docs/COMM.md.
 *
 * A rank is a process. Every rank of a communicator calls the same collectives in the same order with the same sizes.
 * Each call sends its name and size to the others; a mismatch is an error that names both calls: never a hang, never
 * mixed data.
 *
 * Every wait ends. If a rank dies, fails, or its heartbeat stops for COMM_SILENCE_S seconds, all others return
 * STATUS_COMM with one line that names the rank, the call and its number.
 *
 * A NULL comm is a single rank: collectives then only copy input to output.
 *
 * Transports (comm/transport.h): shared memory of one host, and Open MPI between hosts. GPUs:
 * comm/gpu/device_comm.h. */
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
/* COMM_GROUPS limits the communicators of a rank, including the world; only the first COMM_DEVICE_GROUPS of them may
 * run GPU collectives. */
enum { COMM_GROUPS = 12, COMM_DEVICE_GROUPS = 8 };
#define COMM_SILENCE_S 4.0  /* a rank is lost if its heartbeat, sent four times a second, stops for this long */
#define COMM_STUCK_S 8.0    /* if every rank has been waiting for this many seconds, the job is declared deadlocked */
#define COMM_DEADLINE_S 3600.0  /* timeout of one wait for a rank that is alive but busy: an evaluation, a checkpoint */

/* Reads this process's rank from the environment: of `ingot launch` (INGOT_RANK, INGOT_RANKS, INGOT_COMM), of
 * Open MPI's mpirun (OMPI_COMM_WORLD_RANK, _SIZE), of srun (SLURM_PROCID, SLURM_STEP_NUM_TASKS; srun
 * --mpi=pmix) or of torchrun (RANK, WORLD_SIZE; MASTER_ADDR and MASTER_PORT for the rendezvous). Without
 * them: one rank. STATUS_CONFIG if they contradict each other. */
enum comm_launcher { COMM_BY_NONE, COMM_BY_LAUNCH, COMM_BY_MPI, COMM_BY_TORCHRUN };
struct comm_env {
    int rank, ranks;
    int local_rank;     /* index on this host */
    enum comm_launcher by;
    int fd;             /* COMM_BY_LAUNCH: file descriptor of the shared memory; -1: none */
};
status comm_env_read(struct comm_env *e) WARN_UNUSED;

/* Opens the world. Collective: waits for all ranks, at most one minute. *out is NULL for one rank. */
status comm_open(struct comm **out, const struct comm_env *e) WARN_UNUSED;
/* Closes the world and every group. `st`: this rank's result. If it is an error, it aborts the other ranks' waits with
 * this thread's message. Does nothing for NULL. */
void comm_close(struct comm *c, status st);
/* Splits `parent` into groups: ranks with the same color form a group, ordered by key (then by rank in parent).
 * Collective over parent. *out is NULL for a group of one rank. A group lives until the world is closed. Its calls are
 * monitored like all others; errors name the group, and a rank by its number in the world and in the group.
 * STATUS_CONFIG if a rank is in COMM_GROUPS communicators already. */
status comm_split(struct comm *parent, const char *name, int color, int key, struct comm **out) WARN_UNUSED;
int comm_rank(const struct comm *c);
int comm_ranks(const struct comm *c);
int comm_local_rank(const struct comm *c);   /* on this host */
/* Seconds that this rank has waited for others in calls on host memory; waits of microseconds do not count. NULL: 0. */
double comm_wait_s(const struct comm *c);
/* The straggler of a call on host memory: the lowest rank that is in no such call, while this rank is in one. -1: there
 * is none, or this rank does not wait. Any thread may call this. */
int comm_straggler(const struct comm *world);
/* Placement of a job's ranks. NULL: one rank. */
struct comm_job {
    int ranks, here;    /* number of ranks: of the job; on this host */
    bool shares_memory; /* true: transport_shm, the ranks share memory; false: Open MPI */
    bool mail_by_nccl;  /* true: NCCL carries messages of GPUs (comm_mail_by_nccl); comm_job leaves it false */
};
struct comm_job comm_job(const struct comm *world);
/* Memory that communication needs in addition to the caller's buffers: heartbeats and flags, buffers, mailboxes. Shared
 * memory counts 1/n per rank. Host pages that are never written cost nothing. comm_memory predicts it for a plan;
 * comm_memory_used is what this rank has allocated. Not counted: lists of a few bytes per call, and what MPI and NCCL
 * allocate. */
struct comm_memory { size_t device, host; };
struct comm_memory_args {
    struct comm_job job;
    bool devices;
    int groups;         /* number of communicators of the rank, including the world */
    size_t mailbox_bytes; /* arguments of comm_mailbox_open; mailbox_depth 0: no mailboxes */
    int mailbox_depth, mailbox_ranks;
};
struct comm_memory comm_memory(const struct comm_memory_args *a);
struct comm_memory comm_memory_used(const struct comm *world);

/* Calls with a stream move data in GPU memory, one GPU per rank. They are queued on the stream, like ops. Without a
 * stream (NULL) data are in host memory, and the call returns when it is done.
 *
 * comm_devices_open: once, collective, after the groups were made. s: a stream of this rank's GPU; from then on
 *   dev_sync checks the other ranks while it waits. Does nothing if world or s is NULL. STATUS_CONFIG if two ranks have
 *   the same GPU. GPUs of one host with peer access read and write each other's memory, and time their algorithms
 *   (tuner.h). All other calls use NCCL; with GPU_BACKEND_NCCL every call does. STATUS_DEVICE if NCCL is missing.
 * comm_devices_register: collective; registers an arena in GPU memory, which all ranks use alike. Calls with buffers
 *   outside registered memory use NCCL.
 * comm_devices_deregister: collective; call it before the arena is freed while others stay, and while no call that uses
 *   it is in flight. */
enum gpu_backend { GPU_BACKEND_AUTO, GPU_BACKEND_NCCL };
status comm_devices_open(struct comm *world, struct stream *s, enum gpu_backend how) WARN_UNUSED;
status comm_devices_register(struct comm *world, void *base, size_t bytes) WARN_UNUSED;
status comm_devices_deregister(struct comm *world, void *base) WARN_UNUSED;

/* Collectives. `name` (a literal) says in errors what was sent. Sizes are in bytes. */
/* recv[r] [bytes] = rank r's send[this rank]; send and recv are [ranks][bytes] and must not overlap. */
status comm_all_to_all(struct comm *c, const char *name, const void *send, void *recv, size_t bytes, struct stream *s) WARN_UNUSED;
/* The same with a number of rows of `bytes` for each pair of ranks (all-to-all-v). counts[i * ranks + j]: number of
 * rows from rank i to rank j; the same array on all ranks, in the same memory as the data. send: the rows for rank 0,
 * then those for rank 1, ...; recv: the rows from rank 0, from rank 1, ... They must not overlap. On the host the
 * counts' hashes are compared. With a stream the host reads no count; the ranks must have access to each other's memory
 * (STATUS_CONFIG), and `bytes` must be even. */
status comm_all_to_all_rows(struct comm *c, const char *name, const int64_t *counts, const void *send, void *recv, size_t bytes, struct stream *s) WARN_UNUSED;
/* all[r] [bytes] = rank r's `mine`, which may be all + rank * bytes. */
status comm_all_gather(struct comm *c, const char *name, const void *mine, void *all, size_t bytes, struct stream *s) WARN_UNUSED;
/* Ring shift: recv [bytes] = `send` of rank - by; this rank's `send` goes to rank + by, modulo ranks; 0 < by < ranks.
 * Successive shifts make an all-gather or an all-to-all in steps, which compute can overlap. c must not be NULL. */
status comm_ring_shift(struct comm *c, const char *name, int by, const void *send, void *recv, size_t bytes, struct stream *s) WARN_UNUSED;
/* Gathers on rank 0 only; on the others `all` is scratch. */
status comm_gather(struct comm *c, const char *name, const void *mine, void *all, size_t bytes) WARN_UNUSED;
/* x [bytes] = rank 0's. */
status comm_broadcast(struct comm *c, const char *name, void *x, size_t bytes, struct stream *s) WARN_UNUSED;
status comm_barrier(struct comm *c, const char *name) WARN_UNUSED;

/* Sums over ranks, in an order that depends only on their number: the sum of ranks 0, 2, 4, ... by this rule, plus the
 * sum of ranks 1, 3, 5, ... by this rule. So each rank may itself contribute a sum in this order, and the result does
 * not depend on how many ranks compute it (powers of two). F32, F64, or BF16, which is added in F32 and rounded
 * once. */
/* All-reduce: x [count] = the sum of all x; every rank gets the same bits. `scratch`: comm_all_reduce_scratch bytes,
 * aligned to 64. */
size_t comm_all_reduce_scratch(int ranks, int64_t count, dtype dt);
status comm_all_reduce(struct comm *c, const char *name, void *x, int64_t count, dtype dt, void *scratch, struct stream *s) WARN_UNUSED;
/* out [count] = the sum over ranks of x[this rank]; x is [ranks][count], and out may be x[this rank]. `scratch`:
 * comm_reduce_scatter_scratch bytes. */
size_t comm_reduce_scatter_scratch(int ranks, int64_t count, dtype dt);
status comm_reduce_scatter(struct comm *c, const char *name, const void *x, void *out, int64_t count, dtype dt, void *scratch, struct stream *s) WARN_UNUSED;
/* Finishes a reduce-scatter whose data arrived by shifts, by adding the terms: x[r] is from rank r; this rank's term is
 * `own`, and its slot in x is unused. */
status comm_reduce_scatter_finish(struct comm *c, void *x, const void *own, void *out, int64_t count, dtype dt, struct stream *s) WARN_UNUSED;
enum { COMM_SCALARS = 16 };
/* count <= COMM_SCALARS; no scratch */
status comm_all_reduce_f64(struct comm *c, const char *name, double *x, int count, struct stream *s) WARN_UNUSED;

/* Messages on the ring of a communicator: rank 0 follows the last rank. Each direction is a channel of its own, even
 * between two ranks. A single rank must not send; comm_mailbox_open(NULL) is allowed.
 *
 * comm_mailbox_open: once, collective; each mailbox holds `depth` unread messages of at most `bytes_max` per
 *   direction and rank. With a stream, all messages are on GPUs: each pair of ranks uses mailboxes in GPU memory, or NCCL.
 * comm_send: data may be overwritten after it returns (on a GPU: by later work of the stream). It waits only while
 *   `depth` messages of that direction are unread (over MPI and NCCL: not sent yet).
 * comm_recv: receives the oldest message that travels in direction `way` to this rank; COMM_NEXT: from the previous
 *   rank. Name and bytes must be those of comm_send, or all ranks fail and name both. */
enum comm_way { COMM_NEXT, COMM_PREV };
status comm_mailbox_open(struct comm *c, size_t bytes_max, int depth, struct stream *s) WARN_UNUSED;
status comm_send(struct comm *c, const char *name, enum comm_way way, const void *data, size_t bytes, struct stream *s) WARN_UNUSED;
status comm_recv(struct comm *c, const char *name, enum comm_way way, void *data, size_t bytes, struct stream *s) WARN_UNUSED;
/* Call after the last message of a step, when all have been received: the next messages may be in another CUDA
 * graph. s: the stream of the messages; it waits until they have left. NULL with mailboxes on GPUs: the messages were
 * captured, and the capture was discarded. */
status comm_mailbox_settle(struct comm *c, struct stream *s) WARN_UNUSED;
/* True if some neighbours of c have GPUs that do not reach each other's memory. NCCL carries their messages, except
 * those of a COMM_STEP_FIRST, which go through mailboxes in host memory. Call after comm_devices_open. */
bool comm_mail_by_nccl(const struct comm *c);

/* Brackets the calls of a training step on c (the world) and its groups, including messages: they must be the same in
 * every step. The first step records the list; at its end the ranks of each communicator compare their lists (a
 * collective), and queued calls are compared one by one before they are queued. REPLAY: queued calls repeat inside a
 * graph. STATUS_COMM names the first call that differs, before it is made. Does nothing for NULL. */
enum comm_step { COMM_STEP_FIRST, COMM_STEP_REPEAT, COMM_STEP_REPLAY };
void comm_step_begin(struct comm *c, enum comm_step step);
status comm_step_end(struct comm *c) WARN_UNUSED;
/* Call it with true, then with false, on all ranks: calls in between are not part of the list, because not every step
 * makes them. They must be on host memory. */
void comm_calls_untracked(struct comm *c, bool begins);
/* Call it instead of comm_step_end, on all ranks: the step is dropped, and no other follows. */
void comm_step_drop(struct comm *c);

/* Sets the flight recorder's directory: after an abort the last 64 calls of each rank are written to comm-flight.txt
 * there. Without a directory the last call of each rank goes to stderr. Any rank may set it. */
void comm_flight_recorder_dir(struct comm *c, const char *run_dir);

/* ---- for the process that starts the ranks (`ingot launch`, tests) */
/* Creates the shared memory of a job of `ranks`, as a file descriptor that children inherit. Nothing of it remains
 * after all have exited. */
status comm_job_create(int ranks, int *fd) WARN_UNUSED;
/* Aborts all waits with a message, on behalf of a rank that no longer can. */
void comm_job_abort(int fd, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Gets the reason why the job was aborted; "": it was not. */
void comm_job_abort_reason(int fd, char text[COMM_TEXT]);
/* Writes the last calls of each rank. */
void comm_job_write_flight(int fd, const char *reason);
#endif
