/* Kernels of the link and collective benchmarks: random data and their check, copies by loads and stores, and a flag
 * ping-pong. All of them queue and return; the current device must be that of the stream. */
#ifndef INGOT_BENCH_CUDA_P2P_KERNELS_H
#define INGOT_BENCH_CUDA_P2P_KERNELS_H
#include "dev/dev.h"

/* Element i of the data of rank r. REAL: uniform in [-1, 1); sums depend on their order. WHOLE: integers of magnitude
 * below 2^11; sums over up to 4096 ranks are exact in F32 in any order. */
enum p2p_numbers { P2P_REAL, P2P_WHOLE };
status p2p_fill(float *x, int64_t count, int rank, enum p2p_numbers numbers, struct stream *s) WARN_UNUSED;

/* Expected contents of x [count]. A share has `part` elements. */
enum p2p_result {
    P2P_COPIED,     /* the data of rank `from` */
    P2P_EXCHANGED,  /* share p: share `rank` of the data of rank p */
    P2P_GATHERED,   /* share p: the data of rank p */
    P2P_SCATTERED,  /* share `rank` of the sum over all ranks */
    P2P_SUMMED      /* the sum over all ranks; REAL numbers in the order of comm.h, at most eight ranks */
};
struct p2p_wrong {          /* on the device */
    unsigned long long count, first_inverse; /* number of wrong elements; ~ of the lowest index; 0: none */
};
struct p2p_check_args {
    const float *x;
    int64_t count, part;
    enum p2p_result result;
    enum p2p_numbers numbers;
    int rank, ranks, from;
    struct p2p_wrong *wrong; /* the counts are added to it */
};
status p2p_check(const struct p2p_check_args *a, struct stream *s) WARN_UNUSED;

/* Copies to [count] = from with `blocks` thread blocks; count is a multiple of 4. One of the two may be on another
 * GPU. */
status p2p_move(float *to, const float *from, int64_t count, int blocks, struct stream *s) WARN_UNUSED;

/* Flag ping-pong between two GPUs, one call on each: `rounds` times a flag is sent to the other GPU and one is sent
 * back. `mine` is on the stream's GPU, `theirs` on the other; both are 0 before. *ns: nanoseconds of all rounds, 0
 * when the other GPU did not answer within a second. */
struct p2p_ping_args {
    uint32_t *mine, *theirs;
    unsigned long long *ns;
    int rounds;
    int serves;         /* 1: this side sends first */
};
status p2p_ping(const struct p2p_ping_args *a, struct stream *s) WARN_UNUSED;

/* Loads the kernels on the current GPU, because no kernel can be loaded while a kernel on another GPU waits. */
status p2p_load(void) WARN_UNUSED;
#endif
