/* p2p_schedule: collectives between the GPUs of one host by kernels that read each other's memory, without NCCL or the
 * host.
 *
 * Each of R ranks (1 to P2P_RANKS_MAX) is a GPU with three buffers in chunks of `count` floats, which the others can
 * read (peer access inside a process, IPC handles between processes): IN, OUT, and WORK of p2p_schedule.work chunks.
 *
 *   op              IN       OUT      result
 *   all_to_all      [R]      [R]      OUT[p] = rank p's IN[me]
 *   all_gather      [1]      [R]      OUT[p] = rank p's IN[0];                     IN may be OUT[me]
 *   reduce_scatter  [R]      [1]      OUT[0] = sum over p of rank p's IN[me];      OUT may be IN[me]
 *   all_reduce      [R]      [R]      OUT[c] = sum over p of rank p's IN[c];       OUT may be IN, except P2P_ONE_SHOT
 *
 * Sums have the order of comm.h, so the bits of comm_all_reduce: even ranks plus odd ranks, recursively, in F32. BF16
 * is added in F32 and rounded once, so its sums, and those of F64, need all terms in one place: direct, once or ll. In
 * that order partial sums cannot travel around a ring:
 *
 *   direct     one step with all others. Data are stored into the others' memory: stores are faster than loads and
 *              saturate a link with a fourth of the blocks. A sum reads all terms (an all-reduce: of its own chunk,
 *              which it then stores to all).
 *   ring       R - 1 steps, one partner each. Gathers read only the neighbour below. Reductions read in step k from the
 *              rank k + 1 further, and add siblings of the tree as soon as both are there.
 *   hypercube  log2 R steps with partners that differ in one bit; R a power of two. Reductions halve the data in each
 *              step, highest bit first, which is comm.h's tree; gathers double them; an all-to-all moves half of all.
 *   once       all_reduce only: every rank adds everything. One wait, R - 1 times the bytes.
 *   ll         LL protocol for small data: every eight bytes carry the collective's number into a buffer in the others'
 *              memory, which the receiver polls. One latency of the link and no final wait. At most P2P_LL_FLOATS per
 *              chunk (an all-reduce: of all chunks), an even number.
 *
 * A schedule is data: steps of moves, the same for every size, checked by simulating all ranks
 * (tests/comm/test_p2p_schedule.c). A kernel runs it: block b of each rank has part b of every chunk, and
 * synchronises only with blocks b of the others, through flags in their memory. Nothing is allocated and no
 * argument changes between calls, so a captured collective can be replayed. */
#ifndef INGOT_COMM_GPU_P2P_SCHEDULE_H
#define INGOT_COMM_GPU_P2P_SCHEDULE_H
#include "base/status.h"
#include "tensor/dtype.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { P2P_RANKS_MAX = 8, P2P_BLOCKS_MAX = 256, P2P_STEPS_MAX = 2 * P2P_RANKS_MAX, P2P_MOVES_MAX = 4 * P2P_RANKS_MAX };
enum { P2P_LL_BLOCKS = 32, P2P_LL_THREADS = 512, P2P_LL_FLOATS = 2 * P2P_LL_BLOCKS * P2P_LL_THREADS };
enum { P2P_PART_FLOATS = 2048 };   /* minimum part of a chunk per thread block */
enum { P2P_ALIGN = 16, P2P_LL_ALIGN = 8 };    /* alignment of buffers and chunks in bytes */

#define P2P_OPS(X) X(ALL_TO_ALL, all_to_all) X(ALL_GATHER, all_gather) X(REDUCE_SCATTER, reduce_scatter) X(ALL_REDUCE, all_reduce)
enum p2p_op {
#define X(name, text) P2P_##name,
    P2P_OPS(X)
#undef X
    P2P_OP_COUNT
};
#define P2P_ALGOS(X) X(DIRECT, direct) X(RING, ring) X(HYPERCUBE, hypercube) X(ONE_SHOT, once) X(LL, ll)
enum p2p_algo {
#define X(name, text) P2P_##name,
    P2P_ALGOS(X)
#undef X
    P2P_ALGO_COUNT
};
const char *p2p_op_text(enum p2p_op op);
const char *p2p_algo_text(enum p2p_algo way);

/* A move: to = from, from + plus, or the sum of `from` over all ranks. `to` and `plus` are this rank's buffers, except
 * for P2P_PUT, where `from` is. */
