// Sums over ranks on a GPU: the slices of all ranks are consecutive, and each element is added in the tree order of
// comm_all_reduce: even ranks plus odd ranks, recursively. F32 and F64 as they are; BF16 in F32, rounded once.
#include "comm/gpu/cuda/addend.cuh"
#include <cuda_runtime.h>
extern "C" {
#include "comm/gpu/cuda/device_comm_cuda.h"
}

namespace {

enum { THREADS = 256, BLOCKS_PER_SM = 8, WIDE_BYTES = 16 };

template <typename T> struct terms {
    const T *x, *own;
    int64_t count;
    int rank;
};

template <typename T, int N> struct alignas(sizeof(T) * N) line { T v[N]; };

// N neighbouring elements of rank `from`.
template <typename T, int N>
__device__ inline line<T, N> load(const terms<T> &t, int from, int64_t at)
{
    const T *x = from == t.rank ? t.own : t.x + from * t.count;
    return *reinterpret_cast<const line<T, N> *>(x + at);
}

template <typename T, int N, int RANKS> struct tree { // of ranks FIRST, FIRST + STEP, ...: at compile time
    template <int FIRST, int STEP>
    static __device__ inline void add(const terms<T> &t, int64_t at, typename addend<T>::type (&sum)[N])
    {
        if constexpr (RANKS == 1) {
            const line<T, N> x = load<T, N>(t, FIRST, at);
#pragma unroll
            for (int i = 0; i < N; i++) sum[i] = addend_of(x.v[i]);
        } else {
            typename addend<T>::type odd[N];
            tree<T, N, (RANKS + 1) / 2>::template add<FIRST, 2 * STEP>(t, at, sum);
            tree<T, N, RANKS / 2>::template add<FIRST + STEP, 2 * STEP>(t, at, odd);
#pragma unroll
            for (int i = 0; i < N; i++) sum[i] += odd[i];
        }
    }
};

// Any number of ranks.
template <typename T, int N>
__device__ void add_any(const terms<T> &t, int64_t at, int first, int step, int ranks, typename addend<T>::type (&sum)[N])
{
    if (ranks == 1) {
        const line<T, N> x = load<T, N>(t, first, at);
        for (int i = 0; i < N; i++) sum[i] = addend_of(x.v[i]);
        return;
    }
    typename addend<T>::type odd[N];
    add_any<T, N>(t, at, first, 2 * step, (ranks + 1) / 2, sum);
    add_any<T, N>(t, at, first + step, 2 * step, ranks / 2, odd);
    for (int i = 0; i < N; i++) sum[i] += odd[i];
}

template <typename T, int N, int RANKS> // RANKS 0: `ranks`
__global__ void __launch_bounds__(THREADS) sum_kernel(const terms<T> t, T *out, int ranks)
{
    const int64_t lines = t.count / N, apart = int64_t(gridDim.x) * THREADS;
    for (int64_t k = int64_t(blockIdx.x) * THREADS + threadIdx.x; k < lines; k += apart) {
        typename addend<T>::type sum[N];
        if constexpr (RANKS > 0)
            tree<T, N, RANKS>::template add<0, 1>(t, k * N, sum);
        else
            add_any<T, N>(t, k * N, 0, 1, ranks, sum);
        line<T, N> y;
#pragma unroll
        for (int i = 0; i < N; i++) addend_round(sum[i], &y.v[i]);
        *reinterpret_cast<line<T, N> *>(out + k * N) = y;
    }
}

__global__ void mark_kernel(volatile unsigned char *mark)
{
    __threadfence_system();
    *mark = 1;
}

status launched(const char *what)
{
    const cudaError_t err = cudaGetLastError();
    if (err == cudaSuccess) return STATUS_OK;
    return FAIL(STATUS_DEVICE, "%s: %s (%s)", what, cudaGetErrorString(err), cudaGetErrorName(err));
}

template <typename T, int N> void launch(const device_sum *a, struct stream *s)
{
    const int64_t blocks = (a->count / N + THREADS - 1) / THREADS, most = int64_t(s->dev->multiprocessors) * BLOCKS_PER_SM;
    const unsigned grid = unsigned(blocks < most ? blocks : most);
    const terms<T> t = {static_cast<const T *>(a->x), static_cast<const T *>(a->own), a->count, a->rank};
    T *out = static_cast<T *>(a->out);
    const auto queue = static_cast<cudaStream_t>(s->queue);
    switch (a->ranks) {
    case 2: sum_kernel<T, N, 2><<<grid, THREADS, 0, queue>>>(t, out, 2); break;
    case 4: sum_kernel<T, N, 4><<<grid, THREADS, 0, queue>>>(t, out, 4); break;
    case 8: sum_kernel<T, N, 8><<<grid, THREADS, 0, queue>>>(t, out, 8); break;
    default: sum_kernel<T, N, 0><<<grid, THREADS, 0, queue>>>(t, out, a->ranks);
    }
}

template <typename T> void launch_wide(const device_sum *a, struct stream *s)
{
    constexpr int N = WIDE_BYTES / sizeof(T);
    const bool wide = a->count % N == 0 && (reinterpret_cast<size_t>(a->x) | reinterpret_cast<size_t>(a->own) | reinterpret_cast<size_t>(a->out)) % WIDE_BYTES == 0;
    wide ? launch<T, N>(a, s) : launch<T, 1>(a, s);
}

} // namespace

extern "C" status device_tree_sum(const struct device_sum *a, struct stream *s)
{
    if (a->count == 0) return STATUS_OK;
    switch (a->dt) {
    case DTYPE_F32: launch_wide<float>(a, s); break;
    case DTYPE_F64: launch_wide<double>(a, s); break;
    case DTYPE_BF16: launch_wide<__nv_bfloat16>(a, s); break;
    default: CHECK(false, "ranks do not add up %s", dtype_name(a->dt));
    }
    return launched("sum over ranks");
}

extern "C" status device_set_flag(volatile unsigned char *mark, struct stream *s)
{
    mark_kernel<<<1, 1, 0, static_cast<cudaStream_t>(s->queue)>>>(mark);
    return launched("mark");
}
