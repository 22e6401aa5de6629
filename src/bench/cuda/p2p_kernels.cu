extern "C" {
#include "bench/cuda/p2p_kernels.h"
#include "dev/cuda/cuda_int.h"
}
#include "base/rng.h"
#include <cuda_runtime.h>

namespace {

enum { THREADS = 512, EACH = 4, RANKS_MAX = 8, SEED = 11 };

__device__ inline float number(int rank, int64_t i, p2p_numbers numbers)
{
    const uint32_t bits = rng_at(SEED, RNG_TEST, uint64_t(rank), uint64_t(i)).u[0];
    if (numbers == P2P_WHOLE) return float(int(bits >> 20) - 2048);
    return float(bits >> 8) * 0x1p-23f - 1;
}

// In comm.h's order: even ranks plus odd ranks, recursively; for integers any order is right.
__device__ inline float total(int ranks, int64_t i, p2p_numbers numbers)
{
    float x[RANKS_MAX];
    if (ranks > RANKS_MAX || numbers == P2P_WHOLE) {
        float sum = 0;
        for (int r = 0; r < ranks; r++) sum += number(r, i, numbers);
        return sum;
    }
#pragma unroll
    for (int r = 0; r < RANKS_MAX; r++) x[r] = r < ranks ? number(r, i, numbers) : 0;
#pragma unroll
    for (int apart = RANKS_MAX / 2; apart > 0; apart /= 2)
#pragma unroll
        for (int r = 0; r < apart; r++)
            if (r + apart < ranks) x[r] += x[r + apart];
    return x[0];
}

__global__ void __launch_bounds__(THREADS) fill_kernel(float *x, int64_t count, int rank, p2p_numbers numbers)
{
    const int64_t step = int64_t(gridDim.x) * THREADS;
    for (int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x; i < count; i += step) x[i] = number(rank, i, numbers);
}

__device__ inline float wanted(const p2p_check_args &a, int64_t i)
{
    switch (a.result) {
    case P2P_COPIED: return number(a.from, i, a.numbers);
    case P2P_EXCHANGED: return number(int(i / a.part), a.rank * a.part + i % a.part, a.numbers);
    case P2P_GATHERED: return number(int(i / a.part), i % a.part, a.numbers);
    case P2P_SCATTERED: return total(a.ranks, a.rank * a.part + i, a.numbers);
    default: return total(a.ranks, i, a.numbers);
    }
}

__global__ void __launch_bounds__(THREADS) check_kernel(const p2p_check_args a)
{
    const int64_t step = int64_t(gridDim.x) * THREADS;
    for (int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x; i < a.count; i += step)
        if (__float_as_uint(a.x[i]) != __float_as_uint(wanted(a, i))) {
            atomicAdd(&a.wrong->count, 1ull);
            atomicMax(&a.wrong->first_inverse, ~static_cast<unsigned long long>(i));
        }
}

__global__ void __launch_bounds__(THREADS) move_kernel(float4 *to, const float4 *from, int64_t count)
{
    const int64_t step = int64_t(gridDim.x) * THREADS;
    int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    for (; i + (EACH - 1) * step < count; i += EACH * step) {
        float4 x[EACH];
#pragma unroll
        for (int u = 0; u < EACH; u++) x[u] = __ldcg(from + i + u * step);
#pragma unroll
        for (int u = 0; u < EACH; u++) to[i + u * step] = x[u];
    }
    for (; i < count; i += step) to[i] = __ldcg(from + i);
}

__device__ inline unsigned long long time_ns()
{
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

__global__ void ping_kernel(const p2p_ping_args a)
{
    const unsigned long long begin = time_ns();
    for (uint32_t k = 1; k <= uint32_t(a.rounds); k++) {
        uint32_t seen = 0;
        if (a.serves) asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(a.theirs), "r"(k) : "memory");
        for (unsigned look = 1; seen != k; look++) {
            asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(a.mine) : "memory");
            if (look % 1024 == 0 && time_ns() - begin > 1000000000ull) {
                *a.ns = 0;
                return;
            }
        }
        if (!a.serves) asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(a.theirs), "r"(k) : "memory");
    }
    *a.ns = time_ns() - begin;
}

status launched(const char *what, struct stream *s)
{
    cudaError_t err = cudaGetLastError();
    if (err == cudaSuccess && s->sync) err = cudaStreamSynchronize(cuda_queue(s));
    if (err == cudaSuccess) return STATUS_OK;
    return FAIL(STATUS_DEVICE, "%s on %s: %s (%s)", what, s->dev->name, cudaGetErrorString(err), cudaGetErrorName(err));
}

unsigned blocks_of(int64_t count, const struct stream *s)
{
    const int64_t most = int64_t(s->dev->multiprocessors) * 4, need = (count + THREADS - 1) / THREADS;
    return unsigned(need < most ? need : most);
}

} // namespace

status p2p_fill(float *x, int64_t count, int rank, enum p2p_numbers numbers, struct stream *s)
{
    if (count == 0) return STATUS_OK;
    fill_kernel<<<blocks_of(count, s), THREADS, 0, cuda_queue(s)>>>(x, count, rank, numbers);
    return launched("p2p_fill", s);
}

status p2p_check(const struct p2p_check_args *a, struct stream *s)
{
    CHECK(a->numbers == P2P_WHOLE || a->ranks <= RANKS_MAX, "sums of %d ranks in a fixed order", a->ranks);
    if (a->count == 0) return STATUS_OK;
    check_kernel<<<blocks_of(a->count, s), THREADS, 0, cuda_queue(s)>>>(*a);
    return launched("p2p_check", s);
}

status p2p_move(float *to, const float *from, int64_t count, int blocks, struct stream *s)
{
    CHECK(count % 4 == 0, "%lld floats", (long long)count);
    if (count == 0) return STATUS_OK;
    move_kernel<<<unsigned(blocks), THREADS, 0, cuda_queue(s)>>>(reinterpret_cast<float4 *>(to),
                                                                  reinterpret_cast<const float4 *>(from), count / 4);
    return launched("p2p_move", s);
}

status p2p_ping(const struct p2p_ping_args *a, struct stream *s)
{
    ping_kernel<<<1, 1, 0, cuda_queue(s)>>>(*a);
    return launched("p2p_ping", s);
}

status p2p_load(void)
{
    cudaFuncAttributes loaded;
    TRY_CUDA(cudaFuncGetAttributes(&loaded, fill_kernel));
    TRY_CUDA(cudaFuncGetAttributes(&loaded, check_kernel));
    TRY_CUDA(cudaFuncGetAttributes(&loaded, move_kernel));
    TRY_CUDA(cudaFuncGetAttributes(&loaded, ping_kernel));
    return STATUS_OK;
}
