/* Kernels of the benchmarks of links and collectives: random data and their check, copies by loads and stores, flags to and fro. All of
 * them queue and return; the current device is that of the stream. */
#ifndef INGOT_BENCH_CUDA_P2P_KERNELS_H
#define INGOT_BENCH_CUDA_P2P_KERNELS_H
#include "dev/dev.h"

/* Element i of rank r's data. REAL: uniform in [-1, 1), so that sums depend on their order; WHOLE: integers below 2^11 in size, whose sums
 * over up to 4096 ranks are exact in F32 in any order. */
enum p2p_numbers { P2P_REAL, P2P_WHOLE };
status p2p_fill(float *x, int64_t count, int rank, enum p2p_numbers numbers, struct stream *s) WARN_UNUSED;

/* What x [count] must be. `part`: elements of a rank's share. */
enum p2p_result {
    P2P_COPIED,     /* rank `from`'s data */
    P2P_EXCHANGED,  /* share p: of rank p's data, share `rank` */
    P2P_GATHERED,   /* share p: rank p's data */
    P2P_SCATTERED,  /* share `rank` of the sum over all ranks */
    P2P_SUMMED      /* the sum over all ranks: of REAL numbers in comm.h's order, at most eight ranks */
};
struct p2p_wrong {          /* on the device */
    unsigned long long count, first_inverse; /* elements; ~ the lowest index; 0: none */
};
struct p2p_check_args {
    const float *x;
    int64_t count, part;
    enum p2p_result result;
    enum p2p_numbers numbers;
    int rank, ranks, from;
    struct p2p_wrong *wrong; /* added to */
};
status p2p_check(const struct p2p_check_args *a, struct stream *s) WARN_UNUSED;

/* to [count] = from by `blocks` blocks; count a multiple of 4. One of the two may lie on another GPU. */
status p2p_move(float *to, const float *from, int64_t count, int blocks, struct stream *s) WARN_UNUSED;

/* Two GPUs, one call each: `rounds` times a flag goes to the other GPU and one comes back. `mine` lies on the stream's GPU, `theirs` on
 * the other; both are 0 before. *ns: nanoseconds of all rounds, 0 when the other did not answer within a second. */
struct p2p_ping_args {
    uint32_t *mine, *theirs;
    unsigned long long *ns;
    int rounds;
    int serves;         /* 1: begins */
};
status p2p_ping(const struct p2p_ping_args *a, struct stream *s) WARN_UNUSED;

/* The current GPU's kernels are loaded: none is while another GPU's waits. */
status p2p_load(void) WARN_UNUSED;
#endif
