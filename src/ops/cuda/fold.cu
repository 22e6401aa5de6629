// Adds partial sums; converts weights from and to split halves.
#include "ops/cuda/device.cuh"
extern "C" {
#include "ops/rounding.h"
}

namespace {

enum { THREADS = 256 };

// At the start of a run, and after each step for the few rows that are read in F32.
__global__ void __launch_bounds__(THREADS) halves_kernel(const halves_args a)
{
    const int64_t stride = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.count; i += stride) {
        if (a.way == HALVES_JOIN) {
            a.x[i] = __uint_as_float(rounding_joined(a.upper[i], a.low ? a.low[i] : 0));
            continue;
        }
        const struct half_pair h = rounding_halves(__float_as_uint(a.x[i]));
        a.upper[i] = h.upper;
        if (a.low) a.low[i] = h.low;
    }
}

status halves(const struct halves_args *a, dev_stream s)
{
    if (a->count == 0) return STATUS_OK;
    const int64_t blocks = (a->count + THREADS - 1) / THREADS, most = cuda_set(s)->multiprocessors * 8;
    halves_kernel<<<(unsigned)(blocks < most ? blocks : most), THREADS, 0, queue_of(s)>>>(*a);
    return cuda_set_launched(s, "halves");
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

status fold(const struct fold_args *a, dev_stream s)
{
    if (a->count == 0) return STATUS_OK;
    const int64_t blocks = (a->count + THREADS - 1) / THREADS, most = cuda_set(s)->multiprocessors * 8;
    const unsigned grid = (unsigned)(blocks < most ? blocks : most);
    if (a->dt == DTYPE_F32)
        fold_kernel<<<grid, THREADS, 0, queue_of(s)>>>((float *)a->x, (float *)a->kept, a->count, a->what == FOLD_KEEP);
    else
        fold_kernel<<<grid, THREADS, 0, queue_of(s)>>>((double *)a->x, (double *)a->kept, a->count,
                                                       a->what == FOLD_KEEP);
    return cuda_set_launched(s, "fold");
}

} // namespace

extern "C" void cuda_fold_slots(struct ops *o)
{
    o->halves = halves;
    o->fold = fold;
}
