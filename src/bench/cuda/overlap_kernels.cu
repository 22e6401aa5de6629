extern "C" {
#include "bench/cuda/overlap_kernels.h"
#include "dev/cuda/cuda_int.h"
}
#include "base/rng.h"
#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace {

enum { THREADS = 512, PIECE = 4096, SEED = 23 }; // PIECE: float4 that a block moves before it looks at the clock

__device__ inline unsigned long long time_ns()
{
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

template <bool ADD>
__global__ void __launch_bounds__(THREADS) move_kernel(float4 *out, const float4 *own, const float4 *in, int64_t count,
                                                       double ns)
{
    const int64_t pieces = (count + PIECE - 1) / PIECE;
    const unsigned long long begin = time_ns();
    for (int64_t p = blockIdx.x; p < pieces; p += gridDim.x) {
        const int64_t end = (p + 1) * PIECE < count ? (p + 1) * PIECE : count;
#pragma unroll 4
        for (int64_t i = p * PIECE + threadIdx.x; i < end; i += THREADS) {
            float4 x = __ldcg(own + i);
            if (ADD) {
                const float4 y = __ldcg(in + i);
                x = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
            }
            out[i] = x;
        }
        const unsigned long long due = begin + (unsigned long long)(ns * double(p + 1) / double(pieces));
        while (ns > 0 && time_ns() < due) {
        }
        __syncthreads();
    }
}

__global__ void stamp_kernel(unsigned long long *ns)
{
    *ns = time_ns();
}

__global__ void __launch_bounds__(THREADS) numbers_kernel(__nv_bfloat16 *x, int64_t count)
{
    const int64_t step = int64_t(gridDim.x) * THREADS;
    for (int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x; i < count; i += step) {
        const rng_block r = rng_at(SEED, RNG_TEST, uint64_t(i), 0);
        float sum = 0; // four uniform numbers make nearly a normal one
        for (int u = 0; u < 4; u++) sum += float(r.u[u] >> 8) * 0x1p-24f - 0.5f;
        x[i] = __float2bfloat16(1.7320508f * sum);
    }
}

__device__ inline float value(const __nv_bfloat16 &x)
{
    return __bfloat162float(x);
}
__device__ inline float value(const float &x)
{
    return x;
}

template <class T> __global__ void __launch_bounds__(THREADS) compare_kernel(const overlap_pair p)
{
    const T *a = static_cast<const T *>(p.a), *b = static_cast<const T *>(p.b);
    const int64_t step = int64_t(gridDim.x) * THREADS;
    unsigned long long wrong = 0;
    for (int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x; i < p.count; i += step) {
        const float x = value(a[i]), y = value(b[i]);
        wrong += !(fabsf(x - y) <= p.relative * fabsf(x) + p.absolute);
    }
    if (wrong) atomicAdd(p.wrong, wrong);
}

status launched(const char *what, struct stream *s)
{
    const cudaError_t err = cudaGetLastError();
    if (err == cudaSuccess) return STATUS_OK;
    return FAIL(STATUS_DEVICE, "%s on %s: %s (%s)", what, s->dev->name, cudaGetErrorString(err), cudaGetErrorName(err));
}

unsigned blocks_of(int64_t count, const struct stream *s)
{
    const int64_t most = int64_t(s->dev->multiprocessors) * 4, need = (count + THREADS - 1) / THREADS;
    return unsigned(need < most ? need : most);
}

} // namespace

status overlap_move(const struct overlap_traffic *t, struct stream *s)
{
    CHECK(t->count % 4 == 0, "%lld floats", (long long)t->count);
    if (t->count == 0) return STATUS_OK;
    auto *out = reinterpret_cast<float4 *>(t->out);
    auto *own = reinterpret_cast<const float4 *>(t->own), *in = reinterpret_cast<const float4 *>(t->in);
    if (in)
        move_kernel<true><<<unsigned(t->blocks), THREADS, 0, cuda_queue(s)>>>(out, own, in, t->count / 4, t->ns);
    else
        move_kernel<false><<<unsigned(t->blocks), THREADS, 0, cuda_queue(s)>>>(out, own, in, t->count / 4, t->ns);
    return launched("overlap_move", s);
}

status overlap_stamp(unsigned long long *ns, struct stream *s)
{
    stamp_kernel<<<1, 1, 0, cuda_queue(s)>>>(ns);
    return launched("overlap_stamp", s);
}

status overlap_numbers(void *bf16, int64_t count, struct stream *s)
{
    numbers_kernel<<<blocks_of(count, s), THREADS, 0, cuda_queue(s)>>>(static_cast<__nv_bfloat16 *>(bf16), count);
    return launched("overlap_numbers", s);
}

status overlap_compare(const struct overlap_pair *p, struct stream *s)
{
    if (p->dt == DTYPE_BF16)
        compare_kernel<__nv_bfloat16><<<blocks_of(p->count, s), THREADS, 0, cuda_queue(s)>>>(*p);
    else
        compare_kernel<float><<<blocks_of(p->count, s), THREADS, 0, cuda_queue(s)>>>(*p);
    return launched("overlap_compare", s);
}
