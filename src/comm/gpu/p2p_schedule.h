/* p2p_schedule: collectives between the GPUs of one host by kernels that read each other's memory, without NCCL and without the host.
 *
 * Each of R ranks is a GPU with three buffers in chunks of `count` floats, which the others can read (peer access inside a process, IPC
 * handles between processes): IN, OUT, and WORK, of p2p_schedule.work chunks. R: 1 to P2P_RANKS_MAX.
 *
 *   op              IN       OUT      result
 *   all_to_all      [R]      [R]      OUT[p] = rank p's IN[me]
 *   all_gather      [1]      [R]      OUT[p] = rank p's IN[0];                     IN may be OUT[me]
 *   reduce_scatter  [R]      [1]      OUT[0] = sum over p of rank p's IN[me];      OUT may be IN[me]
 *   all_reduce      [R]      [R]      OUT[c] = sum over p of rank p's IN[c];       OUT may be IN, but for P2P_ONCE
 *
 * Sums have the order of comm.h, so the bits of comm_sum: even ranks plus odd ranks, each by the same rule, in F32. BF16 is added up in F32
 * and rounded once, so its sums, and those of F64, go where all terms come together: directly, once, or little. In that order partial sums
 * cannot travel round a ring, so:
 *
 *   direct     one step, all others at once. What is not summed is written into the others' memory, where stores are faster than loads and
 *              fill a link with a fourth of the blocks; a sum reads all terms (an all-reduce: of its own chunk, which it then gives to all).
 *   ring       R - 1 steps, one partner each. Gathers come from the neighbour below alone; the others read in step k from the rank k + 1
 *              places on, and add up what belongs together as soon as both parts are there.
 *   hypercube  log2 R steps with partners that differ in one bit; R a power of two. Sums halve what is exchanged in each step, highest bit
 *              first, which is comm.h's tree; gathers double it; an all-to-all moves half of everything in each step.
 *   once       all_reduce alone: every rank adds up everything. One wait for the others, R - 1 times the bytes.
 *   little     what is small: every eight bytes travel with a number of the exchange into a box in the others' memory, and who waits looks at
 *              them. One way through the link and no wait at the end; P2P_LL_FLOATS of a chunk at most (an all-reduce: of all chunks),
 *              an even number of them.
 *
 * A schedule is data: steps of moves, the same for every size, checked by walking through all ranks' lists (tests/comm/test_p2p_schedule.c). A
 * kernel carries it out: block b of each rank has part b of every chunk, and deals with the blocks b of the others alone, through flags in
 * their memory. Nothing is allocated and no argument changes from call to call, so a captured exchange can be replayed. */
#ifndef INGOT_COMM_GPU_P2P_SCHEDULE_H
#define INGOT_COMM_GPU_P2P_SCHEDULE_H
#include "base/status.h"
#include "tensor/dtype.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { P2P_RANKS_MAX = 8, P2P_BLOCKS_MAX = 256, P2P_STEPS_MAX = 2 * P2P_RANKS_MAX, P2P_MOVES_MAX = 4 * P2P_RANKS_MAX };
enum { P2P_LL_BLOCKS = 32, P2P_LL_THREADS = 512, P2P_LL_FLOATS = 2 * P2P_LL_BLOCKS * P2P_LL_THREADS };
enum { P2P_PART_FLOATS = 2048 };   /* of a chunk, or more, are worth a block */
enum { P2P_ALIGN = 16, P2P_LL_ALIGN = 8 };    /* of buffers and of chunks, bytes */

#define P2P_OPS(X) X(ALL_TO_ALL, all_to_all) X(ALL_GATHER, all_gather) X(REDUCE_SCATTER, reduce_scatter) X(ALL_REDUCE, all_reduce)
enum p2p_op {
#define X(name, text) P2P_##name,
    P2P_OPS(X)
#undef X
    P2P_OP_COUNT
};
#define P2P_ALGOS(X) X(DIRECT, direct) X(RING, ring) X(HYPERCUBE, hypercube) X(ONCE, once) X(LL, ll)
enum p2p_algo {
#define X(name, text) P2P_##name,
    P2P_ALGOS(X)
#undef X
    P2P_ALGO_COUNT
};
const char *p2p_op_text(enum p2p_op op);
const char *p2p_algo_text(enum p2p_algo way);

