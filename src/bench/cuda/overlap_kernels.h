/* Kernels of bench overlap: the stand-in for a ring all-reduce, time stamps, numbers and their comparison. All of them
 * queue and return. */
#ifndef INGOT_BENCH_CUDA_OVERLAP_KERNELS_H
#define INGOT_BENCH_CUDA_OVERLAP_KERNELS_H
#include "dev/dev.h"
#include "tensor/dtype.h"

/* One half of a ring all-reduce as a GPU's memory sees it, by `blocks` thread blocks. Reduce-scatter: out = own + in,
 * what has come in is added to what is here. All-gather: out = own, in is NULL. It lasts `ns` at least: blocks wait for
 * links of that rate, as those of NCCL do. */
struct overlap_traffic {
    float *out;
    const float *own, *in;
    int64_t count; /* a multiple of 4 */
    double ns;     /* 0: as fast as the memory */
    int blocks;
};
status overlap_move(const struct overlap_traffic *t, struct stream *s) WARN_UNUSED;
/* Writes the GPU's clock, in ns. */
status overlap_stamp(unsigned long long *ns, struct stream *s) WARN_UNUSED;
/* Numbers of mean 0 and variance 1, BF16. */
status overlap_numbers(void *bf16, int64_t count, struct stream *s) WARN_UNUSED;
/* Adds to *wrong the number of elements with |a - b| > relative |a| + absolute; 0 and 0: equal but for the sign of
 * zero. NaN is wrong. */
struct overlap_pair {
    const void *a, *b;
    dtype dt; /* BF16 or F32 */
    int64_t count;
    float relative, absolute;
    unsigned long long *wrong;
};
status overlap_compare(const struct overlap_pair *p, struct stream *s) WARN_UNUSED;
#endif
