// For every .cu: the C contracts, and small helpers of kernels. Not included by any .c.
#pragma once
extern "C" {
#include "ops/cuda/set.h"
}
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

static inline cudaStream_t queue_of(dev_stream s) { return (cudaStream_t)s->queue; }

enum { WARP = 32 };

// 16 bytes of T, loaded and stored as one access.
template <typename T> struct alignas(16) pack { T v[16 / sizeof(T)]; enum { COUNT = 16 / sizeof(T) }; };

__device__ inline float to_f32(float x) { return x; }
__device__ inline float to_f32(__nv_bfloat16 x) { return __bfloat162float(x); }
template <typename T> __device__ inline T from_f32(float x);
template <> __device__ inline float from_f32<float>(float x) { return x; }
template <> __device__ inline __nv_bfloat16 from_f32<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }

// For streams that are read once: keeps them from evicting what is read again.
template <typename T> __device__ inline pack<T> load_pack(const T *p)
{
    int4 raw = *reinterpret_cast<const int4 *>(p);
    return *reinterpret_cast<pack<T> *>(&raw);
}
template <typename T> __device__ inline pack<T> load_pack_once(const T *p)
{
    int4 raw = __ldcs(reinterpret_cast<const int4 *>(p));
    return *reinterpret_cast<pack<T> *>(&raw);
}
template <typename T> __device__ inline void store_pack(T *p, const pack<T> &x)
{
    *reinterpret_cast<int4 *>(p) = *reinterpret_cast<const int4 *>(&x);
}
template <typename T> __device__ inline void store_pack_once(T *p, const pack<T> &x)
{
    __stcs(reinterpret_cast<int4 *>(p), *reinterpret_cast<const int4 *>(&x));
}

// Sums in a fixed order: every lane gets the same bits.
__device__ inline float warp_sum(float x)
{
    for (int d = WARP / 2; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}
__device__ inline double warp_sum(double x)
{
    for (int d = WARP / 2; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}
__device__ inline float warp_max(float x)
{
    for (int d = WARP / 2; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}
// Over the block, at most 32 warps; `shared` holds 32 values; every thread gets the sum. All threads take part.
template <typename F> __device__ inline F block_sum(F x, F *shared)
{
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = (blockDim.x + WARP - 1) / WARP;
    x = warp_sum(x);
    __syncthreads();
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    x = lane < warps ? shared[lane] : F(0);
    return warp_sum(x);
}

// Rows and pointers that allow 16-byte accesses.
static inline bool aligned16(const void *p) { return ((uintptr_t)p & 15) == 0; }

// One launcher for both types: KERNEL<float> or KERNEL<__nv_bfloat16>.
#define BY_DTYPE(dt_, ...)                                                                                             \
    do {                                                                                                               \
        if ((dt_) == DTYPE_BF16) {                                                                                     \
            using T = __nv_bfloat16;                                                                                   \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            CHECK((dt_) == DTYPE_F32, "dtype %s", dtype_name(dt_));                                                    \
            using T = float;                                                                                           \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)