/* to = from, from + plus, or the sum of `from` over all ranks. `to` and `plus` are this rank's own, but for P2P_PUT, whose `from` is. */
enum p2p_buffer { P2P_IN, P2P_OUT, P2P_WORK };
enum peer_kind { P2P_COPY, P2P_PUT, P2P_ADD, P2P_TREE };
struct p2p_place {
    uint8_t buffer, chunk;
};
struct p2p_schedule_move {
    uint8_t kind;
    uint8_t rank;               /* whose memory `from` lies in; of P2P_PUT: `to`; of P2P_TREE: all ranks' */
    struct p2p_place from, plus, to;
};
/* Moves begin .. end - 1, after the ranks of `wait` have come to this step, too; the ranks of `tell` wait for this one. Bits by rank. */
struct p2p_schedule_step {
    uint8_t begin, end;
    uint8_t wait, tell;
};
struct p2p_schedule {
    uint8_t op, rank, ranks;
    uint8_t ll;                 /* no steps */
    uint8_t any_order;          /* no move of a step needs another one's result: blocks begin at different ones */
    uint8_t step_count, move_count;
    uint8_t in, out, work;      /* chunks of the buffers */
    struct p2p_schedule_step steps[P2P_STEPS_MAX];
    struct p2p_schedule_move moves[P2P_MOVES_MAX];
};
/* Has a way this op, among so many ranks, for chunks of so many floats (what else is exchanged counts as floats of its bytes)? */
bool p2p_algo_supports(enum p2p_algo way, enum p2p_op op, int ranks, int64_t count);
/* What `rank` does. STATUS_CONFIG: too many ranks; a hypercube of a number that is no power of two; `once` for another op. */
status p2p_schedule_fill(struct p2p_schedule *s, enum p2p_op op, enum p2p_algo way, int rank, int ranks) WARN_UNUSED;

/* Flags of one rank of one group, in its GPU's memory, all zero before the group's first exchange. The others write `told` [rank][block]. */
struct p2p_flags {
    uint32_t boxes[2][P2P_RANKS_MAX][P2P_LL_BLOCKS][P2P_LL_THREADS][4]; /* by turns; two floats, each with its exchange's number;
                                                                                    * first, as packets are aligned to 16 bytes */
    uint32_t told[P2P_RANKS_MAX][P2P_BLOCKS_MAX];
    uint32_t base[P2P_BLOCKS_MAX];  /* steps that this rank's blocks have made so far: the same on all ranks */
    uint32_t ll_number[P2P_LL_BLOCKS];
    uint32_t lost;      /* 1 + the rank that did not come in time, or 0. Then results are undefined, and the flags of all ranks are to be zeroed */
    uint32_t unused[3]; /* of an array of them, all are aligned */
};

struct stream;
/* Every rank queues the same exchanges in the same order with the same count and blocks; what they read lies there when all have come to
 * them in their streams, and may be overwritten behind them. Pointers are addresses on the GPU of `s`, which is the current one. */
struct p2p_schedule_args {
    const struct p2p_schedule *schedule;
    const float *in[P2P_RANKS_MAX], *work[P2P_RANKS_MAX];    /* of each rank; this rank's work is written */
    float *out[P2P_RANKS_MAX];
    struct p2p_flags *flags[P2P_RANKS_MAX];
    int64_t count;      /* floats of a chunk, or its bytes over 4; a multiple of 4, of 2 where it is little */
    dtype dt;           /* of what is summed: F32, BF16 or F64 */
    int blocks;         /* at most; all must run at once: no more than the GPU has multiprocessors */
    double deadline_s;  /* of a wait inside the kernel, so that it ends when another GPU does not come; 0: none */
    const volatile uint32_t *abort_flag;  /* memory of the host: all waits end when it is set; or NULL */
    volatile unsigned char *mark;   /* the host's: 1 when the exchange is over; or NULL */
};
/* Only in builds with CUDA, both. p2p_schedule_load: once for each GPU, which is the current one, and number of ranks, before the first exchange: a
 * kernel that is loaded while another GPU's already waits for it might not be. */
status p2p_schedule_load(int ranks) WARN_UNUSED;
status p2p_schedule_launch(const struct p2p_schedule_args *a, struct stream *s) WARN_UNUSED;
#endif