enum p2p_buffer { P2P_IN, P2P_OUT, P2P_WORK };
enum p2p_move_kind { P2P_COPY, P2P_PUT, P2P_ADD, P2P_TREE };
struct p2p_place {
    uint8_t buffer, chunk;
};
struct p2p_schedule_move {
    uint8_t kind;
    uint8_t rank;               /* the rank whose buffer is `from`; P2P_PUT: `to`; P2P_TREE: unused, all ranks' */
    struct p2p_place from, plus, to;
};
/* Moves begin .. end - 1. They start when the ranks of `wait` have reached this step too; the ranks of `tell` wait for
 * this rank. Both are bit masks of ranks. */
struct p2p_schedule_step {
    uint8_t begin, end;
    uint8_t wait, tell;
};
struct p2p_schedule {
    uint8_t op, rank, ranks;
    uint8_t ll;                 /* LL protocol: there are no steps */
    uint8_t any_order;          /* no move of a step depends on another, so blocks begin at different moves */
    uint8_t step_count, move_count;
    uint8_t in, out, work;      /* number of chunks of the buffers */
    struct p2p_schedule_step steps[P2P_STEPS_MAX];
    struct p2p_schedule_move moves[P2P_MOVES_MAX];
};
/* True if the algorithm supports this op among so many ranks, for chunks of so many floats (bytes / 4 for data without
 * sums). */
bool p2p_algo_supports(enum p2p_algo way, enum p2p_op op, int ranks, int64_t count);
/* Builds the schedule of `rank`. STATUS_CONFIG: too many ranks; a hypercube whose number of ranks is not a power of
 * two; `once` for another op than all_reduce. */
status p2p_schedule_fill(struct p2p_schedule *s, enum p2p_op op, enum p2p_algo way, int rank, int ranks) WARN_UNUSED;

/* Flags of one rank of one group, in its GPU's memory. All are zero before the group's first collective. The other
 * ranks write `told` [rank][block]. */
struct p2p_flags {
    /* LL buffers, used alternately: two floats, each followed by its collective's number. First, because packets are
     * aligned to 16 bytes. */
    uint32_t ll_buffers[2][P2P_RANKS_MAX][P2P_LL_BLOCKS][P2P_LL_THREADS][4];
    uint32_t told[P2P_RANKS_MAX][P2P_BLOCKS_MAX];
    uint32_t base[P2P_BLOCKS_MAX];  /* number of steps of this rank's blocks so far; the same on all ranks */
    uint32_t ll_number[P2P_LL_BLOCKS];
    uint32_t lost;      /* 0, or 1 + the rank that timed out: results are then undefined, and the flags of all ranks
                           must be zeroed */
    uint32_t unused[3]; /* keeps every element of an array aligned */
};

struct stream;
/* Every rank queues the same collectives in the same order with the same count and blocks. Inputs must be ready when
 * all ranks have reached the call in their streams, and may be overwritten after it. Pointers are addresses on the GPU
 * of `s`, which is the current device. */
struct p2p_schedule_args {
    const struct p2p_schedule *schedule;
    const float *in[P2P_RANKS_MAX], *work[P2P_RANKS_MAX];    /* each rank's buffers; only this rank's work is written */
    float *out[P2P_RANKS_MAX];
    struct p2p_flags *flags[P2P_RANKS_MAX];
    int64_t count;      /* floats of a chunk, or its bytes / 4; a multiple of 4, of 2 for ll */
    dtype dt;           /* sums only: F32, BF16 or F64 */
    int blocks;         /* maximum; all must run at once, so no more than the GPU has multiprocessors */
    double deadline_s;  /* timeout of a wait inside the kernel; 0: none */
    const volatile uint32_t *abort_flag;  /* in host memory: all waits end when it is set; or NULL */
    volatile unsigned char *mark;   /* in host memory: set to 1 when the collective is done; or NULL */
};
/* Both exist only in builds with CUDA. p2p_schedule_load: call it once per GPU (the current device) and number of
 * ranks, before the first collective: loading a kernel could wait for a kernel of another GPU that waits for this
 * one. */
status p2p_schedule_load(int ranks) WARN_UNUSED;
status p2p_schedule_launch(const struct p2p_schedule_args *a, struct stream *s) WARN_UNUSED;
#endif
