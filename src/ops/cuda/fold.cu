// Adds partial sums; converts weights from and to split halves.
#include "ops/cuda/device.cuh"
extern "C" {
#include "ops/rounding.h"
}

namespace {

enum { THREADS = 256 };

// At the start of a run, and after each step for the few rows that are read in F32.
__global__ void __launch_bounds__(THREADS) halves_kernel(const split_master_args a)
{
    const int64_t stride = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.count; i += stride) {
        if (a.way == MASTER_JOIN) {
            a.x[i] = __uint_as_float(rounding_joined(a.upper[i], a.master_residual ? a.master_residual[i] : 0));
            continue;
        }
        const struct half_pair h = rounding_halves(__float_as_uint(a.x[i]));
        a.upper[i] = h.upper;
        if (a.master_residual) a.master_residual[i] = h.low;
    }
}

status split_master(const struct split_master_args *a, dev_stream s)
{
    if (a->count == 0) return STATUS_OK;
    const int64_t blocks = (a->count + THREADS - 1) / THREADS, most = cuda_set(s)->multiprocessors * 8;
    halves_kernel<<<(unsigned)(blocks < most ? blocks : most), THREADS, 0, queue_of(s)>>>(*a);
    return cuda_set_launched(s, "split_master");
}

template <typename T> __global__ void __launch_bounds__(THREADS) fold_kernel(T *x, T *kept, int64_t count, bool keep)
{
    const int64_t stride = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += stride) {
        const T v = x[i];
        if (keep) kept[i] = v;
        x[i] = keep ? T(0) : v + kept[i];
    }
}

status accumulate_tree(const struct accumulate_tree_args *a, dev_stream s)
{
    if (a->count == 0) return STATUS_OK;
    const int64_t blocks = (a->count + THREADS - 1) / THREADS, most = cuda_set(s)->multiprocessors * 8;
    const unsigned grid = (unsigned)(blocks < most ? blocks : most);
    if (a->dt == DTYPE_F32)
        fold_kernel<<<grid, THREADS, 0, queue_of(s)>>>((float *)a->x, (float *)a->kept, a->count, a->what == TREE_KEEP);
    else
        fold_kernel<<<grid, THREADS, 0, queue_of(s)>>>((double *)a->x, (double *)a->kept, a->count,
                                                       a->what == TREE_KEEP);
    return cuda_set_launched(s, "accumulate_tree");
}

} // namespace

extern "C" void cuda_fold_slots(struct ops *o)
{
    o->split_master = split_master;
    o->accumulate_tree = accumulate_tree;
}
