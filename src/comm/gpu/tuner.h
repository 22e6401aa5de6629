/* tuner: which algorithm a collective between GPUs of one host uses. All algorithms give the same bits. The fastest
 * depends on GPUs, links and size, so each is timed when a run begins (comm/gpu/cuda/p2p_time.c), and chosen here, as
 * NCCL's tuner does.
 *
 *   copy engine   peer copies between barriers of one block (comm/gpu/cuda/p2p_comm.h): no SM is taken from what overlaps
 *   ll            low-latency protocol: kernels whose data carry their flags (p2p_schedule.h); for the smallest messages
 *   kernel N      kernels in up to N blocks that read peer memory
 *
 * A table holds the times of one communicator, those of its slowest rank, so all ranks choose alike. */
#ifndef INGOT_COMM_GPU_TUNER_H
#define INGOT_COMM_GPU_TUNER_H
#include "tensor/dtype.h"
#include <stdbool.h>
#include <stddef.h>

#define TUNER_ALGOS(X) X(COPY_ENGINE, "copy engine", 0) X(LL, "ll", 0) X(KERNEL_16, "kernel 16", 16) X(KERNEL_32, "kernel 32", 32) X(KERNEL_64, "kernel 64", 64)
enum tuner_algo {
#define X(name, text, blocks) TUNER_##name,
    TUNER_ALGOS(X)
#undef X
    TUNER_ALGO_COUNT
};
enum { TUNER_ALL = (1 << TUNER_ALGO_COUNT) - 1 };
int tuner_blocks(enum tuner_algo p);   /* 0: the algorithm uses no kernel blocks */

#define TUNER_OPS(X)                                                                                                   \
    X(ALL_TO_ALL, "all-to-all") X(ALL_GATHER, "all-gather") X(REDUCE_SCATTER, "reduce-scatter")                        \
    X(REDUCE_SCATTER_BF16, "reduce-scatter of bf16") X(ALL_REDUCE, "all-reduce")
enum tuner_op {
#define X(name, text) TUNER_##name,
    TUNER_OPS(X)
#undef X
    TUNER_OP_COUNT
};
enum { TUNER_SIZES = 10, TUNER_BYTES_MIN = 1 << 10, TUNER_BYTES_MAX = 256 << 20 };  /* 1 KiB, 4 KiB, ... 256 MiB */
struct tuner {
    bool timed;
    double us[TUNER_OP_COUNT][TUNER_SIZES][TUNER_ALGO_COUNT]; /* 0: not supported, or identical to another algorithm there */
};

/* Bytes of all chunks together: the result of a gather, the input of the others. */
size_t tuner_bytes(int size);
/* The fastest of the `allowed` algorithms (a bit each, at least one) at the nearest timed size. Algorithms without
 * times come last, in order. */
enum tuner_algo tuner_choose(const struct tuner *t, enum tuner_op op, size_t bytes, unsigned allowed);
/* Replaces each time of t by the other's, if that is longer. */
void tuner_slowest(struct tuner *t, const struct tuner *other);
/* "all-gather: ll to 64 KiB, kernel 16 to 1 MiB, copy engine; ...", for the log: the choice among all
 * algorithms. */
enum { TUNER_TEXT = 2048 };
void tuner_text(const struct tuner *t, char text[TUNER_TEXT]);
#endif
