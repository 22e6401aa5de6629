/* peer: exchanges between the GPUs of one host by kernels that read each other's memory, without NCCL and without the host.
 *
 * Each of R ranks is a GPU with three buffers in chunks of `count` floats, which the others can read (peer access inside a process, IPC
 * handles between processes): IN, OUT, and WORK, of peer_schedule.work chunks. R: 1 to PEER_RANKS_MAX.
 *
 *   op              IN       OUT      result
 *   all_to_all      [R]      [R]      OUT[p] = rank p's IN[me]
 *   all_gather      [1]      [R]      OUT[p] = rank p's IN[0];                     IN may be OUT[me]
 *   reduce_scatter  [R]      [1]      OUT[0] = sum over p of rank p's IN[me];      OUT may be IN[me]
 *   all_reduce      [R]      [R]      OUT[c] = sum over p of rank p's IN[c];       OUT may be IN, but for PEER_ONCE
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
 *              them. One way through the link and no wait at the end; PEER_LITTLE_FLOATS of a chunk at most (an all-reduce: of all chunks),
 *              an even number of them.
 *
 * A schedule is data: steps of moves, the same for every size, checked by walking through all ranks' lists (tests/comm/test_peer.c). A
 * kernel carries it out: block b of each rank has part b of every chunk, and deals with the blocks b of the others alone, through flags in
 * their memory. Nothing is allocated and no argument changes from call to call, so a captured exchange can be replayed. */
#ifndef INGOT_COMM_GPU_P2P_SCHEDULE_H
#define INGOT_COMM_GPU_P2P_SCHEDULE_H
#include "base/status.h"
#include "tensor/dtype.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PEER_RANKS_MAX = 8, PEER_BLOCKS_MAX = 256, PEER_STEPS_MAX = 2 * PEER_RANKS_MAX, PEER_MOVES_MAX = 4 * PEER_RANKS_MAX };
enum { PEER_LITTLE_BLOCKS = 32, PEER_LITTLE_THREADS = 512, PEER_LITTLE_FLOATS = 2 * PEER_LITTLE_BLOCKS * PEER_LITTLE_THREADS };
enum { PEER_PART_FLOATS = 2048 };   /* of a chunk, or more, are worth a block */
enum { PEER_ALIGN = 16, PEER_LITTLE_ALIGN = 8 };    /* of buffers and of chunks, bytes */

#define PEER_OPS(X) X(ALL_TO_ALL, all_to_all) X(ALL_GATHER, all_gather) X(REDUCE_SCATTER, reduce_scatter) X(ALL_REDUCE, all_reduce)
enum peer_op {
#define X(name, text) PEER_##name,
    PEER_OPS(X)
#undef X
    PEER_OP_COUNT
};
#define PEER_WAYS(X) X(DIRECT, direct) X(RING, ring) X(HYPERCUBE, hypercube) X(ONCE, once) X(LITTLE, little)
enum peer_way {
#define X(name, text) PEER_##name,
    PEER_WAYS(X)
#undef X
    PEER_WAY_COUNT
};
const char *peer_op_text(enum peer_op op);
const char *peer_way_text(enum peer_way way);

/* to = from, from + plus, or the sum of `from` over all ranks. `to` and `plus` are this rank's own, but for PEER_PUT, whose `from` is. */
enum peer_buffer { PEER_IN, PEER_OUT, PEER_WORK };
enum peer_kind { PEER_COPY, PEER_PUT, PEER_ADD, PEER_TREE };
struct peer_place {
    uint8_t buffer, chunk;
};
struct peer_move {
    uint8_t kind;
    uint8_t rank;               /* whose memory `from` lies in; of PEER_PUT: `to`; of PEER_TREE: all ranks' */
    struct peer_place from, plus, to;
};
/* Moves begin .. end - 1, after the ranks of `wait` have come to this step, too; the ranks of `tell` wait for this one. Bits by rank. */
struct peer_step {
    uint8_t begin, end;
    uint8_t wait, tell;
};
struct peer_schedule {
    uint8_t op, rank, ranks;
    uint8_t little;             /* no steps */
    uint8_t any_order;          /* no move of a step needs another one's result: blocks begin at different ones */
    uint8_t step_count, move_count;
    uint8_t in, out, work;      /* chunks of the buffers */
    struct peer_step steps[PEER_STEPS_MAX];
    struct peer_move moves[PEER_MOVES_MAX];
};
/* Has a way this op, among so many ranks, for chunks of so many floats (what else is exchanged counts as floats of its bytes)? */
bool peer_way_serves(enum peer_way way, enum peer_op op, int ranks, int64_t count);
/* What `rank` does. STATUS_CONFIG: too many ranks; a hypercube of a number that is no power of two; `once` for another op. */
status peer_schedule_fill(struct peer_schedule *s, enum peer_op op, enum peer_way way, int rank, int ranks) WARN_UNUSED;

/* Flags of one rank of one group, in its GPU's memory, all zero before the group's first exchange. The others write `told` [rank][block]. */
struct peer_flags {
    uint32_t boxes[2][PEER_RANKS_MAX][PEER_LITTLE_BLOCKS][PEER_LITTLE_THREADS][4]; /* by turns; two floats, each with its exchange's number;
                                                                                    * first, as packets are aligned to 16 bytes */
    uint32_t told[PEER_RANKS_MAX][PEER_BLOCKS_MAX];
    uint32_t base[PEER_BLOCKS_MAX];  /* steps that this rank's blocks have made so far: the same on all ranks */
    uint32_t littles[PEER_LITTLE_BLOCKS];
    uint32_t lost;      /* 1 + the rank that did not come in time, or 0. Then results are undefined, and the flags of all ranks are to be zeroed */
    uint32_t unused[3]; /* of an array of them, all are aligned */
};

struct stream;
/* Every rank queues the same exchanges in the same order with the same count and blocks; what they read lies there when all have come to
 * them in their streams, and may be overwritten behind them. Pointers are addresses on the GPU of `s`, which is the current one. */
struct peer_exchange_args {
    const struct peer_schedule *schedule;
    const float *in[PEER_RANKS_MAX], *work[PEER_RANKS_MAX];    /* of each rank; this rank's work is written */
    float *out[PEER_RANKS_MAX];
    struct peer_flags *flags[PEER_RANKS_MAX];
    int64_t count;      /* floats of a chunk, or its bytes over 4; a multiple of 4, of 2 where it is little */
    dtype dt;           /* of what is summed: F32, BF16 or F64 */
    int blocks;         /* at most; all must run at once: no more than the GPU has multiprocessors */
    double deadline_s;  /* of a wait inside the kernel, so that it ends when another GPU does not come; 0: none */
    const volatile uint32_t *gone;  /* memory of the host: all waits end when it is set; or NULL */
    volatile unsigned char *mark;   /* the host's: 1 when the exchange is over; or NULL */
};
/* Only in builds with CUDA, both. peer_load: once for each GPU, which is the current one, and number of ranks, before the first exchange: a
 * kernel that is loaded while another GPU's already waits for it might not be. */
status peer_load(int ranks) WARN_UNUSED;
status peer_exchange(const struct peer_exchange_args *a, struct stream *s) WARN_UNUSED;
#endif
