/* paths: by which way a collective between GPUs of one host goes. All ways have the same result, bit for bit; which one is the fastest
 * depends on the GPUs, on the links and on the size, so it is timed when a run begins (tuner_measure.c), and chosen here.
 *
 *   engines    copy engines, between meetings (comm/gpu/cuda/p2p.h): no multiprocessor is taken from what runs beside
 *   little     own kernels (p2p_schedule.h), whose data bring their flags along
 *   own N      own kernels in up to N blocks, all others at once
 *
 * A table holds times of a communicator, those of its slowest rank, so that all ranks choose alike. */
#ifndef INGOT_COMM_GPU_TUNER_H
#define INGOT_COMM_GPU_TUNER_H
#include "tensor/dtype.h"
#include <stdbool.h>
#include <stddef.h>

#define PATHS(X) X(ENGINES, "engines", 0) X(LITTLE, "little", 0) X(OWN_16, "own 16", 16) X(OWN_32, "own 32", 32) X(OWN_64, "own 64", 64)
enum path {
#define X(name, text, blocks) PATH_##name,
    PATHS(X)
#undef X
    PATH_COUNT
};
enum { PATHS_ALL = (1 << PATH_COUNT) - 1 };
int paths_blocks(enum path p);   /* 0: not a number of blocks */

#define PATHS_OPS(X)                                                                                                   \
    X(ALL_TO_ALL, "all-to-all") X(ALL_GATHER, "all-gather") X(REDUCE_SCATTER, "reduce-scatter")                        \
    X(REDUCE_SCATTER_BF16, "reduce-scatter of bf16") X(ALL_REDUCE, "all-reduce")
enum paths_op {
#define X(name, text) PATHS_##name,
    PATHS_OPS(X)
#undef X
    PATHS_OP_COUNT
};
enum { PATHS_SIZES = 10, PATHS_BYTES_MIN = 1 << 10, PATHS_BYTES_MAX = 256 << 20 };  /* 1 KiB, 4 KiB, ... 256 MiB */
struct paths {
    bool timed;
    double us[PATHS_OP_COUNT][PATHS_SIZES][PATH_COUNT]; /* 0: does not serve, or is another one's twin there */
};

/* Bytes of all chunks together: what each rank has in the end of a gather, and in the beginning of the others. */
size_t paths_bytes(int size);
/* The fastest of `allowed` (a bit for each path, at least one) at the nearest size that was timed. What was not timed comes last, in the order
 * of the paths. */
enum path paths_choose(const struct paths *t, enum paths_op op, size_t bytes, unsigned allowed);
/* Each time becomes the longer one. */
void paths_slowest(struct paths *t, const struct paths *other);
/* "all-gather: little to 64 KiB, own 16 to 1 MiB, engines; ...", for people: the choice among all paths. */
enum { PATHS_TEXT = 2048 };
void paths_text(const struct paths *t, char text[PATHS_TEXT]);
#endif
