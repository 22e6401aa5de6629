// Elementwise ops between the GEMMs of Muon: contiguous streams. Bound: memory bandwidth; small compared with the
// GEMMs.
#include "ops/cuda/device.cuh"
extern "C" {
#include "ops/rounding.h"
}

namespace {

enum { THREADS = 256, EACH = 8, SUMS_MAX = 1024 };

// Sums of squares of equal parts of g, one per block, in f64. The order is a function of the launch's shape, which
// is one of count.
template <typename G>
__global__ void __launch_bounds__(THREADS) ortho_squares_kernel(const G *g, int64_t count, double *sums)
{
    __shared__ double line[WARP];
    double sum = 0;
    for (int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x; i < count; i += int64_t(gridDim.x) * THREADS)
        sum += double(g[i]) * double(g[i]);
    sum = block_sum(sum, line);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    ortho_unit_kernel(const float *g, T *x, int64_t count, double eps, const double *sums, int sum_count)
{
    __shared__ double line[WARP];
    double squares = 0;
    for (int k = threadIdx.x; k < sum_count; k += THREADS) squares += sums[k];
    const float factor = float(1 / (sqrt(block_sum(squares, line)) + eps));
    const int64_t begin = int64_t(blockIdx.x) * THREADS * EACH + threadIdx.x;
#pragma unroll
    for (int u = 0; u < EACH; u++) {
        const int64_t i = begin + u * THREADS;
        if (i < count) x[i] = from_f32<T>(g[i] * factor);
    }
}

status muon_normalize(const struct muon_normalize_args *a, dev_stream s)
{
    if (a->count == 0) return STATUS_OK;
    const int64_t tile = THREADS * EACH, tiles = (a->count + tile - 1) / tile;
    const int sum_count = tiles < SUMS_MAX ? int(tiles) : int(SUMS_MAX);
    double *sums = static_cast<double *>(cuda_set_workspace(s, size_t(sum_count) * sizeof *sums, "muon_normalize"));
    const float *g = static_cast<const float *>(a->g);
    ortho_squares_kernel<<<unsigned(sum_count), THREADS, 0, queue_of(s)>>>(g, a->count, sums);
    BY_DTYPE(a->dt, (ortho_unit_kernel<T><<<unsigned(tiles), THREADS, 0, queue_of(s)>>>(
                        g, static_cast<T *>(a->x), a->count, a->eps, sums, sum_count)));
    return cuda_set_launched(s, "muon_normalize");
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    ortho_poly_kernel(const T *x, const T *xx, T *y, int64_t n, float a, float b, float c)
{
    const int64_t begin = int64_t(blockIdx.x) * THREADS * EACH + threadIdx.x;
#pragma unroll
    for (int u = 0; u < EACH; u++) {
        const int64_t i = begin + u * THREADS;
        if (i < n * n) y[i] = from_f32<T>(b * to_f32(x[i]) + c * to_f32(xx[i]) + (i / n == i % n ? a : 0.f));
    }
}

status newton_schulz_poly(const struct newton_schulz_poly_args *a, dev_stream s)
{
    const int64_t tile = THREADS * EACH, tiles = (a->n * a->n + tile - 1) / tile;
    if (tiles == 0) return STATUS_OK;
    BY_DTYPE(a->dt, (ortho_poly_kernel<T><<<unsigned(tiles), THREADS, 0, queue_of(s)>>>(
                        static_cast<const T *>(a->x), static_cast<const T *>(a->xx), static_cast<T *>(a->y), a->n,
                        float(a->a), float(a->b), float(a->c))));
    return cuda_set_launched(s, "newton_schulz_poly");
}

template <typename T> __global__ void __launch_bounds__(THREADS) ortho_step_kernel(const muon_apply_args a)
{
    if (a.scalars->clip_factor == 0) return;
    const float decay = float(a.scalars->lr * a.weight_decay), step = float(a.scalars->lr * a.scale);
    const T *x = static_cast<const T *>(a.x);
    const int64_t begin = int64_t(blockIdx.x) * THREADS * EACH + threadIdx.x;
#pragma unroll
    for (int u = 0; u < EACH; u++) {
        const int64_t i = begin + u * THREADS;
        if (i >= a.count) continue;
        const float old = a.master_residual ? __uint_as_float(rounding_joined(a.w[i], a.master_residual[i])) : a.p[i];
        const float p = old - (old * decay + to_f32(x[i]) * step);
        const half_pair h = rounding_halves(__float_as_uint(p));
        if (a.master_residual)
            a.master_residual[i] = h.low;
        else
            a.p[i] = p;
        if (a.w) a.w[i] = h.upper;
    }
}

status muon_apply(const struct muon_apply_args *a, dev_stream s)
{
    CHECK(a->p || a->master_residual, "a step of weights without a master");
    const int64_t tile = THREADS * EACH, tiles = (a->count + tile - 1) / tile;
    if (tiles == 0) return STATUS_OK;
    BY_DTYPE(a->dt, (ortho_step_kernel<T><<<unsigned(tiles), THREADS, 0, queue_of(s)>>>(*a)));
    return cuda_set_launched(s, "muon_apply");
}

} // namespace

extern "C" void cuda_muon_slots(struct ops *o)
{
    o->muon_normalize = muon_normalize;
    o->newton_schulz_poly = newton_schulz_poly;
    o->muon_apply = muon_apply;
}
